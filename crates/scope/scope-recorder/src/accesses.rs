//! Finds the data accesses of a block's instructions, as far as their bytes tell.
//!
//! Most addresses of a block differ from an earlier one by a constant in the code: the fields of a structure, a stack frame,
//! the steps of an unrolled copy. They are a [`Group`]. The address of its first access gives all its addresses, so only one
//! access in three needs a callback.

use iced_x86::{
    Code, CodeSize, FlowControl, Instruction, InstructionInfo, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register, UsedMemory,
};
use scope_model::LineId;

use crate::access_groups::{Accesses, Group, Member};
use crate::register_values::RegisterValues;

/// The most groups of a block.
const GROUPS: usize = 64;
/// The largest distance from a group's first access to its others, in bytes.
const REACH: i64 = 2048;
/// The most bytes of a single access in QEMU.
const WIDEST: usize = 16;

/// Finds the data accesses of a block's instructions. `code` has the bytes of each instruction, and `instructions` what
/// [`decoded`](crate::decoded) makes of them. Instructions of 32-bit code, and those that are not understood, are all among
/// [`others`](Accesses::others).
#[must_use]
pub fn accesses(code: &[&[u8]], instructions: &[Instruction]) -> Accesses {
    let mut analysis = Analysis::new();
    let mut infos = InstructionInfoFactory::new();
    for (number, (instruction, bytes)) in instructions.iter().zip(code).enumerate() {
        if instruction.is_invalid() || instruction.len() != bytes.len() {
            return Accesses { others: (0..code.len()).collect(), ..Accesses::default() };
        }
        analysis.add(number, instruction, infos.info(instruction));
    }
    analysis.accesses
}

/// The parts of an address that are not constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Base {
    /// The segment if it has a base, and how often the bases may have changed.
    segment: Option<(Register, u32)>,
    /// The unknown value in the base register.
    base: Option<u32>,
    /// The unknown value in the index register, and its scale.
    index: Option<(u32, u32)>,
}

/// An access of an instruction.
struct Operand {
    base: Base,
    plus: i64,
    bytes: u8,
    write: bool,
}

struct Analysis {
    accesses: Accesses,
    /// The base of each group, and the constant that its first access adds to it.
    bases: Vec<(Base, i64)>,
    registers: RegisterValues,
}

impl Analysis {
    fn new() -> Self {
        Self { accesses: Accesses::default(), bases: Vec::new(), registers: RegisterValues::new() }
    }

    fn add(&mut self, number: usize, instruction: &Instruction, info: &InstructionInfo) {
        match self.operands(instruction, info.used_memory()) {
            Some(operands) if self.all_have_groups(&operands) => {
                for operand in &operands {
                    let place = self.add_to_group(number, operand);
                    if is_return_address(instruction, operand) {
                        self.accesses.return_slot = Some(place);
                    }
                }
            }
            _ => self.accesses.others.push(number),
        }
        self.registers.execute(instruction, info);
    }

    /// The accesses of an instruction; none if they are not certain.
    fn operands(&self, instruction: &Instruction, used: &[UsedMemory]) -> Option<Vec<Operand>> {
        if !is_plain(instruction) {
            return None;
        }
        let mut operands = Vec::new();
        for memory in used.iter().filter(|memory| memory.access() != OpAccess::NoMemAccess) {
            let bytes = memory.memory_size().size();
            if bytes > WIDEST || !bytes.is_power_of_two() {
                return None;
            }
            let (read, write) = match memory.access() {
                OpAccess::Read => (true, false),
                OpAccess::Write => (false, true),
                OpAccess::ReadWrite => (true, true),
                // If the comparison fails, TCG writes back what it read.
                OpAccess::ReadCondWrite if is_exchange(instruction) => (true, true),
                _ => return None,
            };
            let (base, plus) = self.address(memory)?;
            let bytes = u8::try_from(bytes).ok()?;
            operands.extend(read.then_some(Operand { base, plus, bytes, write: false }));
            operands.extend(write.then_some(Operand { base, plus, bytes, write: true }));
        }
        operands.sort_by_key(|operand| operand.write);
        // A callback cannot tell two reads of one instruction apart, nor two writes.
        let count = |write: bool| operands.iter().filter(|operand| operand.write == write).count();
        (count(false) <= 1 && count(true) <= 1).then_some(operands)
    }

    fn address(&self, memory: &UsedMemory) -> Option<(Base, i64)> {
        if !matches!(memory.address_size(), CodeSize::Code64 | CodeSize::Unknown) {
            return None;
        }
        let segment = match memory.segment() {
            segment @ (Register::FS | Register::GS) => {
                Some((segment, self.registers.segment_changes()))
            }
            _ => None,
        };
        let mut plus = memory.displacement().cast_signed();
        let base = match memory.base() {
            Register::None => None,
            register => Some(self.registers.value(register)?),
        };
        let index = match memory.index() {
            Register::None => None,
            register => Some((self.registers.value(register)?, memory.scale())),
        };
        plus = plus.wrapping_add(base.map_or(0, |base| base.plus));
        if let Some((index, scale)) = index {
            plus = plus.wrapping_add(index.plus.wrapping_mul(scale.into()));
        }
        let base = Base {
            segment,
            base: base.map(|base| base.unknown),
            index: index.map(|(index, scale)| (index.unknown, scale)),
        };
        Some((base, plus))
    }

    /// The group that an address belongs to, and its distance from the group's first access.
    fn group(&self, base: Base, plus: i64) -> Option<(usize, i32)> {
        let same = |(number, (known, first)): (usize, &(Base, i64))| {
            let offset = plus.wrapping_sub(*first);
            let near = *known == base && (-REACH..=REACH).contains(&offset);
            Some((number, i32::try_from(offset).ok().filter(|_| near)?))
        };
        self.bases.iter().enumerate().rev().find_map(same)
    }

    /// Whether all accesses have a group or can begin one. Two that begin the same group count twice.
    fn all_have_groups(&self, operands: &[Operand]) -> bool {
        let new =
            operands.iter().filter(|operand| self.group(operand.base, operand.plus).is_none());
        self.bases.len() + new.count() <= GROUPS
    }

    /// Returns the number of the group, and the distance from its first access.
    fn add_to_group(&mut self, number: usize, operand: &Operand) -> (usize, i32) {
        let Operand { base, plus, bytes, write } = *operand;
        let group = self.group(base, plus);
        let (group, offset) = group.unwrap_or_else(|| {
            self.bases.push((base, plus));
            self.accesses.groups.push(Group { instruction: number, members: Vec::new() });
            (self.bases.len() - 1, 0)
        });
        self.accesses.groups[group].members.push(Member { offset, bytes, write });
        (group, offset)
    }
}

/// Whether an instruction always accesses what its operands say, once.
fn is_plain(instruction: &Instruction) -> bool {
    let plain_flow = match instruction.flow_control() {
        FlowControl::Next
        | FlowControl::UnconditionalBranch
        | FlowControl::ConditionalBranch
        | FlowControl::IndirectBranch
        | FlowControl::Call
        | FlowControl::IndirectCall => true,
        FlowControl::Return => matches!(instruction.code(), Code::Retnq | Code::Retnq_imm16),
        _ => false,
    };
    let repeats = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    let far = matches!(instruction.op0_kind(), OpKind::FarBranch16 | OpKind::FarBranch32);
    // The bit's number changes the address.
    let bits = matches!(
        instruction.mnemonic(),
        Mnemonic::Bt | Mnemonic::Btc | Mnemonic::Btr | Mnemonic::Bts
    ) && instruction.op1_kind() == OpKind::Register;
    // Instructions of caches, and those that QEMU executes in helper functions.
    let helpers = matches!(
        instruction.mnemonic(),
        Mnemonic::Clflush
            | Mnemonic::Clflushopt
            | Mnemonic::Clwb
            | Mnemonic::Cldemote
            | Mnemonic::Enter
            | Mnemonic::Leave
            | Mnemonic::Pop
    ) && (instruction.op0_kind() == OpKind::Memory
        || instruction.mnemonic() == Mnemonic::Enter);
    plain_flow && !repeats && !far && !bits && !helpers && !instruction.is_privileged()
}

/// Whether a call writes its return address there, or a return reads it.
fn is_return_address(instruction: &Instruction, operand: &Operand) -> bool {
    match instruction.flow_control() {
        FlowControl::Call | FlowControl::IndirectCall => operand.write,
        FlowControl::Return => !operand.write,
        _ => false,
    }
}

fn is_exchange(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Cmpxchg
}

/// Capacity for uses of lines, and for the blocks that make them.
pub const USES: usize = 1 << 12;
/// The number of either from which on the buffer counts as full. One block more still fits: QEMU's blocks have at most 512
/// instructions, which access one or two lines each, and 120 lines of code.
pub const FULL: usize = 1 << 10;

/// The use of a line, in 32 bits.
///
/// ```text
///  31…15     14      13…0
///  ┌────────┬───────┬───────┐
///  │line    │writes │number │ of the executed block
///  └────────┴───────┴───────┘
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct LineUse(u32);

impl LineUse {
    /// Bits of an executed block's number.
    pub const BLOCK_BITS: u32 = 14;
    const BLOCK: u32 = (1 << Self::BLOCK_BITS) - 1;
    const LINE: u32 = Self::BLOCK_BITS + 1;

    /// The use of a line by the executed block of this number.
    #[inline]
    pub fn new(line: LineId, write: bool, block: usize) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "there are no more")]
        let block = block as u32 & Self::BLOCK;
        Self(line.bits() << Self::LINE | u32::from(write) << Self::BLOCK_BITS | block)
    }

    /// The line.
    #[inline]
    pub fn line(self) -> LineId {
        LineId::from_bits(self.0 >> Self::LINE)
    }

    /// Whether the line is written.
    #[inline]
    pub fn writes(self) -> bool {
        self.0 >> Self::BLOCK_BITS & 1 != 0
    }

    /// The number of the executed block.
    #[inline]
    pub fn block(self) -> u32 {
        self.0 & Self::BLOCK
    }
}

const _: () = assert!(LineUse::LINE + LineId::BITS == u32::BITS, "a use has 32 bits");
const _: () = assert!(USES <= 1 << LineUse::BLOCK_BITS, "every executed block has a number");

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::decode::decoded;

    fn of(code: &[&[u8]]) -> Accesses {
        accesses(code, &decoded(0x1000, code))
    }

    fn offsets(group: &Group) -> Vec<(i32, u8, bool)> {
        group.members.iter().map(|member| (member.offset, member.bytes, member.write)).collect()
    }

    // As GNU as assembles them.
    #[test]
    fn steps_of_an_unrolled_copy_are_two_groups() {
        let code: &[&[u8]] = &[
            &[0x4c, 0x8b, 0x06],       // mov r8, [rsi]
            &[0x4c, 0x8b, 0x4e, 0x08], // mov r9, [rsi + 8]
            &[0x48, 0x8d, 0x76, 0x20], // lea rsi, [rsi + 32]
            &[0x4c, 0x89, 0x07],       // mov [rdi], r8
            &[0x4c, 0x89, 0x4f, 0x08], // mov [rdi + 8], r9
            &[0x4c, 0x8b, 0x56, 0xf0], // mov r10, [rsi - 16]
            &[0x75, 0xe5],             // jne
        ];
        let found = of(code);
        assert_eq!(found.others, Vec::<usize>::new());
        assert_eq!(found.groups.iter().map(|group| group.instruction).collect::<Vec<_>>(), [0, 3]);
        assert_eq!(offsets(&found.groups[0]), [(0, 8, false), (8, 8, false), (16, 8, false)]);
        assert_eq!(offsets(&found.groups[1]), [(0, 8, true), (8, 8, true)]);
    }

    #[test]
    fn pushes_and_pops_are_one_group() {
        let code: &[&[u8]] = &[
            &[0x55],                   // push rbp
            &[0x48, 0x89, 0xe5],       // mov rbp, rsp
            &[0x41, 0x54],             // push r12
            &[0x48, 0x83, 0xec, 0x10], // sub rsp, 16
            &[0x48, 0x89, 0x7d, 0xe8], // mov [rbp - 24], rdi
            &[0x48, 0x8b, 0x04, 0x24], // mov rax, [rsp]
            &[0xe8, 0, 0, 0, 0],       // call
        ];
        let found = of(code);
        assert_eq!(found.groups.len(), 1);
        let expected =
            [(0, 8, true), (-8, 8, true), (-24, 8, true), (-24, 8, false), (-32, 8, true)];
        assert_eq!(offsets(&found.groups[0]), expected);
        assert_eq!(found.return_slot, Some((0, -32)));
        // call [rbx + 8]; ret
        let found = of(&[&[0x90], &[0xff, 0x53, 0x08]]);
        assert_eq!((found.groups.len(), found.return_slot), (2, Some((1, 0))));
        assert_eq!(of(&[&[0x5b], &[0xc3]]).return_slot, Some((0, 8)));
    }

    #[test]
    fn a_load_into_a_register_begins_another_group() {
        let code: &[&[u8]] = &[
            &[0x48, 0x8b, 0x00], // mov rax, [rax]
            &[0x48, 0x8b, 0x00], // mov rax, [rax]
            &[0x01, 0x08],       // add [rax], ecx
        ];
        let found = of(code);
        assert_eq!(found.groups.len(), 3);
        assert_eq!(offsets(&found.groups[2]), [(0, 4, false), (0, 4, true)]);
    }

    #[test]
    fn segments_have_separate_groups() {
        let code: &[&[u8]] = &[
            &[0x65, 0x48, 0x8b, 0x04, 0x25, 0x10, 0, 0, 0], // mov rax, gs:[16]
            &[0x48, 0x8b, 0x04, 0x25, 0x10, 0, 0, 0],       // mov rax, [16]
            &[0x65, 0x48, 0x8b, 0x04, 0x25, 0x18, 0, 0, 0], // mov rax, gs:[24]
            &[0x0f, 0x01, 0xf8],                            // swapgs
            &[0x65, 0x48, 0x8b, 0x04, 0x25, 0x18, 0, 0, 0], // mov rax, gs:[24]
        ];
        let found = of(code);
        assert_eq!(
            found.groups.iter().map(|group| group.instruction).collect::<Vec<_>>(),
            [0, 1, 4]
        );
    }

    #[test]
    fn uncertain_accesses_are_in_no_group() {
        for code in [
            &[0xf3, 0x48, 0xa5][..],   // rep movsq
            &[0x48, 0x0f, 0xab, 0x07], // bts [rdi], rax
            &[0x48, 0xcf],             // iretq
            &[0x0f, 0xae, 0x07],       // fxsave [rdi]
            &[0x0f, 0xae, 0x3f],       // clflush [rdi]
            &[0x67, 0x8b, 0x07],       // mov eax, [edi]
            &[0xc5, 0xfe, 0x6f, 0x07], // vmovdqu ymm0, [rdi]
            &[0xa6],                   // cmpsb
            &[0x0f, 0x01, 0xda],       // vmload
        ] {
            let expected = Accesses { others: vec![0], ..Accesses::default() };
            assert_eq!(of(&[code]), expected, "{code:02x?}");
        }
        // Code of 32 bits: inc eax; mov eax, [eax].
        assert_eq!(of(&[&[0x40], &[0x8b, 0x00]]).others, [0, 1]);
        // Instructions that access nothing are in neither list.
        for code in [&[0x90][..], &[0x0f, 0x1f, 0x00], &[0x48, 0x8d, 0x07], &[0x0f, 0x18, 0x07]] {
            assert_eq!(of(&[code]), Accesses::default(), "{code:02x?}");
        }
    }

    #[test]
    fn a_copy_of_one_word_is_two_groups() {
        let found = of(&[&[0x48, 0xa5]]); // movsq
        assert_eq!(found.groups.len(), 2);
        assert!(!found.groups[0].begins_with_write() && found.groups[1].begins_with_write());
    }

    proptest! {
        #[test]
        fn groups_of_any_code_are_near_and_in_the_block(
            code in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..16), 0..20),
        ) {
            let found = of(&code.iter().map(Vec::as_slice).collect::<Vec<_>>());
            prop_assert!(found.groups.len() <= GROUPS);
            prop_assert!(found.others.iter().all(|number| *number < code.len()));
            for group in found.groups {
                prop_assert!(group.instruction < code.len());
                prop_assert_eq!(group.members[0].offset, 0);
                prop_assert!(group.members.iter().all(|member| member.offset.abs() <= 2048));
            }
        }
    }
}

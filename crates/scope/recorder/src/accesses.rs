//! Which data the instructions of a block access, as far as their bytes tell.
//!
//! Most addresses of a block differ from one before by a number that the code says: the fields of a
//! structure, a frame of the stack, the steps of an unrolled copy. They are a [`Group`]; where the
//! first of it lies is where all lie, so a processor that is watched has to tell of one access in three.

use iced_x86::{
    Code, CodeSize, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory,
    Mnemonic, OpAccess, OpKind, Register, UsedMemory,
};

/// What the instructions of a block access.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// Accesses whose places are known from the first of each group, in the order of the first.
    pub groups: Vec<Group>,
    /// Instructions that may access other data besides; by their numbers in the block.
    pub others: Vec<usize>,
}

/// Accesses that are always made, at fixed distances from each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The number of the instruction that makes the first.
    pub instruction: usize,
    /// All of them, the first included, in their order.
    pub members: Vec<Member>,
}

/// One of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Bytes from the address of the group's first.
    pub offset: i32,
    /// How many bytes.
    pub bytes: u8,
    /// Whether they are written, else read.
    pub write: bool,
}

/// The bytes that a group's accesses lie between: few enough pages that all are neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    first: i32,
    last: i32,
}

impl Reach {
    /// From the lowest byte of these to the highest.
    #[must_use]
    pub fn of(members: &[Member]) -> Self {
        let firsts = members.iter().map(|member| member.offset);
        let lasts = members.iter().map(|member| member.offset + i32::from(member.bytes) - 1);
        Self { first: firsts.min().unwrap_or(0), last: lasts.max().unwrap_or(0) }
    }

    /// How many bytes.
    #[must_use]
    pub fn bytes(self) -> i32 {
        self.last - self.first + 1
    }

    /// The lowest byte, from the group's first access.
    #[must_use]
    pub fn first(self) -> i32 {
        self.first
    }

    /// The first and the last byte, where the group's first access is at `address`.
    #[inline]
    #[must_use]
    pub fn bytes_at(self, address: u64) -> (u64, u64) {
        let at = |offset: i32| address.wrapping_add(i64::from(offset).cast_unsigned());
        (at(self.first), at(self.last))
    }
}

impl Member {
    /// Its first byte, where the group's first access is at `address`.
    #[inline]
    #[must_use]
    pub fn first(&self, address: u64) -> u64 {
        address.wrapping_add(i64::from(self.offset).cast_unsigned())
    }

    /// Its bytes after the first.
    #[inline]
    #[must_use]
    pub fn length(&self) -> u64 {
        u64::from(self.bytes).saturating_sub(1)
    }
}

impl Group {
    /// Whether the first access writes.
    #[must_use]
    pub fn begins_with_write(&self) -> bool {
        self.members.first().is_some_and(|first| first.write)
    }
}

/// A block has no more groups.
const GROUPS: usize = 64;
/// How far from its first access a group has others.
const REACH: i64 = 2048;
/// What one access of QEMU's moves at most.
const WIDEST: usize = 16;

/// Finds out what the instructions of a block access. `code` has the bytes of each, up to its end, and
/// `address` is the first one's. Code of 32 bits, or what is not understood, is all among
/// [`others`](Accesses::others).
#[must_use]
pub fn accesses<'a>(address: u64, code: impl Iterator<Item = &'a [u8]> + Clone) -> Accesses {
    let mut analysis = Analysis::new();
    let mut at = address;
    for (number, bytes) in code.clone().enumerate() {
        let mut decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
        let instruction = decoder.decode();
        if instruction.is_invalid() || instruction.len() != bytes.len() {
            return Accesses { groups: Vec::new(), others: (0..code.count()).collect() };
        }
        analysis.add(number, &instruction);
        at += bytes.len() as u64;
    }
    analysis.accesses
}

/// What a register holds: something that is not known, and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Value {
    unknown: u32,
    plus: i64,
}

/// What makes an address but numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Base {
    /// With its number the segment, where that has a base.
    segment: Option<(Register, u32)>,
    base: Option<u32>,
    index: Option<(u32, u32)>,
}

struct Analysis {
    accesses: Accesses,
    /// Of each group: its base, and the number that its first access adds to it.
    bases: Vec<(Base, i64)>,
    registers: [Value; 16],
    /// Unknown values so far.
    unknown: u32,
    /// Counts what may change the bases of segments.
    segments: u32,
    info: InstructionInfoFactory,
}

impl Analysis {
    fn new() -> Self {
        let mut registers = [Value { unknown: 0, plus: 0 }; 16];
        for (unknown, register) in (0..).zip(&mut registers) {
            register.unknown = unknown;
        }
        Self {
            accesses: Accesses::default(),
            bases: Vec::new(),
            registers,
            unknown: 16,
            segments: 0,
            info: InstructionInfoFactory::new(),
        }
    }

    fn add(&mut self, number: usize, instruction: &Instruction) {
        let used: Vec<UsedMemory> = self.info.info(instruction).used_memory().to_vec();
        let used: Vec<&UsedMemory> =
            used.iter().filter(|memory| memory.access() != OpAccess::NoMemAccess).collect();
        match self.members(instruction, &used) {
            Some(members) if self.all_have_groups(&members) => {
                for (base, plus, bytes, write) in members {
                    self.member(number, base, plus, bytes, write);
                }
            }
            _ => self.accesses.others.push(number),
        }
        self.execute(instruction);
    }

    /// The accesses of an instruction; none if it is not sure which they are.
    fn members(
        &self,
        instruction: &Instruction,
        used: &[&UsedMemory],
    ) -> Option<Vec<(Base, i64, u8, bool)>> {
        if !is_plain(instruction) {
            return None;
        }
        let mut members = Vec::new();
        for memory in used {
            let bytes = memory.memory_size().size();
            if bytes > WIDEST || !bytes.is_power_of_two() {
                return None;
            }
            let (read, write) = match memory.access() {
                OpAccess::Read => (true, false),
                OpAccess::Write => (false, true),
                OpAccess::ReadWrite => (true, true),
                // TCG writes what it has read where it is not to be changed.
                OpAccess::ReadCondWrite if is_exchange(instruction) => (true, true),
                _ => return None,
            };
            let (base, plus) = self.address(memory)?;
            let bytes = u8::try_from(bytes).ok()?;
            members.extend(read.then_some((base, plus, bytes, false)));
            members.extend(write.then_some((base, plus, bytes, true)));
        }
        members.sort_by_key(|member| member.3);
        // Whoever is told of an access knows of it no more than this.
        let alike = |write: bool| members.iter().filter(|member| member.3 == write).count();
        (alike(false) <= 1 && alike(true) <= 1).then_some(members)
    }

    fn address(&self, memory: &UsedMemory) -> Option<(Base, i64)> {
        if !matches!(memory.address_size(), CodeSize::Code64 | CodeSize::Unknown) {
            return None;
        }
        let segment = match memory.segment() {
            segment @ (Register::FS | Register::GS) => Some((segment, self.segments)),
            _ => None,
        };
        let mut plus = memory.displacement().cast_signed();
        let base = match memory.base() {
            Register::None => None,
            register => Some(self.value(register)?),
        };
        let index = match memory.index() {
            Register::None => None,
            register => Some((self.value(register)?, memory.scale())),
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

    fn value(&self, register: Register) -> Option<Value> {
        register.is_gpr64().then(|| self.registers[register.number()])
    }

    fn group(&self, base: Base, plus: i64) -> Option<(usize, i32)> {
        let same = |(number, (known, first)): (usize, &(Base, i64))| {
            let offset = plus.wrapping_sub(*first);
            let near = *known == base && (-REACH..=REACH).contains(&offset);
            Some((number, i32::try_from(offset).ok().filter(|_| near)?))
        };
        self.bases.iter().enumerate().rev().find_map(same)
    }

    /// Whether all members find a group or can found one. Two that are alike can not both found one.
    fn all_have_groups(&self, members: &[(Base, i64, u8, bool)]) -> bool {
        let new = members.iter().filter(|(base, plus, ..)| self.group(*base, *plus).is_none());
        self.bases.len() + new.count() <= GROUPS
    }

    fn member(&mut self, number: usize, base: Base, plus: i64, bytes: u8, write: bool) {
        let group = self.group(base, plus);
        let (group, offset) = group.unwrap_or_else(|| {
            self.bases.push((base, plus));
            self.accesses.groups.push(Group { instruction: number, members: Vec::new() });
            (self.bases.len() - 1, 0)
        });
        self.accesses.groups[group].members.push(Member { offset, bytes, write });
    }

    /// What is known of the registers after an instruction.
    fn execute(&mut self, instruction: &Instruction) {
        let known = self.result(instruction);
        let stack = keeps_stack(instruction).then(|| {
            let stack = self.registers[Register::RSP.number()];
            let by = i64::from(instruction.stack_pointer_increment());
            Value { plus: stack.plus.wrapping_add(by), ..stack }
        });
        let info = self.info.info(instruction);
        let writes = |access| {
            matches!(
                access,
                OpAccess::Write
                    | OpAccess::ReadWrite
                    | OpAccess::CondWrite
                    | OpAccess::ReadCondWrite
            )
        };
        for used in info.used_registers().iter().filter(|used| writes(used.access())) {
            let register = used.register();
            if register.is_gpr() {
                self.unknown += 1;
                let number = register.full_register().number();
                self.registers[number] = Value { unknown: self.unknown, plus: 0 };
            } else if register.is_segment_register() {
                self.segments += 1;
            }
        }
        if matches!(
            instruction.mnemonic(),
            Mnemonic::Swapgs | Mnemonic::Wrmsr | Mnemonic::Wrfsbase | Mnemonic::Wrgsbase
        ) {
            self.segments += 1;
        }
        if let Some(stack) = stack {
            self.registers[Register::RSP.number()] = stack;
        }
        if let Some((register, value)) = known {
            self.registers[register.number()] = value;
        }
    }

    /// What an instruction of those that move addresses about leaves where.
    fn result(&self, instruction: &Instruction) -> Option<(Register, Value)> {
        let to = instruction.op0_register();
        if instruction.op0_kind() != OpKind::Register || !to.is_gpr64() {
            return None;
        }
        let plus = |value: Value, more: i64| Value { plus: value.plus.wrapping_add(more), ..value };
        let own = self.registers[to.number()];
        let immediate = || {
            (instruction.op1_kind() != OpKind::Register && instruction.op1_kind() != OpKind::Memory)
                .then(|| instruction.immediate(1).cast_signed())
        };
        let value = match instruction.mnemonic() {
            Mnemonic::Mov if instruction.op1_kind() == OpKind::Register => {
                self.value(instruction.op1_register())?
            }
            Mnemonic::Add => plus(own, immediate()?),
            Mnemonic::Sub => plus(own, immediate()?.wrapping_neg()),
            Mnemonic::Inc => plus(own, 1),
            Mnemonic::Dec => plus(own, -1),
            Mnemonic::Lea if instruction.memory_index() == Register::None => plus(
                self.value(instruction.memory_base())?,
                instruction.memory_displacement64().cast_signed(),
            ),
            _ => return None,
        };
        Some((to, value))
    }
}

/// Whether an instruction moves the stack's pointer by a number only.
fn keeps_stack(instruction: &Instruction) -> bool {
    instruction.is_stack_instruction()
        && !matches!(instruction.mnemonic(), Mnemonic::Leave | Mnemonic::Enter)
        && !(instruction.mnemonic() == Mnemonic::Pop && instruction.op0_register() == Register::RSP)
}

/// Whether an instruction accesses what its operands say, once and always.
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
    // A bit's number moves the address.
    let bits = matches!(
        instruction.mnemonic(),
        Mnemonic::Bt | Mnemonic::Btc | Mnemonic::Btr | Mnemonic::Bts
    ) && instruction.op1_kind() == OpKind::Register;
    // Of caches, and what QEMU does with a function of its own.
    let odd = matches!(
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
    plain_flow && !repeats && !far && !bits && !odd && !instruction.is_privileged()
}

fn is_exchange(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Cmpxchg
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(code: &[&[u8]]) -> Accesses {
        accesses(0x1000, code.iter().copied())
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
    }

    #[test]
    fn what_is_read_into_a_register_makes_another_group_of_it() {
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
    fn segments_have_bases_of_their_own() {
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
    fn what_is_not_sure_is_told_of_one_by_one() {
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
            assert_eq!(of(&[code]), Accesses { groups: vec![], others: vec![0] }, "{code:02x?}");
        }
        // Code of 32 bits: inc eax; mov eax, [eax].
        assert_eq!(of(&[&[0x40], &[0x8b, 0x00]]).others, [0, 1]);
        // What accesses nothing is not told of.
        for code in [&[0x90][..], &[0x0f, 0x1f, 0x00], &[0x48, 0x8d, 0x07], &[0x0f, 0x18, 0x07]] {
            assert_eq!(of(&[code]), Accesses::default(), "{code:02x?}");
        }
    }

    #[test]
    fn a_copy_of_one_word_is_a_group_each_way() {
        let found = of(&[&[0x48, 0xa5]]); // movsq
        assert_eq!(found.groups.len(), 2);
        assert!(!found.groups[0].begins_with_write() && found.groups[1].begins_with_write());
    }

    proptest! {
        #[test]
        fn whatever_is_executed_groups_are_near_and_of_the_block(
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

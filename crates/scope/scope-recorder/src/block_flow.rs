//! Where the execution goes at the end of a block.

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};
use scope_result::Mode;

use crate::cost_events::BlockEvents;
use crate::functions::{EntryKind, KnownFunction};

/// How a block ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// The next block follows it, or is the target of its conditional jump.
    #[default]
    Next,
    /// A jump to the target.
    Jump,
    /// A jump to anywhere.
    IndirectJump,
    /// A call of the target.
    Call,
    /// A call of anything.
    IndirectCall,
    /// A return from a call.
    Return,
    /// A system call or a hypercall.
    Trap,
    /// A return from a trap or an interrupt.
    Resume,
}

/// What the call graph has to know of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockFlow {
    /// The address of the first instruction.
    pub start: u64,
    /// The address after the last one.
    pub end: u64,
    /// The target of a direct jump or call at the end.
    pub target: Option<u64>,
    /// How it ends.
    pub ending: Ending,
    /// Its function, if that is known.
    pub function: Option<KnownFunction>,
    /// The kind of code: the higher, the less privileged.
    pub mode: Option<Mode>,
    /// The bytes from the address in the group's word to the slot of the return address that the last instruction writes or reads.
    pub slot: i32,
    /// The events of an execution that cost more than an instruction.
    pub events: BlockEvents,
    /// Whether it only jumps to the address in a program's table of links to libraries.
    pub is_link: bool,
}

impl BlockFlow {
    /// The flow of a block at `start`; `code` has the bytes of each instruction.
    #[must_use]
    pub fn new(
        start: u64,
        code: &[&[u8]],
        mode: Mode,
        function: Option<KnownFunction>,
        events: BlockEvents,
    ) -> Self {
        let bytes: u64 = code.iter().map(|instruction| instruction.len() as u64).sum();
        let end = start.wrapping_add(bytes);
        let last = code.last().copied().unwrap_or_default();
        let at = end.wrapping_sub(last.len() as u64);
        let last = Decoder::with_ip(64, last, at, DecoderOptions::NONE).decode();
        let ending = ending(&last);
        let is_direct = matches!(
            last.flow_control(),
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch | FlowControl::Call
        ) && ending != Ending::Trap;
        let target = is_direct.then(|| last.near_branch_target());
        // endbr64; bnd jmp [rip + link]
        let mut before = code.split_last().map_or(&[][..], |(_, before)| before).iter();
        let is_link = function.is_none()
            && ending == Ending::IndirectJump
            && last.is_ip_rel_memory_operand()
            && before.all(|code| matches!(code, [0xf3, 0x0f, 0x1e, 0xfa]));
        let mode = Some(mode);
        Self { start, end, target, ending, function, mode, slot: 0, events, is_link }
    }

    /// Whether it belongs to a thunk. The function that a thunk leads to has the thunk's caller.
    pub fn is_thunk(&self) -> bool {
        self.is_link || self.function.is_some_and(|function| function.entry == EntryKind::Thunk)
    }

    /// Whether the code at an address can be executed next, without an interrupt or an exception.
    pub fn leads_to(&self, address: u64) -> bool {
        match self.ending {
            Ending::Next => address == self.end || self.target == Some(address),
            Ending::Jump | Ending::Call => self.target == Some(address),
            Ending::IndirectJump | Ending::IndirectCall | Ending::Return => false,
            Ending::Trap => address == self.end,
            Ending::Resume => false,
        }
    }

    /// Whether an address lies in the block.
    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// Whether another block belongs to the same known function.
    pub fn shares_function(&self, other: &Self) -> bool {
        self.function
            .is_some_and(|own| other.function.is_some_and(|other| own.start == other.start))
    }

    /// Whether its function begins with it.
    pub fn begins_function(&self) -> bool {
        self.function.is_some_and(|function| function.start == self.start)
    }

    /// What the processor may enter it for.
    pub fn entry(&self) -> EntryKind {
        match self.function {
            Some(function) if function.entry == EntryKind::InterruptTable => EntryKind::Interrupt,
            Some(function) if function.entry == EntryKind::Thunk => EntryKind::None,
            Some(function) if function.start == self.start => function.entry,
            _ => EntryKind::None,
        }
    }
}

fn ending(last: &Instruction) -> Ending {
    match last.mnemonic() {
        Mnemonic::Syscall
        | Mnemonic::Sysenter
        | Mnemonic::Int
        | Mnemonic::Vmcall
        | Mnemonic::Vmmcall => return Ending::Trap,
        Mnemonic::Iret
        | Mnemonic::Iretd
        | Mnemonic::Iretq
        | Mnemonic::Sysret
        | Mnemonic::Sysretq
        | Mnemonic::Sysexit
        | Mnemonic::Sysexitq => return Ending::Resume,
        _ => {}
    }
    match last.flow_control() {
        FlowControl::UnconditionalBranch => Ending::Jump,
        FlowControl::IndirectBranch => Ending::IndirectJump,
        FlowControl::Call => Ending::Call,
        FlowControl::IndirectCall => Ending::IndirectCall,
        FlowControl::Return if matches!(last.code(), Code::Retnq | Code::Retnq_imm16) => {
            Ending::Return
        }
        FlowControl::Return => Ending::Resume,
        _ => Ending::Next,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // As GNU as assembles them.
    #[test]
    fn the_last_instruction_tells_where_a_block_leads() {
        for (code, ending, target) in [
            (&[0x90][..], Ending::Next, None),
            (&[0x75, 0x10], Ending::Next, Some(0x1013)),
            (&[0xeb, 0xfe], Ending::Jump, Some(0x1001)),
            (&[0xff, 0xe0], Ending::IndirectJump, None),
            (&[0xe8, 0, 1, 0, 0], Ending::Call, Some(0x1106)),
            (&[0xff, 0xd0], Ending::IndirectCall, None),
            (&[0xff, 0x15, 0, 0, 0, 0], Ending::IndirectCall, None),
            (&[0xc3], Ending::Return, None),
            (&[0xc2, 8, 0], Ending::Return, None),
            (&[0x0f, 0x05], Ending::Trap, None),
            (&[0xcd, 0x80], Ending::Trap, None),
            (&[0x0f, 0x01, 0xd9], Ending::Trap, None),
            (&[0x48, 0xcf], Ending::Resume, None),
            (&[0x48, 0x0f, 0x07], Ending::Resume, None),
            (&[0x48, 0xcb], Ending::Resume, None),
        ] {
            let nop: &[u8] = &[0x90];
            let flow =
                BlockFlow::new(0x1000, &[nop, code], Mode::Kernel, None, BlockEvents::default());
            assert_eq!((flow.ending, flow.target), (ending, target), "{code:02x?}");
            assert_eq!((flow.start, flow.end), (0x1000, 0x1001 + code.len() as u64));
            if let Some(target) = target {
                assert!(flow.leads_to(target) && !flow.leads_to(target + 1));
            }
        }
    }

    #[test]
    fn a_link_to_a_library_is_recognised_by_its_code() {
        let jump: &[u8] = &[0xf2, 0xff, 0x25, 0, 1, 0, 0];
        let of = |code: &[&[u8]], function| {
            BlockFlow::new(0x1000, code, Mode::User, function, BlockEvents::default()).is_thunk()
        };
        assert!(of(&[&[0xf3, 0x0f, 0x1e, 0xfa], jump], None));
        assert!(of(&[&[0xff, 0x25, 0, 1, 0, 0]], None));
        // No links: other work before the jump, a jump through a register, and a jump of a known function.
        assert!(!of(&[&[0x90], jump], None));
        assert!(!of(&[&[0xff, 0xe0]], None));
        let known = |entry| Some(KnownFunction { number: 0, start: 0x1000, entry });
        assert!(!of(&[jump], known(EntryKind::None)));
        assert!(of(&[&[0xff, 0xe0]], known(EntryKind::Thunk)));
    }
}

//! Finds the events in a block's instructions that cost more than an instruction. They happen at each execution, so finding them
//! once, when the block is translated, costs nothing later.

use iced_x86::{Instruction, Mnemonic, OpKind};
use scope_model::CostEvent;
use scope_result::Mode;

/// How often each event happens in an execution of a block, by number.
pub type BlockEvents = [u8; CostEvent::ALL.len()];

/// The events of a block with these instructions. The instruction at `switch` begins the hypervisor's function that switches
/// virtual processors.
pub fn cost_events(instructions: &[Instruction], mode: Mode, switch: Option<u64>) -> BlockEvents {
    let mut events = BlockEvents::default();
    let mut count = |event: CostEvent| {
        let count = &mut events[event as usize];
        *count = count.saturating_add(1);
    };
    for instruction in instructions {
        if switch == Some(instruction.ip()) {
            count(CostEvent::VmSwitch);
        }
        if let Some(event) = event(instruction, mode) {
            count(event);
        }
    }
    events
}

fn event(instruction: &Instruction, mode: Mode) -> Option<CostEvent> {
    let is_memory = instruction.op0_kind() == OpKind::Memory;
    Some(match instruction.mnemonic() {
        Mnemonic::Mov => match instruction.op0_register() {
            iced_x86::Register::CR3 => CostEvent::Cr3,
            iced_x86::Register::CR4 => CostEvent::Cr4,
            _ => return None,
        },
        Mnemonic::Invlpg | Mnemonic::Invpcid => CostEvent::Invlpg,
        // A guest's kernel calls Xen as its programs call the kernel.
        Mnemonic::Syscall | Mnemonic::Sysenter | Mnemonic::Int if mode == Mode::User => {
            CostEvent::Syscall
        }
        Mnemonic::Syscall | Mnemonic::Vmcall | Mnemonic::Vmmcall => CostEvent::Hypercall,
        Mnemonic::Iret | Mnemonic::Iretd | Mnemonic::Iretq => CostEvent::Iret,
        Mnemonic::Fxsave
        | Mnemonic::Fxsave64
        | Mnemonic::Fxrstor
        | Mnemonic::Fxrstor64
        | Mnemonic::Xsave
        | Mnemonic::Xsave64
        | Mnemonic::Xsavec
        | Mnemonic::Xsavec64
        | Mnemonic::Xsaveopt
        | Mnemonic::Xsaveopt64
        | Mnemonic::Xsaves
        | Mnemonic::Xsaves64
        | Mnemonic::Xrstor
        | Mnemonic::Xrstor64
        | Mnemonic::Xrstors
        | Mnemonic::Xrstors64 => CostEvent::FpuState,
        // An exchange with memory locks without a prefix.
        Mnemonic::Xchg if is_memory => CostEvent::Locked,
        _ if instruction.has_lock_prefix() => CostEvent::Locked,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::decoded;

    fn of(code: &[&[u8]], mode: Mode) -> Vec<(CostEvent, u8)> {
        let events = cost_events(&decoded(0x1000, code), mode, Some(0x1003));
        let found = CostEvent::ALL.into_iter().zip(events).filter(|(_, count)| *count > 0);
        found.collect()
    }

    // As GNU as assembles them.
    #[test]
    fn instructions_that_cost_more_are_found_and_others_are_not() {
        use CostEvent::{Cr3, Cr4, FpuState, Hypercall, Invlpg, Iret, Locked, Syscall};
        for (code, expected) in [
            (&[0x0f, 0x22, 0xd8][..], Some(Cr3)),
            (&[0x41, 0x0f, 0x22, 0xe5], Some(Cr4)),
            (&[0x0f, 0x20, 0xd8], None),
            (&[0x0f, 0x01, 0x3f], Some(Invlpg)),
            (&[0x66, 0x0f, 0x38, 0x82, 0x0c, 0x24], Some(Invlpg)),
            (&[0x48, 0xcf], Some(Iret)),
            (&[0xf0, 0x48, 0xff, 0x00], Some(Locked)),
            (&[0x87, 0x08], Some(Locked)),
            (&[0x48, 0x87, 0xc8], None),
            (&[0x0f, 0xae, 0x20], Some(FpuState)),
            (&[0x48, 0x0f, 0xc7, 0x27], Some(FpuState)),
            (&[0x0f, 0x01, 0xd9], Some(Hypercall)),
            (&[0x48, 0x89, 0xc8], None),
        ] {
            let expected: Vec<_> = expected.into_iter().map(|event| (event, 1)).collect();
            assert_eq!(of(&[code], Mode::Kernel), expected, "{code:02x?}");
        }
        let syscall: &[u8] = &[0x0f, 0x05];
        assert_eq!(of(&[syscall, syscall], Mode::User), [(Syscall, 2)]);
        assert_eq!(of(&[syscall], Mode::Kernel), [(Hypercall, 1)]);
    }

    #[test]
    fn a_switch_of_virtual_processors_is_where_its_function_begins() {
        let (nop, long_nop): (&[u8], &[u8]) = (&[0x90], &[0x0f, 0x1f, 0x00]);
        assert_eq!(of(&[long_nop, nop], Mode::Hypervisor), [(CostEvent::VmSwitch, 1)]);
        assert_eq!(of(&[nop, nop], Mode::Hypervisor), []);
    }
}

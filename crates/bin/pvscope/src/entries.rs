//! The functions of a machine's images: which of them the processor enters by itself, and which are thunks.

use std::sync::Arc;

use scope_recorder::{EntryKind, Functions};
use scope_symbols::Symbols;

use crate::image_symbols::ImageSymbols;

/// The functions of the images, for the plugin: what belongs to one function, and where traps and interrupts arrive.
pub fn known_functions(symbols: &ImageSymbols) -> Functions {
    let kernel = symbols.kernel.iter().flat_map(|symbols| of_image(symbols, linux_entry));
    let xen = symbols.xen.iter().flat_map(|xen| of_image(&xen.symbols, xen_entry));
    Functions::new(kernel.chain(xen))
}

/// The functions of an image, and where they end.
fn of_image(
    symbols: &Arc<Symbols>,
    entry: impl Fn(&str) -> EntryKind,
) -> Vec<(u64, Option<EntryKind>)> {
    let functions = symbols.iter().map(|symbol| (symbol.start, Some(entry(symbol.name))));
    let ends = symbols.ranges().into_iter().map(|range| (range.end, None));
    functions.chain(ends).collect()
}

/// The addresses of Linux at which the processor enters it in this way.
pub fn entered(symbols: &Symbols, kind: EntryKind) -> Vec<u64> {
    let entries = symbols.iter().filter(|symbol| linux_entry(symbol.name) == kind);
    entries.map(|symbol| symbol.start).collect()
}

/// What the processor, or Xen in its place, enters a function of Linux for (`arch/x86/entry`, `arch/x86/xen/xen-asm.S`).
fn linux_entry(name: &str) -> EntryKind {
    let plain = name.strip_prefix("xen_").unwrap_or(name);
    match plain {
        _ if is_thunk(plain) => EntryKind::Thunk,
        "entry_SYSCALL_64"
        | "entry_SYSCALL_compat"
        | "entry_SYSENTER_compat"
        | "entry_INT80_compat"
        | "asm_int80_emulation" => EntryKind::SystemCall,
        "irq_entries_start" | "spurious_entries_start" => EntryKind::InterruptTable,
        "asm_exc_nmi"
        | "asm_exc_xennmi"
        | "asm_exc_xen_hypervisor_callback"
        | "asm_common_interrupt"
        | "asm_spurious_interrupt" => EntryKind::Interrupt,
        _ if plain.starts_with("asm_sysvec_") => EntryKind::Interrupt,
        _ if plain.starts_with("asm_exc_") => EntryKind::Exception,
        _ => EntryKind::None,
    }
}

/// What the processor enters a function of Xen for (`xen/arch/x86/x86_64/entry.S`).
fn xen_entry(name: &str) -> EntryKind {
    match name {
        _ if is_thunk(name) => EntryKind::Thunk,
        "lstar_enter" | "cstar_enter" | "sysenter_entry" | "int80_direct_trap" | "entry_int80"
        | "entry_int82" => EntryKind::SystemCall,
        "divide_error"
        | "debug"
        | "int3"
        | "overflow"
        | "bounds"
        | "invalid_op"
        | "device_not_available"
        | "double_fault"
        | "coprocessor_seg_overrun"
        | "invalid_TSS"
        | "segment_not_present"
        | "stack_segment"
        | "general_protection"
        | "page_fault"
        | "coprocessor_error"
        | "alignment_check"
        | "simd_coprocessor_error"
        | "entry_CP"
        | "entry_DE"
        | "entry_DB"
        | "entry_BP"
        | "entry_OF"
        | "entry_BR"
        | "entry_UD"
        | "entry_NM"
        | "entry_DF"
        | "entry_TS"
        | "entry_NP"
        | "entry_SS"
        | "entry_GP"
        | "entry_PF"
        | "entry_MF"
        | "entry_AC"
        | "entry_XM" => EntryKind::Exception,
        "common_interrupt" | "nmi" | "entry_NMI" | "machine_check" | "entry_MC" => {
            EntryKind::Interrupt
        }
        _ => EntryKind::None,
    }
}

/// Whether a function only goes on to another: for indirect calls and returns without speculation, and for static calls (Linux'
/// `arch/x86/lib/retpoline.S`, `include/linux/static_call.h`; Xen's `arch/x86/indirect-thunk.S`).
fn is_thunk(name: &str) -> bool {
    name.starts_with("__x86_indirect_")
        || name.starts_with("__SCT__")
        || name == "__x86_return_thunk"
        || name.ends_with("_return_thunk")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_recognised_by_their_names() {
        for (name, expected) in [
            ("entry_SYSCALL_64", EntryKind::SystemCall),
            ("xen_entry_SYSCALL_64", EntryKind::SystemCall),
            ("xen_asm_exc_page_fault", EntryKind::Exception),
            ("asm_exc_page_fault", EntryKind::Exception),
            ("xen_asm_exc_xen_hypervisor_callback", EntryKind::Interrupt),
            ("asm_sysvec_apic_timer_interrupt", EntryKind::Interrupt),
            ("irq_entries_start", EntryKind::InterruptTable),
            ("entry_SYSCALL_64_after_hwframe", EntryKind::None),
            ("tcp_sendmsg", EntryKind::None),
            ("__x86_indirect_thunk_rax", EntryKind::Thunk),
            ("srso_alias_return_thunk", EntryKind::Thunk),
            ("__SCT__might_resched", EntryKind::Thunk),
        ] {
            assert_eq!(linux_entry(name), expected, "{name}");
        }
        assert_eq!(xen_entry("lstar_enter"), EntryKind::SystemCall);
        assert_eq!(xen_entry("__x86_indirect_thunk_r11"), EntryKind::Thunk);
        assert_eq!(xen_entry("page_fault"), EntryKind::Exception);
        assert_eq!(xen_entry("do_page_fault"), EntryKind::None);
    }
}

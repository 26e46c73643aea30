//! Functions whose calls a recording keeps as events.

use scope_result::EventKind;

use crate::image_symbols::ImageSymbols;

/// What the call of a function stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probed {
    /// An interrupt of a device, of the timer or of another processor.
    Interrupt,
    /// A system call of a program.
    SystemCall,
    /// An explicit flush of whole TLBs by the hypervisor, as after an unmap.
    TlbFlush,
}

/// The image that has a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Image {
    Xen,
    Linux,
}

/// The functions; the number of an event is its place here.
const PROBES: [(Image, &str, Probed); 5] = [
    (Image::Xen, "do_IRQ", Probed::Interrupt),
    // Without Xen: guests of Xen get events instead.
    (Image::Linux, "common_interrupt", Probed::Interrupt),
    (Image::Linux, "sysvec_apic_timer_interrupt", Probed::Interrupt),
    (Image::Linux, "do_syscall_64", Probed::SystemCall),
    // The compiler puts do_tlb_flush into it.
    (Image::Xen, "flush_area_local", Probed::TlbFlush),
];

/// The words of the plugin's argument. A function that an image lacks has the address 0, where no code is.
pub fn words(symbols: &ImageSymbols) -> String {
    let address = |(image, function, _): (Image, &str, Probed)| {
        let range = match image {
            Image::Xen => symbols.xen.as_ref().and_then(|xen| range(&xen.symbols, function)),
            Image::Linux => symbols.kernel.iter().find_map(|symbols| range(symbols, function)),
        };
        range.map_or(0, |range| range.start)
    };
    PROBES.map(|probe| format!(",probe={:#x}", address(probe))).concat()
}

/// The addresses of a function. Xen puts a file's name before the name of a static function.
fn range(symbols: &scope_symbols::Symbols, function: &str) -> Option<std::ops::Range<u64>> {
    let named = |name: &str| name.rsplit('#').next() == Some(function);
    symbols.range_of(function).or_else(|| {
        let name = symbols.iter().find(|symbol| named(symbol.name))?.name;
        symbols.range_of(name)
    })
}

/// Whether an event is this.
pub fn is(kind: EventKind, probed: Probed) -> bool {
    let EventKind::Probe(number) = kind else { return false };
    PROBES.get(usize::from(number)).is_some_and(|(.., known)| *known == probed)
}

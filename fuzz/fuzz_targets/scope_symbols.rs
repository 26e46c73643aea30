//! The symbols of arbitrary images, programs and texts of /proc: they are read or refused without a panic, and any address
//! can be looked up in them.
//!
//! Input: the bytes. Run with `cargo fuzz run --features libfuzzer --sanitizer none scope_symbols`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use scope_symbols::{Maps, Program};

fuzz_target!(|bytes: &[u8]| {
    for symbols in
        [scope_symbols::xen_image(bytes), scope_symbols::linux_image(bytes)].into_iter().flatten()
    {
        let first = symbols.iter().next().map_or(0, |symbol| symbol.start);
        for address in [0, first, first.wrapping_add(1), u64::MAX] {
            let _ = symbols.lookup(address);
        }
    }
    if let Ok(program) = Program::parse("program", bytes) {
        let _ = program.address_of(0x1000);
        let _ = program.line(0x1000);
    }
    let text = String::from_utf8_lossy(bytes);
    let _ = scope_symbols::kallsyms_text(&text);
    let _ = scope_symbols::modules(&text);
    if let Ok(maps) = Maps::parse(&text) {
        let _ = maps.find(0x1000);
    }
});

//! Whatever a guest executes: instructions are decoded or let alone without a panic, as are the plugin's own words.
//!
//! Input: the bytes. Run with `cargo +nightly fuzz run scope_recorder`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    scope_recorder::mark(bytes);
    if let Some(special) = scope_recorder::special(bytes) {
        special.flush(|number| Some(u64::MAX - u64::from(number)), Some);
    }
    let text = String::from_utf8_lossy(bytes);
    let words: Vec<String> = text.split(',').map(str::to_owned).collect();
    let _ = scope_recorder::Arguments::parse(&words);
    let _ = scope_recorder::shared_memory(&text);
});

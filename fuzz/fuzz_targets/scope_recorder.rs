//! The bytes of code that a guest executes, the plugin's arguments and the words between its threads: all are decoded or
//! refused without a panic, single instructions and blocks.
//!
//! Input: the bytes. Run with `cargo fuzz run --features libfuzzer --sanitizer none scope_recorder`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = scope_recorder::mark(bytes);
    if let Some(instruction) = scope_recorder::flush_instruction(bytes) {
        instruction.flush(|number| Some(u64::MAX - u64::from(number)), Some);
    }
    let block: Vec<_> = bytes.chunks(5).collect();
    let found = scope_recorder::accesses(&block, &scope_recorder::decoded(0x1000, &block));
    assert!(found.others.iter().all(|instruction| *instruction < block.len()));
    let words: Vec<u64> =
        bytes.as_chunks().0.iter().map(|chunk| u64::from_le_bytes(*chunk)).collect();
    let mut words = words.as_slice();
    while scope_recorder::TraceEvent::take(&mut words).is_some() {}
    let text = String::from_utf8_lossy(bytes);
    let words: Vec<String> = text.split(',').map(str::to_owned).collect();
    let _ = scope_recorder::Arguments::parse(&words);
    let _ = scope_recorder::shared_memory(&text);
});

//! Decodes the instructions of a block, once for all that look at them.

use iced_x86::{Decoder, DecoderOptions, Instruction};

/// The instructions of a block at `address`; `code` has the bytes of each. Bytes that are no instruction give an invalid one.
#[must_use]
pub fn decoded(address: u64, code: &[&[u8]]) -> Vec<Instruction> {
    let mut at = address;
    let decode = |bytes: &&[u8]| {
        let instruction = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
        at = at.wrapping_add(bytes.len() as u64);
        instruction
    };
    code.iter().map(decode).collect()
}

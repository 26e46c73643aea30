//! Any stream to the store is cut into the same messages however it arrives, and a request that parses means the
//! same when it is written again.
//!
//! Input: part size (1 byte), then the stream. Run with `cargo fuzz run --features libfuzzer --sanitizer none xs_wire`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use xenstore::wire::{Decoder, DirectoryPart, Message, Request, WireError, parse_watch_event};

fuzz_target!(|input: &[u8]| {
    let Some((&size, stream)) = input.split_first() else { return };
    let whole = decode(stream.chunks(stream.len().max(1)));
    assert_eq!(decode(stream.chunks(usize::from(size).max(1))), whole);
    for message in &whole.0 {
        if let Ok(request) = Request::parse(message) {
            let again = request.message(message.req_id(), message.tx_id());
            assert_eq!(Request::parse(&again.unwrap()), Ok(request));
        }
        let _ = parse_watch_event(message.payload());
        let _ = DirectoryPart::parse(message.payload()).map(|part| part.payload());
    }
});

fn decode<'a>(parts: impl Iterator<Item = &'a [u8]>) -> (Vec<Message>, Option<WireError>) {
    let mut decoder = Decoder::new();
    let mut messages = Vec::new();
    for part in parts {
        decoder.push(part);
        loop {
            match decoder.next_message() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => return (messages, Some(error)),
            }
        }
    }
    (messages, None)
}

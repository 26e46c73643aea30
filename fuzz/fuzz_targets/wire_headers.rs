//! The first bytes of any frame are parsed or refused, and offsets stay inside them.
//!
//! Run with `cargo +nightly fuzz run wire_headers`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::headers::Headers;
use wire::toeplitz::{MICROSOFT_KEY, Table};

static TOEPLITZ: Table = Table::new(&MICROSOFT_KEY);

fuzz_target!(|header: &[u8]| {
    let Ok(headers) = Headers::parse(header) else { return };
    assert!(headers.l3_offset <= headers.l4_offset);
    assert!(headers.l4_offset <= headers.payload_offset);
    assert!(usize::from(headers.payload_offset) <= header.len());
    if let Some(checksum) = headers.checksum_location() {
        let end = checksum.start + checksum.offset + 2;
        assert!(end <= u16::from(headers.payload_offset));
    }

    // What lies behind the headers has no part in what they are.
    let exact = &header[..usize::from(headers.payload_offset)];
    assert_eq!(Headers::parse(exact), Ok(headers));
    assert_eq!(headers.flow_hash(exact, &TOEPLITZ), headers.flow_hash(header, &TOEPLITZ));
});

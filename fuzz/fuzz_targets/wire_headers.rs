//! The first bytes of any frame are parsed or refused, and offsets stay inside them.
//!
//! Input: the frame's length beyond these bytes (2 bytes, little-endian), then the bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::headers::{Headers, Transport};
use wire::toeplitz::{MICROSOFT_KEY, Table};

static TOEPLITZ: Table = Table::new(&MICROSOFT_KEY);

fuzz_target!(|input: &[u8]| {
    let Some((beyond, header)) = input.split_first_chunk() else { return };
    let len = header.len() + usize::from(u16::from_le_bytes(*beyond));
    let Ok(headers) = Headers::parse_start(header, len) else { return };
    assert!(headers.l3_offset <= headers.l4_offset);
    assert!(headers.l4_offset <= headers.payload_offset);
    assert!(usize::from(headers.payload_offset) <= header.len());
    if let Some(checksum) = headers.checksum_location() {
        let end = checksum.start + checksum.offset + 2;
        assert!(end <= u16::from(headers.payload_offset));
    }

    // What lies behind the headers has no part in what they are, where they are all known.
    let exact = &header[..usize::from(headers.payload_offset)];
    if headers.transport == Transport::Opaque {
        assert_eq!((headers.checksum_location(), headers.ports(header)), (None, None));
    } else {
        assert_eq!(Headers::parse_start(exact, len), Ok(headers));
    }
    assert_eq!(headers.flow_hash(exact, &TOEPLITZ), headers.flow_hash(header, &TOEPLITZ));
});

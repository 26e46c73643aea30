//! Any private header is checked without panic, and a frame that passes has the policy's source.
//!
//! Run with `cargo fuzz run --features libfuzzer --sanitizer none guard`.
#![no_main]

use std::net::{Ipv4Addr, Ipv6Addr};

use frame::{Frame, HEADER_MAX};
use guard::{Allowed, Checker, Policy};
use libfuzzer_sys::fuzz_target;
use wire::ethernet::MacAddr;
use wire::headers::{Network, Transport};
use wire::{ipv6, ndp};

const V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 1);

fuzz_target!(|input: (bool, bool, u16, &[u8])| {
    let (source_is_own, has_addresses, body, bytes) = input;
    let mut frame = Frame::empty();
    if frame.set_header(&bytes[..bytes.len().min(HEADER_MAX)]).is_err() {
        return;
    }
    // Only a full private header has a body behind it.
    if frame.header().len() == HEADER_MAX {
        frame.len = (frame.len + u32::from(body)).min(u16::MAX.into());
    }
    let mac = if source_is_own { frame.source() } else { MacAddr([0x00, 0x16, 0x3e, 0, 0, 1]) };
    let own = [V4.into(), V6.into()].map(|address| Allowed::host(address).unwrap());
    let policy = Policy { mac, addresses: has_addresses.then(|| own.into()) };
    if Checker::new(&policy).check(&frame).is_err() {
        return;
    }

    assert_eq!(frame.source(), mac);
    let headers = frame.headers;
    if headers.transport == Transport::Icmpv6 {
        let kind = ndp::Kind(frame.header()[usize::from(headers.l4_offset)]);
        assert!(![ndp::Kind::ROUTER_ADVERTISEMENT, ndp::Kind::REDIRECT].contains(&kind));
    }
    if !has_addresses {
        return;
    }
    let addresses = headers.addresses(frame.header()).unwrap_or_default();
    let source = &addresses[..addresses.len() / 2];
    match headers.network {
        Network::Ipv4 => assert!(source == V4.octets() || source == [0; 4]),
        Network::Ipv6 => {
            let own = [V6, ipv6::link_local(mac), Ipv6Addr::UNSPECIFIED];
            assert!(own.iter().any(|own| source == own.octets()));
        }
        Network::Arp | Network::Other => {}
    }
});

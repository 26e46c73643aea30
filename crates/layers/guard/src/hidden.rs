//! Frames whose protocol the parser does not see, but some receivers do.
//!
//! Some switches, access points and hosts take a header off, or make an Ethernet II frame of an IEEE 802.3 one, and hand on what lies
//! behind it (CVE-2021-27853, CVE-2021-27861). The parser does not look that far, so such frames are refused.

use port::Frame;
use wire::ethernet::EtherType;

/// Below this value, the field after the addresses is the length of an IEEE 802.3 frame, and an LLC header follows.
const TYPES: u16 = 0x0600;
/// The EtherType of a frame with an LLC header that is too long for a length.
const LONG_LLC: u16 = 0x8870;

/// LLC headers (destination, source, control) that pass: IS-IS, which a router sends. Those that carry other protocols (SNAP, IP,
/// ARP) would hide them, and a guest has no business with spanning trees.
const LLC: [[u8; 3]; 1] = [[0xfe, 0xfe, 0x03]];

/// Tags of other kinds than the parser sees through, and headers after which a device goes on with the EtherType behind them.
const TAGS: [u16; 19] = [
    // VLAN tags from before IEEE 802.1ad, and a whole Ethernet frame (0x6558).
    0x9100, 0x9200, 0x9300, 0x6558,
    // Tags of Cisco's (0x8909, 0x8926), of backbone bridges, of bridge port extension, and against loss (IEEE 802.1CB).
    0x8909, 0x8926, 0x88e7, 0x893f, 0xf1c1,
    // Tags by which a switch tells its host the port (DSA): Marvell's, Linux's own, NXP's, Renesas', Broadcom's, Realtek's. No guest has such a
    // switch.
    0xdada, 0xdadb, 0xdadc, 0xe001, 0x8874, 0x8899,
    // Rings and parallel networks against loss (HSR, PRP; IEC 62439-3), TRILL (RFC 6325), NSH (RFC 8300).
    0x892f, 0x88fb, 0x22f3, 0x894f,
];

/// Whether a frame whose protocol the parser does not know may carry one that it knows.
#[cold]
pub(crate) fn is_hidden(frame: &Frame) -> bool {
    let header = frame.header();
    let Some((link, rest)) = header.split_at_checked(frame.headers.l3_offset.into()) else {
        return true;
    };
    let Some(ethertype) = link.last_chunk().copied().map(u16::from_be_bytes) else { return true };
    match ethertype {
        length if length < TYPES => {
            let is_whole = link.len() + usize::from(length) <= frame.len as usize;
            !is_whole || !is_listed(&rest[..rest.len().min(length.into())])
        }
        LONG_LLC => !is_listed(rest),
        // The parser sees through VLAN tags: this is one too many.
        tag => EtherType(tag).is_vlan() || TAGS.contains(&tag),
    }
}

fn is_listed(llc: &[u8]) -> bool {
    llc.first_chunk().is_some_and(|llc| LLC.contains(llc))
}

//! A guest's address, announced in its place after it has moved here.

use std::sync::atomic::{AtomicU64, Ordering};

use port::Frame;
use wire::ethernet::MacAddr;
use wire::virtio_net::VirtioNetHdr;

use crate::header::accept;

/// Set where there is an address.
const PRESENT: u64 = 1 << 63;
/// Bytes of the frame: the shortest one, without its checksum.
const LEN: u8 = 60;
/// What stands between the Ethernet addresses and the sender's in a request of RARP (RFC 903) for IPv4 over Ethernet.
const REQUEST: [u8; 10] = [0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3];

/// An address that the next batch of the guest's frames begins with.
#[derive(Debug, Default)]
pub(crate) struct Announcement(AtomicU64);

impl Announcement {
    pub(crate) fn set(&self, MacAddr([a, b, c, d, e, f]): MacAddr) {
        let address = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        self.0.store(address | PRESENT, Ordering::Release);
    }

    /// Whether there is one.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Takes the address.
    #[inline]
    pub(crate) fn take(&self) -> Option<MacAddr> {
        if !self.is_due() {
            return None;
        }
        let [_, _, mac @ ..] = self.0.swap(0, Ordering::Acquire).to_be_bytes();
        Some(MacAddr(mac))
    }
}

/// Makes a frame that asks, as RARP, for the IP address of the guest. All switches learn from it, and nobody answers.
pub(crate) fn write(frame: &mut Frame, MacAddr(mac): MacAddr) -> bool {
    let bytes = &mut frame.bytes[..LEN.into()];
    bytes.fill(0);
    bytes[..6].fill(0xff);
    bytes[6..12].copy_from_slice(&mac);
    bytes[12..22].copy_from_slice(&REQUEST);
    bytes[22..28].copy_from_slice(&mac);
    bytes[32..38].copy_from_slice(&mac);
    frame.header_len = LEN;
    frame.len = LEN.into();
    frame.pieces.clear();
    accept(frame, &VirtioNetHdr::default())
}

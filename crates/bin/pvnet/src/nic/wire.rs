//! A tap as a card's wire.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use firmware::{Metadata, Sent, Wire};
use nic_session::WireSettings;
use offload::{Checksum, Features, vnet};
use uplink::tap::{Tap, TapOffload, TapQueue};
use wire::ethernet::MacAddr;
use wire::headers::Headers;
use wire::virtio_net::VirtioNetHdr;
use zerocopy::{FromBytes, IntoBytes};

use crate::netns;
use crate::program::text;

/// How long a tap that was empty is not read, unless there is a notice. A card that polls its contexts would otherwise make
/// ten system calls for nothing per frame that it sends.
const POLL_INTERVAL: Duration = Duration::from_micros(10);

/// When a tap is read.
#[derive(Debug, Default)]
struct TapPoll {
    now: Duration,
    /// When it was found empty, if there was no notice since.
    empty_at: Option<Duration>,
}

impl TapPoll {
    fn is_due(&self) -> bool {
        self.empty_at.is_none_or(|at| self.now >= at + POLL_INTERVAL)
    }
}

/// A tap whose stack is at the other end of the wire.
pub(super) struct TapWire {
    tap: TapQueue,
    /// What the stack does with frames that it gets.
    features: Features,
    poll: TapPoll,
}

impl TapWire {
    /// The time. It does not go back.
    pub(super) fn set_time(&mut self, now: Duration) {
        self.poll.now = now;
    }

    /// There is a frame.
    pub(super) fn notice(&mut self) {
        self.poll.empty_at = None;
    }

    /// Opens the tap and brings it up.
    pub(super) fn open(card: &str, settings: &WireSettings) -> Result<Self, String> {
        let WireSettings { tap: name, namespace, addresses, checksum_offload } = settings;
        // Frames of the MTU, as on a wire. Their checksums are finished by whoever needs them: a card's hardware would.
        let offload = TapOffload { csum: true, ..TapOffload::NONE };
        let open = || Tap::open(name, 1, offload).map_err(text);
        let taps = netns::inside(namespace.as_deref(), open)?;
        let mac = address(card, name).to_string();
        netns::set_mac(namespace.as_deref(), name, &mac)?;
        netns::bring_up(namespace.as_deref(), name, addresses)?;
        let tap = taps.into_iter().next().ok_or("a tap without a queue")?;
        Ok(Self { tap, features: features(*checksum_offload), poll: TapPoll::default() })
    }
}

/// What a stack does with frames, whether it finishes checksums or not: a switch in user space takes finished ones only.
fn features(checksums: bool) -> Features {
    Features { csum_v4: checksums, csum_v6: checksums, tagged: checksums, ..Features::NONE }
}

/// The address of the stack at the other end: the same for each process that is this card, so that its neighbours
/// need not ask again.
fn address(card: &str, tap: &str) -> MacAddr {
    // FNV-1a.
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let bytes = card.bytes().chain([0]).chain(tap.bytes());
    let [a, b, c, d, e, ..] = bytes.fold(0xcbf2_9ce4_8422_2325, hash).to_le_bytes();
    // Locally administered, unicast.
    MacAddr([0x02, a, b, c, d, e])
}

impl AsFd for TapWire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tap.as_fd()
    }
}

impl Wire for TapWire {
    fn features(&self) -> Features {
        self.features
    }

    fn send(&mut self, head: &[u8], body: &[u8], metadata: Metadata) -> Sent {
        let Metadata { checksum, gso } = metadata;
        let mut header = VirtioNetHdr::default();
        if checksum != Checksum::Unknown || gso.is_some() {
            let Ok(headers) = Headers::parse_start(head, head.len() + body.len()) else {
                return Sent::Refused;
            };
            header = vnet::encode(&headers, checksum, gso);
        }
        let parts = [IoSlice::new(header.as_bytes()), IoSlice::new(head), IoSlice::new(body)];
        match rustix::io::writev(&self.tap, &parts) {
            Ok(_) => Sent::Sent,
            // A tap is never busy. The stack behind it is short of memory, or it is down.
            Err(_) => Sent::Refused,
        }
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Option<(usize, Metadata)> {
        if !self.poll.is_due() {
            return None;
        }
        loop {
            let mut header = [0; VirtioNetHdr::LEN];
            let mut parts = [IoSliceMut::new(&mut header), IoSliceMut::new(buffer)];
            let Ok(bytes) = rustix::io::readv(&self.tap, &mut parts) else {
                // No frame, or the tap was deleted: then there is never one.
                self.poll.empty_at = Some(self.poll.now);
                return None;
            };
            self.poll.empty_at = None;
            let len = bytes.saturating_sub(VirtioNetHdr::LEN);
            let metadata = VirtioNetHdr::read_from_bytes(&header)
                .ok()
                .and_then(|header| metadata(&header, buffer.get_mut(..len)?));
            if let Some(metadata) = metadata {
                return Some((len, metadata));
            }
        }
    }
}

/// What is known of a frame; none if it is malformed. A checksum for which a card has no word is completed.
fn metadata(header: &VirtioNetHdr, frame: &mut [u8]) -> Option<Metadata> {
    if *header == VirtioNetHdr::default() {
        return Some(Metadata::default());
    }
    let headers = Headers::parse_start(frame, frame.len()).ok()?;
    match vnet::decode(header, &headers) {
        Ok((checksum, gso)) => Some(Metadata { checksum, gso }),
        Err(asked) => {
            let at = asked.checksum_elsewhere(&headers, frame.len())?;
            offload::complete_checksum_at(frame, at).ok()?;
            Some(Metadata::default())
        }
    }
}

#[cfg(test)]
mod tests {
    use wire::headers::ChecksumLocation;

    use super::*;

    #[test]
    fn an_empty_tap_is_read_with_a_notice_or_after_a_while() {
        let mut poll = TapPoll { now: Duration::from_micros(100), empty_at: None };
        assert!(poll.is_due());
        poll.empty_at = Some(poll.now);
        poll.now += POLL_INTERVAL / 2;
        assert!(!poll.is_due());
        poll.now += POLL_INTERVAL / 2;
        assert!(poll.is_due());
    }

    #[test]
    fn a_stack_that_finishes_no_checksums_gets_no_blank_ones() {
        assert!(features(true).csum_v4 && features(true).csum_v6);
        assert_eq!(features(false), Features::NONE);
    }

    #[test]
    fn a_checksum_for_which_a_card_has_no_word_is_finished() {
        let bytes = [&[2; 12][..], &[0x88, 0x47], &[7; 200]].concat();
        let finished = |start: u16, offset: u16| {
            let header = VirtioNetHdr {
                flags: 1,
                csum_start: start.into(),
                csum_offset: offset.into(),
                ..VirtioNetHdr::default()
            };
            let mut frame = bytes.clone();
            metadata(&header, &mut frame).map(|metadata| {
                assert_eq!(metadata, Metadata::default());
                frame
            })
        };
        let mut expected = bytes.clone();
        let at = ChecksumLocation { start: 38, offset: 16 };
        offload::complete_checksum_at(&mut expected, at).unwrap();
        assert_ne!(expected, bytes);
        assert_eq!(finished(38, 16), Some(expected));
        for (start, offset) in [(0, 16), (6, 0), (213, 0), (214, 0), (38, 175), (65_535, 65_535)] {
            assert_eq!(finished(start, offset), None, "{start} {offset}");
        }
    }

    #[test]
    fn a_wire_keeps_its_address_and_shares_it_with_no_other() {
        assert_eq!(address("card0", "w0"), address("card0", "w0"));
        assert_ne!(address("card0", "w0"), address("card0", "w1"));
        assert_ne!(address("card0", "w0"), address("card", "0w0"));
        assert!(!address("card0", "w0").is_multicast());
    }
}

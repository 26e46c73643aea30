//! One packet on the TX ring: a chain of slots, checked before it is used.

use arrayvec::ArrayVec;
use frame::FRAGMENTS_MAX;
use hypervisor::PAGE_SIZE;
use offload::Gso;
use wire::netif::extra::{Extra, ExtraError, ExtraInfo};
use wire::netif::{TxRequest, tx_flags};

use crate::multicast::ListChange;

/// A packet of this many slots or more is an attack: Linux's `fatal_skb_slots`.
pub(crate) const SLOTS_FATAL: u32 = 20;
/// Smallest Ethernet frame: its header.
pub(crate) const FRAME_MIN: u16 = 14;
/// Smaller segments are refused, as Linux's `TCP_MIN_GSO_SIZE` is: 64 KiB of one-byte segments
/// would cost the egress as much as 65,000 frames.
const GSO_SIZE_MIN: u16 = 8;

/// The frontend broke the protocol in such a way that the ring cannot be used any more: the vif is
/// disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// An index is out of range.
    #[error(transparent)]
    Ring(#[from] ring::Broken),
    /// A chain announces slots that are not on the ring.
    #[error("a packet announces more slots than the {0} on the ring")]
    Unfinished(u32),
    /// Far more slots than any packet needs (XSA-39).
    #[error("a packet of {SLOTS_FATAL} slots or more")]
    TooManySlots,
    /// A fragment leaves its page.
    #[error("{size} bytes at {offset} cross the end of the page")]
    CrossesPage {
        /// First byte in the page.
        offset: u16,
        /// How many bytes.
        size: u16,
    },
    /// The fragments hold more than the packet.
    #[error("the fragments are larger than the packet of {0} bytes")]
    Sizes(u16),
    /// A malformed extra.
    #[error(transparent)]
    Extra(#[from] ExtraError),
}

/// A packet's fragments, in order, each inside its page; their sizes add up to `len`. Empty ones are answered and
/// left out of the frame.
#[derive(Clone, Debug, Default)]
pub(crate) struct Packet {
    /// The slots, empty ones too; `size` is the fragment's. There is room for more than a frame may
    /// have, so that all slots of a refused packet can be answered.
    pub(crate) fragments: ArrayVec<TxRequest, { SLOTS_FATAL as usize }>,
    /// Slots that held extras; each is answered with NULL.
    pub(crate) extras: u8,
    /// Bytes of the whole packet.
    pub(crate) len: u16,
    /// From the GSO extra.
    pub(crate) gso: Option<Gso>,
    /// It is no packet: the frontend wants another list of groups.
    pub(crate) list_change: Option<ListChange>,
    /// Slots of the ring the packet took.
    pub(crate) slots: u32,
    /// Whether the packet follows the protocol but cannot be sent: it is answered with ERROR.
    pub(crate) refused: bool,
}

impl Packet {
    /// Parses the packet whose first slot is `slot(0)`, of `present` slots on the ring. Each
    /// slot is read once. The first `supplied` bytes of the packet, or all of a shorter one,
    /// are not in its fragments.
    #[inline]
    pub(crate) fn parse(
        &mut self,
        present: u32,
        supplied: u16,
        mut slot: impl FnMut(u32) -> TxRequest,
    ) -> Result<(), Fault> {
        let first = slot(0);
        self.fragments.clear();
        self.extras = 0;
        self.len = first.size;
        self.gso = None;
        self.list_change = None;
        self.slots = 1;
        self.refused = first.size < FRAME_MIN;
        if first.flags & tx_flags::EXTRA_INFO != 0 {
            self.take_extras(present, &mut slot)?;
        }
        self.take_fragments(first, present, supplied, &mut slot)
    }

    fn next_slot(
        &mut self,
        present: u32,
        slot: &mut impl FnMut(u32) -> TxRequest,
    ) -> Result<TxRequest, Fault> {
        if self.slots >= present {
            return Err(Fault::Unfinished(present));
        }
        let taken = slot(self.slots);
        self.slots += 1;
        Ok(taken)
    }

    /// Extras lie right after the first slot.
    fn take_extras(
        &mut self,
        present: u32,
        slot: &mut impl FnMut(u32) -> TxRequest,
    ) -> Result<(), Fault> {
        loop {
            let info = ExtraInfo::from_tx_slot(&self.next_slot(present, slot)?);
            self.extras += 1;
            match Extra::decode(&info)? {
                Extra::Gso { size, kind, .. } => {
                    self.refused |= size.get() < GSO_SIZE_MIN;
                    self.gso = Some(Gso { kind: kind.into(), size: size.get() });
                }
                Extra::McastAdd(group) => self.list_change = Some(ListChange::Add(group)),
                Extra::McastDel(group) => self.list_change = Some(ListChange::Remove(group)),
                // The frontend's hash is ignored: the backend hashes flows.
                Extra::Hash { .. } => {}
                // Only sent from backend to frontend.
                Extra::Xdp { .. } => return Err(ExtraError::Kind(info.kind).into()),
            }
            if !info.more() {
                return Ok(());
            }
            if u32::from(self.extras) >= SLOTS_FATAL {
                return Err(Fault::TooManySlots);
            }
        }
    }

    /// The first slot's size is the whole packet's, so the first fragment's is the remainder.
    #[inline]
    fn take_fragments(
        &mut self,
        first: TxRequest,
        present: u32,
        supplied: u16,
        slot: &mut impl FnMut(u32) -> TxRequest,
    ) -> Result<(), Fault> {
        self.fragments.push(first);
        let mut left = first.size.saturating_sub(supplied);
        let mut more = first.flags & tx_flags::MORE_DATA != 0;
        let mut filled = 0;
        while more {
            let next = self.next_slot(present, slot)?;
            if self.fragments.len() + 1 >= SLOTS_FATAL as usize {
                return Err(Fault::TooManySlots);
            }
            left = left.checked_sub(next.size).ok_or(Fault::Sizes(first.size))?;
            within_page(next.offset, next.size)?;
            // A fragment of no bytes is answered like the others. No frame may contain one: in XSA-448 netback treated it as a page with data.
            filled += usize::from(next.size > 0);
            self.fragments.push(next);
            more = next.flags & tx_flags::MORE_DATA != 0;
        }
        within_page(first.offset, left)?;
        filled += usize::from(left > 0);
        self.refused |= filled > FRAGMENTS_MAX;
        self.fragments[0].size = left;
        Ok(())
    }
}

#[inline]
fn within_page(offset: u16, size: u16) -> Result<(), Fault> {
    if usize::from(offset) + usize::from(size) > PAGE_SIZE {
        return Err(Fault::CrossesPage { offset, size });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wire::netif::GsoKind;

    use super::*;

    const MORE: u16 = tx_flags::MORE_DATA;

    fn slot(size: u16, offset: u16, flags: u16) -> TxRequest {
        TxRequest { gref: 9, offset, flags, id: 7, size }
    }

    fn extra(extra: Extra, more: bool) -> TxRequest {
        extra.encode(more).unwrap().to_tx_slot()
    }

    fn gso(size: u16) -> Extra {
        Extra::Gso { size: size.try_into().unwrap(), kind: GsoKind::TcpV4, features: 0 }
    }

    fn parse(slots: &[TxRequest]) -> Result<Packet, Fault> {
        let mut packet = Packet::default();
        packet.parse(slots.len().try_into().unwrap(), 0, |n| slots[n as usize])?;
        Ok(packet)
    }

    #[test]
    fn the_first_fragment_is_what_the_others_leave() {
        let slots = [
            slot(5000, 100, MORE | tx_flags::EXTRA_INFO),
            extra(gso(1448), false),
            slot(4000, 0, MORE),
            slot(700, 96, 0),
            slot(60, 0, 0),
        ];
        let packet = parse(&slots).unwrap();
        let sizes: Vec<_> = packet.fragments.iter().map(|f| f.size).collect();
        assert_eq!(sizes, [300, 4000, 700]);
        assert_eq!((packet.slots, packet.extras, packet.len), (4, 1, 5000));
        assert_eq!(packet.gso, Some(Gso { kind: GsoKind::TcpV4.into(), size: 1448 }));
        assert!(!packet.refused);
    }

    #[test]
    fn what_cannot_be_sent_is_refused_and_the_vif_lives() {
        assert_eq!([13, 14].map(|len| parse(&[slot(len, 0, 0)]).unwrap().refused), [true, false]);
        let mut chain = vec![slot(1900, 0, MORE); 1];
        chain.extend([slot(100, 0, MORE); 17]);
        chain.push(slot(100, 0, 0));
        let packet = parse(&chain).unwrap();
        assert!(packet.refused);
        assert_eq!(packet.fragments.len(), 19);
        assert!(!parse(&chain[1..].iter().rev().copied().collect::<Vec<_>>()).unwrap().refused);
        let multicast = Extra::McastAdd(wire::ethernet::MacAddr([1; 6]));
        let packet = parse(&[slot(60, 0, tx_flags::EXTRA_INFO), extra(multicast, false)]).unwrap();
        assert!(packet.list_change.is_some() && packet.extras == 1);
    }

    #[test]
    fn empty_fragments_are_answered_and_left_out_xsa_448() {
        let sizes = |slots: &[TxRequest]| {
            let packet = parse(slots).unwrap();
            assert!(!packet.refused && packet.fragments.len() == slots.len());
            packet.fragments.iter().map(|f| f.size).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&[slot(100, 0, MORE), slot(0, 0, 0)]), [100, 0]);
        assert_eq!(sizes(&[slot(100, 0, MORE), slot(100, 0, 0)]), [0, 100]);
        assert_eq!(sizes(&[slot(100, 0, MORE), slot(0, 4096, MORE), slot(40, 0, 0)]), [60, 0, 40]);
        // As many fragments as a frame may have, and one slot more.
        let mut chain = vec![slot(1800, 0, MORE), slot(0, 0, MORE)];
        chain.extend([slot(100, 0, MORE); 16]);
        chain.push(slot(100, 0, 0));
        assert_eq!(sizes(&chain).iter().filter(|size| **size > 0).count(), FRAGMENTS_MAX);
        // They count as slots.
        let mut chain = vec![slot(100, 0, MORE)];
        chain.extend([slot(0, 0, MORE); 30]);
        assert_eq!(parse(&chain).unwrap_err(), Fault::TooManySlots);
    }

    #[test]
    fn what_cannot_be_followed_disables_the_vif() {
        assert_eq!(parse(&[slot(60, 0, MORE)]).unwrap_err(), Fault::Unfinished(1));
        let crossing = Fault::CrossesPage { offset: 4040, size: 60 };
        assert_eq!(parse(&[slot(60, 4040, 0)]).unwrap_err(), crossing);
        assert_eq!(parse(&[slot(60, 0, MORE), slot(61, 0, 0)]).unwrap_err(), Fault::Sizes(60));
        let mut chain = vec![slot(4000, 0, MORE); 1];
        chain.extend([slot(10, 0, MORE); 19]);
        assert_eq!(parse(&chain).unwrap_err(), Fault::TooManySlots);
        let endless = vec![extra(gso(1448), true); 40];
        let mut chain = vec![slot(60, 0, tx_flags::EXTRA_INFO)];
        chain.extend(endless);
        assert_eq!(parse(&chain).unwrap_err(), Fault::TooManySlots);
        let unknown = ExtraInfo { kind: 9, ..ExtraInfo::default() }.to_tx_slot();
        assert!(matches!(
            parse(&[slot(60, 0, tx_flags::EXTRA_INFO), unknown]).unwrap_err(),
            Fault::Extra(ExtraError::Kind(9))
        ));
        let headroom = extra(Extra::Xdp { headroom: 256 }, false);
        assert!(matches!(
            parse(&[slot(60, 0, tx_flags::EXTRA_INFO), headroom]).unwrap_err(),
            Fault::Extra(ExtraError::Kind(5))
        ));
    }

    proptest! {
        #[test]
        fn a_packet_that_is_sent_is_sound(
            raw in prop::collection::vec(any::<[u16; 6]>(), 1..40),
            calm in any::<bool>(),
            supplied in prop::sample::select(vec![0u16, 128]),
        ) {
            let slots: Vec<_> = raw
                .iter()
                .map(|[g, offset, flags, id, size, _]| TxRequest {
                    gref: u32::from(*g),
                    offset: if calm { offset % 2000 } else { *offset },
                    flags: flags % 16,
                    id: *id,
                    size: if calm { size % 2000 } else { *size },
                })
                .collect();
            let mut asked = Vec::new();
            let mut packet = Packet::default();
            let parsed = packet.parse(slots.len().try_into().unwrap(), supplied, |n| {
                asked.push(n);
                slots[n as usize]
            });
            // Every slot once and in order: nothing is read twice (XSA-155).
            prop_assert!(asked.iter().copied().eq((0..).take(asked.len())));
            if parsed.is_ok() {
                prop_assert_eq!(asked.len(), packet.slots as usize);
                let answered = packet.fragments.len() + usize::from(packet.extras);
                prop_assert_eq!(answered, packet.slots as usize);
                let sum: usize = packet.fragments.iter().map(|f| usize::from(f.size)).sum();
                prop_assert_eq!(sum, usize::from(packet.len.saturating_sub(supplied)));
                for f in &packet.fragments {
                    prop_assert!(usize::from(f.offset) + usize::from(f.size) <= 4096);
                }
                let filled = packet.fragments.iter().filter(|f| f.size > 0).count();
                prop_assert!(packet.refused || filled <= FRAGMENTS_MAX);
                prop_assert!(packet.slots < 2 * SLOTS_FATAL);
            }
        }
    }
}

//! One packet on the TX ring: a chain of slots, checked before it is used.

use arrayvec::ArrayVec;
use frame::{FRAGMENTS_MAX, Fragment};
use hypervisor::{GrantRef, Granted, PAGE_SIZE};
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

/// The requests of a packet, to be answered when it is done with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    /// Their identifiers, those of empty fragments too. There is room for more than a frame may have fragments, so that all slots of a refused
    /// packet can be answered.
    pub(crate) ids: ArrayVec<u16, { SLOTS_FATAL as usize }>,
    /// Slots that held extras; each is answered with NULL.
    pub(crate) extras: u8,
}

/// What the slots of a packet say, but for its fragments and requests, which are written where they are used.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    /// Bytes of the whole packet.
    pub(crate) len: u16,
    /// The flags of its first request.
    pub(crate) flags: u16,
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
    ///
    /// `fragments` gets those that are not empty, in order, each inside its page. With `supplied` their lengths add up to the packet's, unless it is
    /// refused.
    #[inline]
    pub(crate) fn parse(
        present: u32,
        supplied: u16,
        mut slot: impl FnMut(u32) -> TxRequest,
        fragments: &mut ArrayVec<Fragment, FRAGMENTS_MAX>,
        Requests { ids, extras }: &mut Requests,
    ) -> Result<Self, Fault> {
        let first = slot(0);
        let (len, flags) = (first.size, first.flags);
        let refused = len < FRAME_MIN;
        let mut packet = Self { len, flags, gso: None, list_change: None, slots: 0, refused };
        let mut taken = 1;
        let mut next = || {
            let next = (taken < present).then(|| slot(taken)).ok_or(Fault::Unfinished(present));
            taken += 1;
            next
        };
        *extras = match flags & tx_flags::EXTRA_INFO {
            0 => 0,
            _ => packet.take_extras(&mut next)?,
        };
        fragments.clear();
        ids.clear();
        fragments.push(fragment(first));
        ids.push(first.id);
        let mut left = len.saturating_sub(supplied);
        let mut more = flags & tx_flags::MORE_DATA != 0;
        // One more than a frame may have, which it has room for if the first is empty.
        let mut last = None;
        while more {
            let request = next()?;
            if ids.len() + 1 >= SLOTS_FATAL as usize {
                return Err(Fault::TooManySlots);
            }
            left = left.checked_sub(request.size).ok_or(Fault::Sizes(len))?;
            within_page(request.offset, request.size)?;
            ids.push(request.id);
            // A fragment of no bytes is answered like the others. No frame may contain one: in XSA-448 netback treated it as a page with data.
            if request.size > 0
                && let Err(full) = fragments.try_push(fragment(request))
            {
                packet.refused |= last.replace(full.element()).is_some();
            }
            more = request.flags & tx_flags::MORE_DATA != 0;
        }
        packet.slots = taken;
        // The first slot's size is the whole packet's, so the first fragment's is the remainder.
        within_page(first.offset, left)?;
        if left > 0 {
            fragments[0].len = left;
            packet.refused |= last.is_some();
        } else {
            fragments.remove(0);
            fragments.extend(last);
        }
        Ok(packet)
    }

    /// Extras lie right after the first slot. Returns how many.
    fn take_extras(
        &mut self,
        mut next: impl FnMut() -> Result<TxRequest, Fault>,
    ) -> Result<u8, Fault> {
        let mut extras = 0;
        loop {
            let info = ExtraInfo::from_tx_slot(&next()?);
            extras += 1;
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
                return Ok(extras);
            }
            if u32::from(extras) >= SLOTS_FATAL {
                return Err(Fault::TooManySlots);
            }
        }
    }
}

/// The bytes of a request as a part of a frame.
#[inline]
pub(crate) fn fragment(request: TxRequest) -> Fragment {
    let TxRequest { gref, offset, size, .. } = request;
    Fragment::granted(Granted { gref: GrantRef(gref), offset, mapped: None }, size)
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
    use frame::Place;
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

    fn parse(slots: &[TxRequest]) -> Result<(Packet, Vec<u16>, Requests), Fault> {
        let (mut fragments, mut requests) = (ArrayVec::new(), Requests::default());
        let (present, slot) = (slots.len().try_into().unwrap(), |n| slots[n as usize]);
        let packet = Packet::parse(present, 0, slot, &mut fragments, &mut requests)?;
        Ok((packet, fragments.iter().map(|fragment| fragment.len).collect(), requests))
    }

    fn is_refused(slots: &[TxRequest]) -> bool {
        parse(slots).unwrap().0.refused
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
        let (packet, sizes, requests) = parse(&slots).unwrap();
        assert_eq!(sizes, [300, 4000, 700]);
        assert_eq!((packet.slots, requests.extras, packet.len), (4, 1, 5000));
        assert_eq!(packet.gso, Some(Gso { kind: GsoKind::TcpV4.into(), size: 1448 }));
        assert!(!packet.refused);
    }

    #[test]
    fn what_cannot_be_sent_is_refused_and_the_vif_lives() {
        assert_eq!([13, 14].map(|len| is_refused(&[slot(len, 0, 0)])), [true, false]);
        let mut chain = vec![slot(1900, 0, MORE); 1];
        chain.extend([slot(100, 0, MORE); 17]);
        chain.push(slot(100, 0, 0));
        let (packet, _, requests) = parse(&chain).unwrap();
        assert!(packet.refused);
        assert_eq!(requests.ids.len(), 19);
        // Nothing is left for the first.
        chain[0].size = 1800;
        assert_eq!(parse(&chain).unwrap().1, [100; FRAGMENTS_MAX]);
        chain[0].size = 1900;
        chain.remove(1);
        assert_eq!(parse(&chain).unwrap().1, [&[200][..], &[100; FRAGMENTS_MAX - 1]].concat());
        let multicast = Extra::McastAdd(wire::ethernet::MacAddr([1; 6]));
        let change = [slot(60, 0, tx_flags::EXTRA_INFO), extra(multicast, false)];
        let (packet, _, requests) = parse(&change).unwrap();
        assert!(packet.list_change.is_some() && requests.extras == 1);
    }

    #[test]
    fn empty_fragments_are_answered_and_left_out_xsa_448() {
        let sizes = |slots: &[TxRequest]| {
            let (packet, sizes, requests) = parse(slots).unwrap();
            assert!(!packet.refused && requests.ids.len() == slots.len());
            sizes
        };
        assert_eq!(sizes(&[slot(100, 0, MORE), slot(0, 0, 0)]), [100]);
        assert_eq!(sizes(&[slot(100, 0, MORE), slot(100, 0, 0)]), [100]);
        assert_eq!(sizes(&[slot(100, 0, MORE), slot(0, 4096, MORE), slot(40, 0, 0)]), [60, 40]);
        // As many fragments as a frame may have, and one slot more.
        let mut chain = vec![slot(1800, 0, MORE), slot(0, 0, MORE)];
        chain.extend([slot(100, 0, MORE); 16]);
        chain.push(slot(100, 0, 0));
        assert_eq!(sizes(&chain).len(), FRAGMENTS_MAX);
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
            let (mut fragments, mut requests) = (ArrayVec::new(), Requests::default());
            let present = slots.len().try_into().unwrap();
            let slot = |n| {
                asked.push(n);
                slots[n as usize]
            };
            let parsed = Packet::parse(present, supplied, slot, &mut fragments, &mut requests);
            // Every slot once and in order: nothing is read twice (XSA-155).
            prop_assert!(asked.iter().copied().eq((0..).take(asked.len())));
            if let Ok(packet) = parsed {
                prop_assert_eq!(asked.len(), packet.slots as usize);
                let answered = requests.ids.len() + usize::from(requests.extras);
                prop_assert_eq!(answered, packet.slots as usize);
                let sum: usize = fragments.iter().map(|f| usize::from(f.len)).sum();
                let is_whole = sum == usize::from(packet.len.saturating_sub(supplied));
                prop_assert!(packet.refused || is_whole);
                for f in &fragments {
                    let Place::Grant(granted) = f.place else { panic!("granted") };
                    prop_assert!(f.len > 0 && usize::from(granted.offset + f.len) <= 4096);
                }
                prop_assert!(packet.slots < 2 * SLOTS_FATAL);
            }
        }
    }
}

//! The I/O channel: how a packet's bytes cross from the guest to the driver domain.
//!
//! Menon, Cox and Zwaenepoel (2006, §4.1) start from a netback that maps every page of every
//! packet ([`TxChannel::Remap`]: two changes of the address space a page) and arrive at one that
//! is handed the header beside the ring and never maps the body ([`TxChannel::Header`]).

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use arrayvec::ArrayVec;
use frame::{Body, Frame, HEADER_MAX, PIECES_MAX, WINDOW, Window};
use hypervisor::{
    CopyStatus, Dest, GrantCopy, GrantMap, GrantRef, Hypervisor, MapStatus, MappedGrants, PAGE_SIZE,
};
use ring::Slots;
use ring::netif::Tx;
use wire::netif::header_channel;

use crate::persistent::InHand;

/// How a packet's bytes come from a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TxChannel {
    /// Its first bytes are copied, out of header pages if the frontend has some and out of its
    /// grants if not; the rest stays in the guest's pages until the egress port fetches it.
    #[default]
    Header,
    /// All its pages are mapped, and unmapped when it has been sent.
    Remap,
}

/// How a packet's bytes go to a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxChannel {
    /// Copied into pages that the guest shares once.
    #[default]
    Copy,
    /// Put into zeroed pages of the driver domain's, which become the guest's.
    Flip,
}

macro_rules! named {
    ($kind:ty, $($name:literal => $value:path),+) => {
        impl FromStr for $kind {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($name => Ok($value),)+
                    _ => Err(format!("not one of {}", [$($name),+].join(", "))),
                }
            }
        }

        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $($value => $name,)+
                })
            }
        }
    };
}

named!(TxChannel, "header" => TxChannel::Header, "remap" => TxChannel::Remap);
named!(RxChannel, "copy" => RxChannel::Copy, "flip" => RxChannel::Flip);

/// Most header copies in one batch. Nearly every frame needs one.
const BATCH: usize = WINDOW + PIECES_MAX;

type Fetches<'a, H> = ArrayVec<GrantCopy<'a, <H as Hypervisor>::Peer>, BATCH>;

/// What a TX queue reaches its packets by.
pub(crate) struct Channel<H: Hypervisor> {
    way: Way<H>,
    /// Pages that are mapped anyway, if the frontend can have some: no copy needs a grant there.
    grants: Option<InHand<H>>,
}

/// How a TX queue comes by headers.
enum Way<H: Hypervisor> {
    /// Copies of them.
    Granted,
    /// The header pages that the frontend fills.
    Supplied(H::Mapping),
    /// Mappings of everything.
    Mapped(Mapped<H>),
}

/// The packets in hand, each mapped at the places of its slot in the window.
pub(crate) struct Mapped<H: Hypervisor> {
    aperture: H::Aperture,
    /// What is mapped at each place.
    grefs: Box<[Option<GrantRef>]>,
    /// How many pages are mapped for each slot.
    pages: [u8; WINDOW],
}

impl<H: Hypervisor> Channel<H> {
    /// A channel that maps packets of `peer`.
    pub(crate) fn mapping(hypervisor: &H, peer: &H::Peer) -> Result<Self, hypervisor::Error> {
        let places = WINDOW * PIECES_MAX;
        let aperture = hypervisor.aperture(peer, u32::try_from(places).unwrap_or(u32::MAX))?;
        let grefs = vec![None; places].into();
        let mapped = Mapped { aperture, grefs, pages: [0; WINDOW] };
        Ok(Self { way: Way::Mapped(mapped), grants: None })
    }

    /// A channel that copies headers: those of header pages, if there are some. Some of the
    /// frontend's pages may be mapped.
    pub(crate) fn copying(supplied: Option<H::Mapping>, grants: Option<InHand<H>>) -> Self {
        Self { way: supplied.map_or(Way::Granted, Way::Supplied), grants }
    }

    /// Whether headers come beside the ring.
    pub(crate) fn is_supplied(&self) -> bool {
        matches!(self.way, Way::Supplied(_))
    }

    /// How many of a packet's bytes, at most, come beside the ring instead of in its fragments.
    #[inline]
    pub(crate) fn supplied_max(&self) -> u16 {
        match self.way {
            Way::Supplied(_) => header_channel::HEADER_LEN,
            Way::Granted | Way::Mapped(_) => 0,
        }
    }

    /// Copies what the frontend supplied with request `index`, its one reading. Nothing where
    /// it supplies nothing.
    #[inline]
    pub(crate) fn take_supplied(&self, index: u32, frame: &mut Frame) {
        if let Way::Supplied(pages) = &self.way {
            let header = &mut frame.bytes[..usize::from(frame.header_len)];
            // Every index has its place in the pages that were mapped.
            let _ = pages.copy_out(header_channel::place(index), header);
        }
    }

    /// Starts fetching the headers of the requests from `index` on.
    #[inline]
    pub(crate) fn prefetch(&self, index: u32, requests: u32) {
        if let Way::Supplied(pages) = &self.way {
            for n in 0..requests.min(PREFETCHED) {
                let place = header_channel::place(index.wrapping_add(n));
                pages.prefetch(place);
                pages.prefetch(place + CACHE_LINE);
            }
        }
    }

    /// Does `work` with the memory that the frames' pieces lie in: one batch, so that pages which
    /// are mapped stay mapped no longer than it takes.
    #[inline]
    pub(crate) fn with_body<R>(
        &self,
        peer: &H::Peer,
        work: impl FnOnce(Body<'_, H::Peer>) -> R,
    ) -> R {
        match (&self.way, self.grants.as_ref().and_then(InHand::pages)) {
            (Way::Mapped(mapped), _) => work(Body::MappedGrants(&mapped.of(peer))),
            (_, Some(pages)) => work(Body::MappedGrants(&pages.of(peer))),
            (_, None) => work(Body::Granted(peer)),
        }
    }

    /// Gets the headers of the frames in `fresh` into their private copies, off their pieces.
    /// Answers the frames whose memory refused.
    #[inline]
    pub(crate) fn fetch(
        &mut self,
        hypervisor: &H,
        peer: &H::Peer,
        window: &mut Window,
        fresh: u64,
    ) -> u64 {
        if let Some(grants) = &mut self.grants {
            grants.take(window, fresh);
        }
        let unreadable = match &mut self.way {
            Way::Supplied(_) => return 0,
            Way::Granted => {
                self.with_body(peer, |body| copy_headers(hypervisor, body, window, fresh))
            }
            Way::Mapped(mapped) => mapped.map_all(hypervisor, window, fresh),
        };
        for frame in in_slots(window, fresh).map(|(_, frame)| frame) {
            let skipped = frame.skip_header();
            if let Some(grants) = &mut self.grants {
                grants.release(skipped);
            }
        }
        unreadable
    }

    /// Lets go of what is held for the frame in `slot`.
    #[inline]
    pub(crate) fn release(&mut self, hypervisor: &H, slot: u8, frame: &Frame) {
        if let Way::Mapped(mapped) = &mut self.way {
            mapped.unmap(hypervisor, slot);
        }
        if let Some(grants) = &mut self.grants {
            grants.release(frame.pieces.iter().copied());
        }
    }
}

/// Headers fetched ahead of their reading, which come from another core's cache.
const PREFETCHED: u32 = 8;
const CACHE_LINE: usize = 64;

/// The frames of the slots in `set`.
#[inline]
pub(crate) fn in_slots(window: &mut Window, set: u64) -> impl Iterator<Item = (u8, &mut Frame)> {
    (0u8..).zip(window.slots_mut()).filter(move |(slot, _)| set & (1 << slot) != 0)
}

/// Copies the header bytes of the frames in `fresh` into their private copies, across
/// fragments where they are split (XSA-423). Answers the frames whose memory refused.
fn copy_headers<H: Hypervisor>(
    hypervisor: &H,
    body: Body<'_, H::Peer>,
    window: &mut Window,
    fresh: u64,
) -> u64 {
    let mut ops = Fetches::<H>::new();
    let mut slots = ArrayVec::<u8, BATCH>::new();
    let mut unreadable = 0;
    let mut flush = |ops: &mut Fetches<'_, H>, slots: &mut ArrayVec<u8, BATCH>| {
        hypervisor.copy(ops);
        for (op, slot) in ops.iter().zip(&*slots) {
            unreadable |= u64::from(op.status != CopyStatus::Okay) << slot;
        }
        ops.clear();
        slots.clear();
    };
    for (slot, frame) in in_slots(window, fresh) {
        if ops.remaining_capacity() < PIECES_MAX {
            flush(&mut ops, &mut slots);
        }
        let mut rest = &mut frame.bytes[..usize::from(frame.header_len)];
        for piece in &frame.pieces {
            if rest.is_empty() {
                break;
            }
            // At most HEADER_MAX, or a piece.
            let len = u16::try_from(rest.len()).unwrap_or(piece.len).min(piece.len);
            let (part, after) = rest.split_at_mut(len.into());
            let source = body.source(*piece, 0);
            ops.push(GrantCopy::new(source, Dest::Private(part), len));
            slots.push(slot);
            rest = after;
        }
    }
    flush(&mut ops, &mut slots);
    unreadable
}

impl<H: Hypervisor> Mapped<H> {
    /// Maps the frames in `fresh` and copies their headers; from here on their pieces lie in the
    /// aperture. Answers those whose memory refused.
    fn map_all(&mut self, hypervisor: &H, window: &mut Window, fresh: u64) -> u64 {
        let mut unreadable = 0;
        for (slot, frame) in in_slots(window, fresh) {
            let mapped = self.map(hypervisor, slot, frame) && self.copy_header(frame);
            unreadable |= u64::from(!mapped) << slot;
        }
        unreadable
    }

    /// Maps one frame's pages, one a piece. Answers whether all of them came.
    fn map(&mut self, hypervisor: &H, slot: u8, frame: &mut Frame) -> bool {
        let places = places(slot, PIECES_MAX);
        let ops = places.clone().zip(&frame.pieces);
        let mut ops: ArrayVec<GrantMap, PIECES_MAX> =
            ops.map(|(place, piece)| GrantMap::new(place.into(), piece.gref)).collect();
        hypervisor.map_at(&mut self.aperture, &mut ops);
        // Of those that failed there is nothing to unmap, which does no harm.
        self.pages[usize::from(slot)] = u8::try_from(ops.len()).unwrap_or(u8::MAX);
        for (place, piece) in places.zip(&mut frame.pieces) {
            piece.place = place;
            self.grefs[usize::from(place)] = Some(piece.gref);
        }
        ops.iter().all(|op| op.status == MapStatus::Okay)
    }

    /// The pages as those of `peer`, whose packets lie in them.
    fn of<'a>(&'a self, peer: &'a H::Peer) -> MappedGrants<'a, H::Peer> {
        MappedGrants { peer, region: &self.aperture, grefs: &self.grefs }
    }

    /// The one reading of the header; the guest can still write to these pages.
    fn copy_header(&self, frame: &mut Frame) -> bool {
        let mut rest = &mut frame.bytes[..usize::from(frame.header_len)];
        for piece in &frame.pieces {
            let len = rest.len().min(piece.len.into());
            let (part, after) = rest.split_at_mut(len);
            let at = usize::from(piece.place) * PAGE_SIZE + piece.offset as usize;
            if self.aperture.copy_out(at, part).is_err() {
                return false;
            }
            rest = after;
        }
        true
    }

    fn unmap(&mut self, hypervisor: &H, slot: u8) {
        let pages = std::mem::take(&mut self.pages[usize::from(slot)]);
        let places = places(slot, pages.into());
        self.grefs[usize::from(places.start)..usize::from(places.end)].fill(None);
        hypervisor.unmap(&mut self.aperture, places.start.into()..places.end.into());
    }
}

/// The first places of a slot's.
#[expect(clippy::cast_possible_truncation, reason = "at most WINDOW * PIECES_MAX")]
fn places(slot: u8, count: usize) -> Range<u16> {
    let first = (usize::from(slot) * PIECES_MAX) as u16;
    first..first + count as u16
}

// A header that is supplied has its place in the frame's private copy.
const _: () = assert!(header_channel::HEADER_LEN as usize == HEADER_MAX);
// And every request of a ring has a place for one.
const _: () = assert!(header_channel::PAGES * PAGE_SIZE == Tx::COUNT as usize * HEADER_MAX);

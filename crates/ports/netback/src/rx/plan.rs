//! One batch of copies into a guest's buffers, and the responses that follow them.

use arrayvec::ArrayVec;
use hypervisor::{COPIES_MAX, Copies, CopyStatus, GrantRef, Hypervisor, PAGE_SIZE, Source};
use offload::{Checksum, Gso};
use port::{
    DropReason, FRAGMENTS_MAX, FRAME_MAX, FlowHash, Fragment, Frame, Memory, Outcome, Place,
    Steering, TAIL_MAX,
};
use ring::netif::Rx;
use ring::{RegionPage, SharedPage, Slots as _};
use wire::netif::extra::{Extra, ExtraInfo};
use wire::netif::guest_copy::GUEST_COPY;
use wire::netif::{HashAlgorithm, RxResponse, rx_flags, status};

use crate::buffers::Buffers;
use crate::hash::kind_of;

use super::posted::PostedRing;

// A merged frame of the greatest length needs no more: its header, its fragments and its tail, cut at pages.
const _: () = assert!(1 + FRAGMENTS_MAX + TAIL_MAX + FRAME_MAX.div_ceil(PAGE_SIZE) <= COPIES_MAX);
/// Most copies for a frame of one slot.
const COPIES_OF_SHORT: usize = 1 + FRAGMENTS_MAX;
/// Most ring slots filled by one batch.
const SLOTS_MAX: usize = 64;
/// Buffers are pages, and frames at the start of every page would share a handful of cache sets.
/// Short frames are placed at multiples of this offset instead, if the frontend has agreed: one may own a part of
/// each page only.
const CACHE_OFFSET_STEP: u16 = 64;
/// Longest frame that gets an offset. Offsets are below half a page, so it still fits.
const SHORT_MAX: u32 = PAGE_SIZE as u32 / 2;

pub(super) type RxRing<H> = PostedRing<RegionPage<<H as Hypervisor>::Mapping>>;

/// Most extras of a packet: the frame is unsegmented, it has a hash, and room before it.
const EXTRAS_MAX: usize = 3;

/// Extras of a packet, in the order of their slots.
pub(super) type Extras = ArrayVec<ExtraInfo, EXTRAS_MAX>;

/// The lengths of a packet, which decide how many slots it takes.
#[derive(Clone, Copy)]
pub(super) struct PacketShape {
    /// Bytes of the whole packet.
    pub(super) len: u32,
    /// Flags of the first slot.
    pub(super) flags: u16,
    pub(super) gso: Option<Gso>,
    pub(super) asked: Asked,
}

/// What its guest has asked for with each packet.
#[derive(Clone, Copy, Default)]
pub(super) struct Asked {
    pub(super) hash: Option<FlowHash>,
    /// Bytes of its first buffer that are left for an XDP program.
    pub(super) headroom: u16,
}

impl PacketShape {
    /// The shape of an unchanged frame, with its hash if the guest wants `steering`.
    #[inline]
    pub(super) fn of(frame: &Frame, steering: Option<&Steering>, headroom: u16) -> Self {
        let asked = Asked { hash: steering.and_then(|steering| steering.hash(frame)), headroom };
        Self { len: frame.len, flags: flags_of(frame.checksum), gso: frame.gso, asked }
    }

    /// The shape of a packet of `len` bytes that software has finished.
    pub(super) fn finished(len: u32, asked: Asked) -> Self {
        Self { len, flags: 0, gso: None, asked }
    }

    /// The packet and what lies before it in its first page.
    #[inline]
    fn end(self) -> u32 {
        self.len + u32::from(self.asked.headroom)
    }

    /// Slots it takes: its pages, and one for each extra.
    #[inline]
    pub(super) fn slots(self) -> u32 {
        self.end().div_ceil(PAGE_SIZE as u32) + self.extra_slots()
    }

    /// Whether only a frontend with scatter/gather takes it.
    #[inline]
    pub(super) fn is_scattered(self) -> bool {
        self.end() > PAGE_SIZE as u32 || self.gso.is_some()
    }

    #[inline]
    pub(super) fn extra_slots(self) -> u32 {
        let Asked { hash, headroom } = self.asked;
        u32::from(self.gso.is_some()) + u32::from(hash.is_some()) + u32::from(headroom > 0)
    }

    /// Its extras, each of which takes a response's slot and so uses up a request. A response says which request it uses up, but an
    /// extra has no place for that: a frontend that takes responses in any order finds the `id` in the features
    /// of the GSO extra, of which netif defines none. It gets no hashes.
    #[inline]
    pub(super) fn extras(self, id: u16) -> Extras {
        match self.extra_slots() {
            0 => Extras::new(),
            _ => self.encode_extras(id),
        }
    }

    fn encode_extras(self, id: u16) -> Extras {
        let Asked { hash, headroom } = self.asked;
        let mut extras = Extras::new();
        let mut add = |extra: Extra, more| extras.extend(extra.encode(more).ok());
        let gso = self.gso.and_then(|Gso { kind, size }| {
            Some(Extra::Gso { size: size.try_into().ok()?, kind: kind.netif()?, features: id })
        });
        if let Some(gso) = gso {
            add(gso, hash.is_some() || headroom > 0);
        }
        if let Some(FlowHash { input, value }) = hash {
            let (kind, algorithm) = (kind_of(input), HashAlgorithm::Toeplitz as u8);
            add(Extra::Hash { kind, algorithm, value }, headroom > 0);
        }
        if headroom > 0 {
            add(Extra::Xdp { headroom }, false);
        }
        extras
    }
}

/// Shortest frame whose slots end where its fragments end.
const LONG_MIN: u32 = 4 * PAGE_SIZE as u32;

/// The bytes of each slot of a frame without extras; none if all but the last are full.
pub(super) type Layout = ArrayVec<u16, { FRAGMENTS_MAX + 1 }>;

/// Slots that end where the fragments of a long frame end, if its sender grants these and at most one slot more is needed. Each copy then fills a slot from
/// one page, where two copies fill a full slot from the ends of two pages: a guest's stream lies in whole pages, and headers come before it.
#[inline]
pub(super) fn layout_of(frame: &Frame) -> Layout {
    let is_granted = |fragment: &Fragment| matches!(fragment.place, Place::Grant(_));
    // Where the first slot is full at the end of the first page, those of a stream's other pages are too.
    let first = frame.fragments.first().map_or(0, |fragment| usize::from(fragment.len));
    let is_full = usize::from(frame.header_len) + first == PAGE_SIZE;
    if frame.len < LONG_MIN
        || is_full
        || frame.tail.is_some()
        || !frame.fragments.iter().all(is_granted)
    {
        return Layout::new();
    }
    let (mut layout, mut filled) = (Layout::new(), u16::from(frame.header_len));
    for fragment in &frame.fragments {
        if usize::from(filled) + usize::from(fragment.len) > PAGE_SIZE {
            layout.push(std::mem::take(&mut filled));
        }
        filled += fragment.len;
    }
    layout.push(filled);
    let full = frame.len.div_ceil(PAGE_SIZE as u32) as usize;
    if layout.len() <= full + 1 { layout } else { Layout::new() }
}

/// One response that is written after the copies.
enum Planned {
    Data { id: u16, offset: u16, len: u16, flags: u16, copies: u8 },
    Extra(ExtraInfo),
}

/// Where in a buffer frames begin.
#[derive(Clone, Copy)]
pub(super) struct Placement {
    /// Short frames begin at multiples of this.
    step: u16,
}

impl Placement {
    /// Anywhere in the page if the frontend `agrees`, else at its first byte.
    pub(super) fn new(agrees: bool) -> Self {
        Self { step: if agrees { CACHE_OFFSET_STEP } else { 0 } }
    }

    /// The first byte of a frame of `len` bytes in the buffer of request `index`.
    #[inline]
    fn offset(self, index: u32, len: u32) -> u16 {
        if len > SHORT_MAX { 0 } else { (index % 32) as u16 * self.step }
    }
}

/// Copies, and the responses that follow them.
pub(super) struct CopyPlan<'a, H: Hypervisor> {
    placement: Placement,
    copies: H::Copies<'a>,
    slots: ArrayVec<Planned, SLOTS_MAX>,
}

impl<'a, H: Hypervisor> CopyPlan<'a, H> {
    #[inline]
    pub(super) fn new(placement: Placement) -> Self {
        Self { placement, copies: H::Copies::default(), slots: ArrayVec::new() }
    }

    /// Whether a frame of one slot still fits.
    #[inline]
    pub(super) fn fits_short(&self) -> bool {
        self.copies.room() >= COPIES_OF_SHORT && !self.slots.is_full()
    }

    /// Whether a packet of `copies` copies and `slots` slots still fits.
    #[inline]
    pub(super) fn fits(&self, copies: usize, slots: u32) -> bool {
        self.copies.room() >= copies && self.slots.remaining_capacity() >= slots as usize
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// [`add`](Self::add) for a frame that [is short](is_short): it takes one slot.
    #[inline]
    pub(super) fn add_short(
        &mut self,
        ring: &mut RxRing<H>,
        buffers: &'a Buffers<'_, H>,
        frame: &'a Frame,
        memory: &'a Memory<'_, H::Peer>,
    ) {
        let request = ring.next();
        let offset = self.placement.offset(ring.consumed(), frame.len);
        let slot = slot_of(ring.consumed());
        ring.consume();
        let buffer = buffers.find(GrantRef(request.gref), slot);
        let header = Source::Private(frame.header());
        self.copies.push(header, buffer.from(offset), frame.header_len.into());
        let mut filled = u16::from(frame.header_len);
        for fragment in &frame.fragments {
            let dest = buffer.from(offset + filled);
            self.copies.push(memory.source(fragment, 0, fragment.len), dest, fragment.len);
            filled += fragment.len;
        }
        self.slots.push(Planned::Data {
            id: if buffers.is_pool() { slot } else { request.id },
            offset,
            len: filled,
            flags: flags_of(frame.checksum) | pool_flag(buffers),
            copies: frame.fragments.len() as u8 + 1,
        });
    }

    /// Reserves the slots of one packet and adds the copies that fill them. `next` returns the
    /// packet's runs, each of at most as many bytes as its argument says. The caller has checked that all of it fits.
    #[inline]
    pub(super) fn add(
        &mut self,
        ring: &mut RxRing<H>,
        buffers: &'a Buffers<'_, H>,
        packet: PacketShape,
        next: impl FnMut(u16) -> Option<(Source<'a, H::Peer>, u16)>,
    ) {
        self.add_in::<false>(ring, buffers, packet, &[], next);
    }

    /// The same, in slots of this layout, if `LAID_OUT`. Full slots do without one.
    #[inline]
    #[expect(
        clippy::too_many_arguments,
        reason = "with the buffers in the plan, frames of 64 KiB cost up to 2 % more"
    )]
    pub(super) fn add_in<const LAID_OUT: bool>(
        &mut self,
        ring: &mut RxRing<H>,
        buffers: &'a Buffers<'_, H>,
        packet: PacketShape,
        layout: &[u16],
        mut next: impl FnMut(u16) -> Option<(Source<'a, H::Peer>, u16)>,
    ) {
        let PacketShape { len, flags, asked, .. } = packet;
        let mut left = len;
        let mut first = true;
        let mut layout = layout.iter();
        let mut offset = match asked.headroom {
            0 => self.placement.offset(ring.consumed(), len),
            headroom => headroom,
        };
        while left > 0 {
            let request = ring.next();
            let index = ring.consumed();
            ring.consume();
            // At most a page.
            let room = left.min(PAGE_SIZE as u32 - u32::from(offset)) as u16;
            let size = match LAID_OUT {
                true => layout.next().map_or(room, |size| room.min(*size)),
                false => room,
            };
            left -= u32::from(size);
            let slot = slot_of(index);
            let buffer = buffers.find(GrantRef(request.gref), slot);
            let before = self.copies.len();
            let mut filled = 0;
            while filled < size {
                let Some((source, run)) = next(size - filled) else { break };
                self.copies.push(source, buffer.from(offset + filled), run);
                filled += run;
            }
            let more = if left > 0 { rx_flags::MORE_DATA } else { 0 };
            let extras = match first {
                true => packet.extras(packet.gso.map_or(0, |_| ring.id_of_extra())),
                false => Extras::new(),
            };
            let announced = if extras.is_empty() { 0 } else { rx_flags::EXTRA_INFO };
            self.slots.push(Planned::Data {
                id: if buffers.is_pool() { slot } else { request.id },
                offset,
                len: size,
                flags: if first { flags } else { 0 } | more | announced | pool_flag(buffers),
                copies: (self.copies.len() - before) as u8,
            });
            for info in extras.iter().copied() {
                ring.consume();
                self.slots.push(Planned::Extra(info));
            }
            (first, offset) = (false, 0);
        }
    }

    /// Performs the copies and writes the responses. `each` is called for each slot
    /// in order, with the error of its copies, if there was one.
    #[inline]
    pub(super) fn perform(
        &mut self,
        hypervisor: &H,
        ring: &mut RxRing<H>,
        mut each: impl FnMut(Option<Outcome>),
    ) {
        let all_done = hypervisor.perform(&mut self.copies);
        let mut done = 0;
        for slot in &self.slots {
            let fault = match slot {
                Planned::Data { copies, .. } if !all_done => {
                    let copies = done..done + usize::from(*copies);
                    done = copies.end;
                    copies.filter_map(|n| fault_of(self.copies.status(n))).last()
                }
                _ => None,
            };
            respond(ring, slot, fault);
            each(fault);
        }
    }
}

/// What a copy's failure makes of its frame.
fn fault_of(status: CopyStatus) -> Option<Outcome> {
    match status {
        CopyStatus::Okay => None,
        CopyStatus::BadSource => Some(Outcome::SourceFault),
        CopyStatus::BadDest => Some(Outcome::Dropped(DropReason::MemoryFault)),
    }
}

/// Writes one response.
#[inline(always)]
fn respond(ring: &mut PostedRing<impl SharedPage>, slot: &Planned, fault: Option<Outcome>) {
    match slot {
        Planned::Extra(info) => ring.respond(zerocopy::transmute!(*info)),
        Planned::Data { id, offset, len, flags, .. } => {
            // A page's length fits the status.
            let status = if fault.is_none() { *len as i16 } else { status::ERROR };
            ring.respond(RxResponse { id: *id, offset: *offset, flags: *flags, status });
        }
    }
}

/// Whether a frame fits one buffer and needs no offload, as most frames do.
#[inline]
pub(super) fn is_short(frame: &Frame) -> bool {
    frame.gso.is_none() && !frame.checksum.is_incomplete() && frame.len <= SHORT_MAX
}

/// The slot of a request.
#[inline]
fn slot_of(index: u32) -> u16 {
    // Below the ring's length.
    (index % Rx::COUNT) as u16
}

/// The flag of a response whose bytes the guest copies out of a pool.
#[inline]
fn pool_flag<H: Hypervisor>(buffers: &Buffers<'_, H>) -> u16 {
    if buffers.is_pool() { GUEST_COPY } else { 0 }
}

#[inline]
fn flags_of(checksum: Checksum) -> u16 {
    let (blank, validated) = checksum.to_flags();
    let bit = |on, bit| if on { bit } else { 0 };
    bit(blank, rx_flags::CSUM_BLANK) | bit(validated, rx_flags::DATA_VALIDATED)
}

#[cfg(test)]
mod tests {
    use hypervisor::Granted;
    use proptest::prelude::*;

    use super::*;

    fn frame(header: u8, fragments: &[u16]) -> Frame {
        let mut frame = Frame::empty();
        frame.header_len = header;
        frame.len = u32::from(header) + fragments.iter().map(|len| u32::from(*len)).sum::<u32>();
        let granted = Granted { gref: GrantRef(9), offset: 0, mapped: None };
        frame.fragments.extend(fragments.iter().map(|len| Fragment::granted(granted, *len)));
        frame
    }

    proptest! {
        #[test]
        fn no_fragment_of_a_layout_is_cut(
            header in 1u8..=128,
            fragments in prop::collection::vec(prop_oneof![1u16..4096, Just(4096)], 0..15),
        ) {
            let frame = frame(header, &fragments);
            let layout = layout_of(&frame);
            if !layout.is_empty() {
                let sum = |lens: &[u16]| lens.iter().map(|len| u32::from(*len)).sum::<u32>();
                prop_assert_eq!(sum(&layout), frame.len);
                prop_assert!(layout.iter().all(|len| (1..=4096).contains(len)));
                prop_assert!(layout.len() <= frame.len.div_ceil(4096) as usize + 1);
                let ends: Vec<u32> = (0..=fragments.len()).map(|n| u32::from(header) + sum(&fragments[..n])).collect();
                prop_assert!((1..=layout.len()).all(|n| ends.contains(&sum(&layout[..n]))));
            }
        }
    }

    #[test]
    fn slots_end_with_pages_where_that_takes_one_slot_more_at_most() {
        let full = [4096; 15];
        let stream = |first: u16, last: u16| {
            layout_of(&frame(128, &[&[first][..], &full[..14], &[last]].concat()))
        };
        assert_eq!(stream(1000, 50)[..2], [1128, 4096]);
        assert_eq!(stream(1000, 50).len(), 16);
        // The header and the first page do not fit one slot.
        assert_eq!(stream(4000, 4000)[..3], [128, 4000, 4096]);
        assert_eq!(layout_of(&frame(128, &[4000; 3])).len(), 0, "short");
        // Many pages that are little filled.
        assert_eq!(layout_of(&frame(128, &[2100; 15])).len(), 0);
        let mut mapped = frame(128, &full);
        mapped.fragments[3] = Fragment::in_region(0, 0, 4096);
        assert_eq!(layout_of(&mapped).len(), 0);
    }
}

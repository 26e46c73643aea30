//! How a TX queue reads the headers of its packets, and the memory that their bodies lie in.

#![expect(
    clippy::cast_possible_truncation,
    reason = "lengths of private headers are bytes, as is asserted"
)]

use std::sync::Arc;

use arrayvec::ArrayVec;
use frame::{Body, FRAGMENTS_MAX, Frame, HEADER_MAX, Place, SHORT_MAX, WINDOW, Window};
use hypervisor::{
    COPIES_MAX, Copies as _, CopyStatus, Dest, GrantedMemory, Hypervisor, MappedGrants,
    MappedPages, PAGE_SIZE, PeerMemory,
};
use ring::Slots;
use ring::netif::Tx;
use wire::netif::header_channel;

use crate::GrantUse;
use crate::grant_cache::GrantCache;
use crate::persistent::{FragmentsInUse, Pages};
use crate::remap::Remapped;

/// Where a TX queue reads its packets' headers.
enum HeaderSource<H: Hypervisor> {
    /// From grant copies.
    GrantCopy,
    /// From the header pages that the frontend fills.
    HeaderPages(H::Mapping),
    /// From mappings of all pages of each packet, until it is done.
    Remap(Remapped<H>),
    /// From the cache, which maps all pages of each packet and keeps them mapped.
    Cache,
}

/// The pages of packets that stay mapped: copies from there need no hypercall.
pub(crate) enum KeptPages<H: Hypervisor> {
    None,
    /// Those that the frontend wants mapped.
    Agreed(FragmentsInUse<H>),
    /// Those that the backend keeps on demand.
    OnDemand(GrantCache<H>),
}

/// How a TX queue reaches its packets' bytes.
pub(crate) struct PacketAccess<H: Hypervisor> {
    /// The frontend's memory.
    memory: Arc<PeerMemory<H>>,
    /// The same, for ports of any platform.
    shared: Arc<dyn GrantedMemory>,
    headers: HeaderSource<H>,
    kept: KeptPages<H>,
    /// The longest packet that becomes private as a whole.
    whole_max: u8,
}

impl<H: Hypervisor> PacketAccess<H> {
    fn new(hypervisor: &H, peer: &H::Peer, headers: HeaderSource<H>, kept: KeptPages<H>) -> Self {
        let (hypervisor, peer) = (hypervisor.clone(), peer.clone());
        let memory = Arc::new(PeerMemory { hypervisor, peer });
        // A header that is copied by a hypercall of its own brings a short packet whole.
        let whole_max = match (&headers, &kept) {
            (HeaderSource::GrantCopy, KeptPages::None) => SHORT_MAX as u8,
            _ => HEADER_MAX as u8,
        };
        Self { shared: memory.clone(), memory, headers, kept, whole_max }
    }

    /// Access by mapping the packets of `peer`, each anew or in a cache of their pages.
    pub(crate) fn by_remap(
        hypervisor: &H,
        peer: &H::Peer,
        cache: Option<GrantCache<H>>,
    ) -> Result<Self, hypervisor::Error> {
        let (headers, kept) = match cache {
            Some(cache) => (HeaderSource::Cache, KeptPages::OnDemand(cache)),
            None => (HeaderSource::Remap(Remapped::new(hypervisor, peer)?), KeptPages::None),
        };
        Ok(Self::new(hypervisor, peer, headers, kept))
    }

    /// Access by copying the headers of packets of `peer`: from header pages, if it has some. Some
    /// of its pages may stay mapped.
    pub(crate) fn by_copy(
        hypervisor: &H,
        peer: &H::Peer,
        pages: Option<H::Mapping>,
        kept: KeptPages<H>,
    ) -> Self {
        let headers = pages.map_or(HeaderSource::GrantCopy, HeaderSource::HeaderPages);
        Self::new(hypervisor, peer, headers, kept)
    }

    /// The platform.
    pub(crate) fn hypervisor(&self) -> &H {
        &self.memory.hypervisor
    }

    /// How pages that stay mapped are used, if some may.
    pub(crate) fn usage(&self) -> Option<&Arc<GrantUse>> {
        match &self.kept {
            KeptPages::None => None,
            KeptPages::Agreed(grants) => Some(grants.usage()),
            KeptPages::OnDemand(cache) => Some(cache.usage()),
        }
    }

    /// Whether headers come beside the ring.
    pub(crate) fn has_header_pages(&self) -> bool {
        matches!(self.headers, HeaderSource::HeaderPages(_))
    }

    /// The most bytes of a packet that come beside the ring instead of in its fragments.
    #[inline]
    pub(crate) fn header_max(&self) -> u16 {
        match self.headers {
            HeaderSource::HeaderPages(_) => header_channel::HEADER_LEN,
            HeaderSource::GrantCopy | HeaderSource::Remap(_) | HeaderSource::Cache => 0,
        }
    }

    /// How many bytes of a packet of `len` bytes become private.
    #[inline]
    pub(crate) fn private_len(&self, len: u16) -> u8 {
        if len <= self.whole_max.into() { len as u8 } else { HEADER_MAX as u8 }
    }

    /// The same for a packet that is to be segmented, whose first fragment has `first` bytes: kernels put its headers there, and nothing else, so that one
    /// copy brings them.
    #[inline]
    pub(crate) fn private_len_before_segments(&self, len: u16, first: u16) -> u8 {
        let private = self.private_len(len);
        let has_headers = (HEADERS_MIN..private.into()).contains(&first);
        match self.headers {
            HeaderSource::GrantCopy if has_headers => first as u8,
            _ => private,
        }
    }

    /// Copies the header that came beside request `index`. This is its only read. Does nothing
    /// without header pages.
    #[inline]
    pub(crate) fn read_header_page(&self, index: u32, frame: &mut Frame) {
        if let HeaderSource::HeaderPages(pages) = &self.headers {
            let header = &mut frame.bytes[..usize::from(frame.header_len)];
            // This cannot fail: every index has a place in the mapped pages.
            let _ = pages.copy_out(header_channel::place(index), header);
        }
    }

    /// Prefetches the headers of the requests from `index` on.
    #[inline]
    pub(crate) fn prefetch(&self, index: u32, requests: u32) {
        if let HeaderSource::HeaderPages(pages) = &self.headers {
            for n in 0..requests.min(PREFETCHED) {
                let place = header_channel::place(index.wrapping_add(n));
                pages.prefetch(place);
                pages.prefetch(place + CACHE_LINE);
            }
        }
    }

    /// Calls `work` with the memory that the frames' fragments lie in, for one batch. Mapped
    /// pages stay mapped until it returns.
    #[inline]
    pub(crate) fn with_body<R>(&self, work: impl FnOnce(Body<'_>) -> R) -> R {
        let memory = &self.shared;
        let granted = |mapped| Body::Granted { memory, mapped };
        match (&self.headers, &self.kept) {
            (HeaderSource::Remap(remapped), _) => work(granted(Some(remapped.pages()))),
            (_, KeptPages::OnDemand(cache)) => work(granted(Some(cache.pages()))),
            (_, KeptPages::Agreed(grants)) => {
                let pages = grants.pages();
                work(granted(pages.as_ref().map(Pages::mapped)))
            }
            (_, KeptPages::None) => work(granted(None)),
        }
    }

    /// Copies the headers of the frames in `fresh` into their private copies, and removes these bytes
    /// from the fragments. Returns the slots of frames whose memory cannot be read.
    #[inline]
    pub(crate) fn fetch_headers(&mut self, window: &mut Window, fresh: u64) -> u64 {
        let memory = &*self.memory;
        let unreadable = match (&mut self.headers, &mut self.kept) {
            (HeaderSource::Remap(remapped), _) => {
                remapped.map_all(&memory.hypervisor, window, fresh)
            }
            (HeaderSource::Cache, KeptPages::OnDemand(cache)) => cache.map_all(window, fresh),
            (headers, kept) => {
                match kept {
                    KeptPages::None => {}
                    KeptPages::Agreed(grants) => grants.take(window, fresh),
                    KeptPages::OnDemand(cache) => cache.take(window, fresh),
                }
                if matches!(headers, HeaderSource::HeaderPages(_)) {
                    return 0;
                }
                copy_headers(memory, kept, window, fresh, |_| 0)
            }
        };
        for (_, frame) in window.in_slots(fresh) {
            release_removed(&mut self.kept, frame, 0);
        }
        unreadable
    }

    /// Copies more of the headers of the frames in `cut`, in which a part [of them](Self::private_len_before_segments) was missing. Returns the slots of
    /// frames whose memory cannot be read.
    #[cold]
    pub(crate) fn complete_headers(&mut self, window: &mut Window, cut: u64) -> u64 {
        let known: ArrayVec<u8, WINDOW> = window
            .in_slots(cut)
            .map(|(_, frame)| {
                let private = frame.len.min(HEADER_MAX as u32) as u8;
                std::mem::replace(&mut frame.header_len, private)
            })
            .collect();
        let unreadable = copy_headers(&self.memory, &self.kept, window, cut, |n| known[n]);
        for ((_, frame), known) in window.in_slots(cut).zip(known) {
            release_removed(&mut self.kept, frame, known);
        }
        unreadable
    }

    /// Unmaps or releases the pages of the frame in `slot`. Most frames have none.
    #[inline(always)]
    pub(crate) fn release(&mut self, slot: u8, frame: &Frame) {
        if matches!(self.headers, HeaderSource::Remap(_)) {
            self.unmap(slot);
        }
        if let (KeptPages::Agreed(grants), false) = (&mut self.kept, frame.fragments.is_empty()) {
            grants.release(frame.fragments.iter().copied());
        }
    }

    #[cold]
    fn unmap(&mut self, slot: u8) {
        if let HeaderSource::Remap(remapped) = &mut self.headers {
            remapped.unmap(&self.memory.hypervisor, slot);
        }
    }
}

/// Headers to prefetch: they come from another core's cache.
const PREFETCHED: u32 = 8;
const CACHE_LINE: usize = 64;

/// Headers of Ethernet, IPv4 and TCP without options, which are the shortest.
const HEADERS_MIN: u16 = 54;

/// Whether a packet's private header ends where its first fragment ends, and may lack a part of its headers.
#[inline]
pub(crate) fn is_cut(frame: &Frame) -> bool {
    usize::from(frame.header_len) < HEADER_MAX && u32::from(frame.header_len) < frame.len
}

/// Takes a frame's header behind the first `known` bytes off its fragments, and releases those that had nothing else.
#[inline]
fn release_removed<H: Hypervisor>(kept: &mut KeptPages<H>, frame: &mut Frame, known: u8) {
    let removed = frame.skip_header(known);
    if let KeptPages::Agreed(grants) = kept {
        grants.release(removed);
    }
}

/// Copies the header bytes of the frames in `slots` into their private copies, across fragments
/// where they are split (XSA-423), but for the first ones of each, `known` by its place among them. Returns the slots of frames whose memory cannot be read.
fn copy_headers<H: Hypervisor>(
    memory: &PeerMemory<H>,
    kept: &KeptPages<H>,
    window: &mut Window,
    slots: u64,
    known: impl Fn(usize) -> u8,
) -> u64 {
    match kept {
        KeptPages::None => copy_from(memory, None, window, slots, known),
        KeptPages::Agreed(grants) => {
            let pages = grants.pages();
            copy_from(memory, pages.as_ref().map(Pages::mapped), window, slots, known)
        }
        KeptPages::OnDemand(cache) => copy_from(memory, Some(cache.pages()), window, slots, known),
    }
}

/// The same, from pages of which some may be mapped.
fn copy_from<H: Hypervisor>(
    memory: &PeerMemory<H>,
    mapped: Option<MappedPages<'_>>,
    window: &mut Window,
    fresh: u64,
    known: impl Fn(usize) -> u8,
) -> u64 {
    let PeerMemory { hypervisor, peer } = memory;
    let mapped = mapped.map(|pages| MappedGrants { peer, pages });
    let mut copies = H::Copies::default();
    let mut slots = ArrayVec::<u8, COPIES_MAX>::new();
    let mut unreadable = 0;
    let mut flush = |copies: &mut H::Copies<'_>, slots: &mut ArrayVec<u8, COPIES_MAX>| {
        if !hypervisor.perform(copies) {
            for (n, slot) in slots.iter().enumerate() {
                unreadable |= u64::from(copies.status(n) != CopyStatus::Okay) << slot;
            }
        }
        copies.clear();
        slots.clear();
    };
    for (n, (slot, frame)) in window.in_slots(fresh).enumerate() {
        if copies.room() < FRAGMENTS_MAX {
            flush(&mut copies, &mut slots);
        }
        let (_, header) =
            frame.bytes[..usize::from(frame.header_len)].split_at_mut(known(n).into());
        let mut rest = header;
        for fragment in &frame.fragments {
            let (Place::Grant(granted), false) = (fragment.place, rest.is_empty()) else { break };
            // At most SHORT_MAX, or a fragment.
            let len = u16::try_from(rest.len()).unwrap_or(fragment.len).min(fragment.len);
            let (part, after) = rest.split_at_mut(len.into());
            copies.push(granted.source(peer, mapped.as_ref(), len), Dest::Private(part), len);
            slots.push(slot);
            rest = after;
        }
    }
    flush(&mut copies, &mut slots);
    unreadable
}

// Nearly every frame needs one copy.
const _: () = assert!(WINDOW + FRAGMENTS_MAX <= COPIES_MAX);
// A header from the header pages fits the frame's private copy.
const _: () = assert!(header_channel::HEADER_LEN as usize == HEADER_MAX);
// The length of a private header is a byte.
const _: () = assert!(HEADER_MAX <= SHORT_MAX && SHORT_MAX <= u8::MAX as usize);
// Every request of a ring has a place in the header pages.
const _: () = assert!(header_channel::PAGES * PAGE_SIZE == Tx::COUNT as usize * HEADER_MAX);

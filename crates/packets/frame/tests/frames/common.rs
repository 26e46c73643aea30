//! Memory that a test grants or maps, and frames in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use frame::{Body, FRAGMENTS_MAX, Fragment, Frame, HEADER_MAX};
use hypervisor::{
    CopyOut, DmaHold, DmaRange, GrantRef, Granted, GrantedMemory, MappedPages, PAGE_SIZE, Target,
};
use proptest::prelude::*;
use shm::Region;

/// Pages that are granted, and as many in a second region.
pub const PAGES: usize = 24;
/// The first grant's reference.
const FIRST: u32 = 1000;

/// A domain whose pages lie in one region.
pub struct Pages(pub Region);

impl Pages {
    /// Where granted bytes lie.
    pub fn find(&self, bytes: Granted, len: usize) -> Option<usize> {
        let page = bytes.gref.0.checked_sub(FIRST)? as usize;
        let end = usize::from(bytes.offset) + len;
        (page < PAGES && end <= PAGE_SIZE).then(|| page * PAGE_SIZE + usize::from(bytes.offset))
    }
}

impl GrantedMemory for Pages {
    fn copy_out(&self, _: Option<MappedPages<'_>>, batch: &[CopyOut], to: &mut Target<'_>) -> bool {
        batch.iter().fold(true, |readable, CopyOut { from, at, len }| {
            let len = usize::from(*len);
            let found = self.find(*from, len);
            let copied = found.is_some_and(|offset| to.fill(*at as usize, len, &self.0, offset));
            readable && copied
        })
    }

    fn dma_map<'a>(&'a self, _: Option<MappedPages<'a>>, batch: &mut [DmaRange<'a>]) {
        for DmaRange { from, len, address } in batch {
            let len = usize::from(*len);
            *address = self.find(*from, len).map(|offset| shm::Iovec::Shared {
                region: &self.0,
                offset,
                len,
            });
        }
    }

    fn dma_hold(&self) -> Option<DmaHold> {
        None
    }
}

/// The same. Counts the pages that bytes are copied to: a hypervisor copies from page to page.
pub struct CountedPages {
    pub pages: Pages,
    pub filled: Arc<AtomicUsize>,
}

impl GrantedMemory for CountedPages {
    fn copy_out(
        &self,
        mapped: Option<MappedPages<'_>>,
        batch: &[CopyOut],
        to: &mut Target<'_>,
    ) -> bool {
        for CopyOut { at, len, .. } in batch {
            let start = match to {
                Target::Private(bytes) => bytes.as_ptr().addr() + *at as usize,
                Target::Mapped(region) => region.address(*at as usize, 0).unwrap().addr(),
            };
            let end = start % PAGE_SIZE + usize::from(*len);
            self.filled.fetch_add(end.div_ceil(PAGE_SIZE), Ordering::Relaxed);
        }
        self.pages.copy_out(mapped, batch, to)
    }

    fn dma_map<'a>(&'a self, mapped: Option<MappedPages<'a>>, batch: &mut [DmaRange<'a>]) {
        self.pages.dma_map(mapped, batch);
    }

    fn dma_hold(&self) -> Option<DmaHold> {
        None
    }
}

/// Memory that frames lie in: granted, or mapped as two regions.
pub enum Sender {
    Granted(Arc<dyn GrantedMemory>),
    Mapped(Arc<[Region]>),
}

impl Sender {
    pub fn body(&self) -> Body<'_> {
        match self {
            Self::Granted(memory) => Body::Granted { memory, mapped: None },
            Self::Mapped(regions) => Body::Regions(regions),
        }
    }
}

/// Where the bytes of a fragment lie: a page, an offset in it, and a length.
pub type At = (usize, usize, usize);

/// Fragments, each within a page of its own.
pub fn fragments() -> impl Strategy<Value = Vec<At>> {
    let at = (0..PAGE_SIZE, 0..=PAGE_SIZE)
        .prop_map(|(offset, len)| (offset, len.min(PAGE_SIZE - offset)));
    prop::collection::vec(at, 0..=FRAGMENTS_MAX - 2)
        .prop_map(|list| (0..).zip(list).map(|(page, (offset, len))| (page, offset, len)).collect())
}

/// Puts the bytes of `body` into `region`, where `fragments` say.
fn fill(region: &Region, fragments: &[At], mut body: &[u8]) {
    for (page, offset, len) in fragments {
        let (part, rest) = body.split_at(*len);
        region.copy_in(page * PAGE_SIZE + offset, part).unwrap();
        body = rest;
    }
}

/// The frame of `bytes`, its body in granted pages. Its headers are not parsed.
pub fn granted(bytes: &[u8], header: usize, places: &[At]) -> (Frame, Sender) {
    let (frame, pages) = in_pages(bytes, header, places);
    (frame, Sender::Granted(Arc::new(pages)))
}

/// The same, with the pages.
pub fn in_pages(bytes: &[u8], header: usize, places: &[At]) -> (Frame, Pages) {
    let pages = Pages(Region::anonymous(PAGES * PAGE_SIZE).unwrap());
    fill(&pages.0, places, &bytes[header..]);
    let frame = describe(bytes, header, places, |page, offset, len| {
        let gref = GrantRef(FIRST + u32::try_from(page).unwrap());
        let offset = u16::try_from(offset).unwrap();
        Fragment::granted(Granted { gref, offset, mapped: None }, len)
    });
    (frame, pages)
}

/// The same, with every other page in the second of two regions.
pub fn mapped(bytes: &[u8], header: usize, places: &[At]) -> (Frame, Sender) {
    let regions = [(); 2].map(|()| Region::anonymous(PAGES * PAGE_SIZE).unwrap());
    let mut body = &bytes[header..];
    for at in places {
        let (part, rest) = body.split_at(at.2);
        fill(&regions[at.0 % 2], &[*at], part);
        body = rest;
    }
    let frame = describe(bytes, header, places, |page, offset, len| {
        let index = u16::try_from(page % 2).unwrap();
        Fragment::in_region(index, (page * PAGE_SIZE + offset) as u64, len)
    });
    (frame, Sender::Mapped(regions.into()))
}

fn describe(
    bytes: &[u8],
    header: usize,
    places: &[At],
    fragment: impl Fn(usize, usize, u16) -> Fragment,
) -> Frame {
    assert!(header <= HEADER_MAX);
    let mut frame = Frame::empty();
    frame.bytes[..header].copy_from_slice(&bytes[..header]);
    frame.header_len = u8::try_from(header).unwrap();
    frame.len = u32::try_from(bytes.len()).unwrap();
    let fragment = |at: &At| fragment(at.0, at.1, u16::try_from(at.2).unwrap());
    frame.fragments.extend(places.iter().map(fragment));
    frame
}

/// `len` bytes that look like nothing else.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_le_bytes()[7]
    };
    std::iter::repeat_with(next).take(len).collect()
}

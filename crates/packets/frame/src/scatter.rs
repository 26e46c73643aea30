//! A frame as the places where a device finds its bytes.

use std::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;
use hypervisor::{DmaHold, DmaRange};
use shm::{Iovec, Region};

use crate::{Body, FRAGMENTS_MAX, Frame, Place, Run};

/// A frame's private header and its fragments.
const PLACES_MAX: usize = 1 + FRAGMENTS_MAX;

/// Where a device finds a frame's bytes, in order: the private header, then the fragments.
#[derive(Debug)]
pub struct ScatterList<'a> {
    iovecs: ArrayVec<Iovec<'a>, PLACES_MAX>,
    /// Those of the frame's tail, which few frames have.
    tail: Vec<Iovec<'a>>,
}

/// What keeps a frame's body readable for a device after the call that delivered it.
#[derive(Debug)]
pub enum BodyHold {
    /// Granted pages.
    Granted(DmaHold),
    /// Memory mapped in this domain.
    Regions(Arc<[Region]>),
}

impl<'a> ScatterList<'a> {
    /// Finds the addresses of a frame's bytes, in one batch. None if a grant does not permit
    /// it, or if the sender's platform has no addresses for devices.
    ///
    /// The addresses are valid during this call only.
    #[must_use]
    pub fn of(frame: &'a Frame, body: Body<'a>) -> Option<Self> {
        let mut iovecs = ArrayVec::new();
        if frame.header_len > 0 {
            iovecs.push(Iovec::Private(frame.header()));
        }
        match body {
            Body::Granted { memory, mapped } => {
                if !memory.has_addresses(mapped) {
                    return None;
                }
                let mut ranges = ArrayVec::<DmaRange<'a>, FRAGMENTS_MAX>::new();
                for fragment in &frame.fragments {
                    let Place::Grant(granted) = fragment.place else { return None };
                    ranges.push(DmaRange::new(granted, fragment.len));
                }
                memory.dma_map(mapped, &mut ranges);
                for range in &ranges {
                    iovecs.push(range.address?);
                }
            }
            Body::Regions(_) | Body::Buffers(_) => {
                let regions = body.regions()?;
                for fragment in &frame.fragments {
                    iovecs.push(in_region(fragment, regions)?);
                }
            }
        }
        let tail = if frame.tail.is_some() { places_of_tail(frame, body)? } else { Vec::new() };
        Some(Self { iovecs, tail })
    }

    /// The same for a device that reads the body after this call: the addresses are valid as long
    /// as the hold lives. None also if the sender's platform has no holds. The caller must copy
    /// the header.
    #[must_use]
    pub fn held(frame: &'a Frame, body: Body<'a>) -> Option<(Self, BodyHold)> {
        // Held before the grants are checked: a page that is given up in between is refused.
        let hold = match body {
            Body::Granted { memory, .. } => BodyHold::Granted(memory.dma_hold()?),
            Body::Regions(_) | Body::Buffers(_) => BodyHold::Regions(Arc::clone(body.regions()?)),
        };
        Some((Self::of(frame, body)?, hold))
    }

    /// The whole frame.
    pub fn all(&self) -> impl Iterator<Item = Iovec<'a>> {
        self.iovecs.iter().chain(&self.tail).copied()
    }

    /// Where the frame's bytes in `range` lie.
    pub fn range(&self, range: Range<usize>) -> impl Iterator<Item = Iovec<'a>> {
        let mut end = 0;
        self.iovecs.iter().chain(&self.tail).filter_map(move |iovec| {
            let start = end;
            end += len(iovec);
            let within = range.start.max(start)..range.end.min(end);
            (!within.is_empty()).then(|| cut(*iovec, within.start - start..within.end - start))
        })
    }
}

/// Where a fragment of mapped memory lies.
#[inline]
fn in_region<'a>(fragment: &crate::Fragment, regions: &'a [Region]) -> Option<Iovec<'a>> {
    let Place::Region { index, offset } = fragment.place else { return None };
    let region = regions.get(usize::from(index))?;
    Some(Iovec::Shared { region, offset: offset.index(), len: fragment.len.into() })
}

/// Where the bytes of a frame's tail lie.
#[cold]
fn places_of_tail<'a>(frame: &'a Frame, body: Body<'a>) -> Option<Vec<Iovec<'a>>> {
    let runs = || frame.runs().skip(frame.fragments.len());
    let mut ranges = Vec::new();
    if let Body::Granted { memory, mapped } = body {
        for run in runs() {
            let Run::Fragment(fragment) = run else { continue };
            let Place::Grant(granted) = fragment.place else { return None };
            ranges.push(DmaRange::new(granted, fragment.len));
        }
        memory.dma_map(mapped, &mut ranges);
    }
    let mut ranges = ranges.iter();
    runs()
        .map(|run| match (run, body.regions()) {
            (Run::Private(bytes), _) => Some(Iovec::Private(bytes)),
            (Run::Fragment(fragment), Some(regions)) => in_region(fragment, regions),
            (Run::Fragment(_), None) => ranges.next()?.address,
        })
        .collect()
}

fn len(iovec: &Iovec<'_>) -> usize {
    match iovec {
        Iovec::Shared { len, .. } => *len,
        Iovec::Private(bytes) => bytes.len(),
    }
}

/// The bytes of `iovec` in `range`, which lies in it.
fn cut(iovec: Iovec<'_>, range: Range<usize>) -> Iovec<'_> {
    match iovec {
        Iovec::Shared { region, offset, .. } => {
            Iovec::Shared { region, offset: offset + range.start, len: range.len() }
        }
        Iovec::Private(bytes) => Iovec::Private(&bytes[range]),
    }
}

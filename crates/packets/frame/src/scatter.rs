//! A frame as the places where a device finds its bytes.

use std::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;
use hypervisor::{DmaHold, DmaRange};
use shm::{Piece, Region};

use crate::{Body, Frame, PIECES_MAX, Place, Run};

/// A frame's private header and its pieces.
const PLACES_MAX: usize = 1 + PIECES_MAX;

/// Where a device finds a frame's bytes, in order: the private header, then the pieces.
#[derive(Debug)]
pub struct ScatterList<'a> {
    pieces: ArrayVec<Piece<'a>, PLACES_MAX>,
    /// Those of the frame's tail, which few frames have.
    tail: Vec<Piece<'a>>,
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
        let mut pieces = ArrayVec::new();
        if frame.header_len > 0 {
            pieces.push(Piece::Private(frame.header()));
        }
        match body {
            Body::Granted { memory, mapped } => {
                let mut ranges = ArrayVec::<DmaRange<'a>, PIECES_MAX>::new();
                for piece in &frame.pieces {
                    let Place::Grant(granted) = piece.place else { return None };
                    ranges.push(DmaRange::new(granted, piece.len));
                }
                memory.dma_map(mapped, &mut ranges);
                for range in &ranges {
                    pieces.push(range.address?);
                }
            }
            Body::Regions(_) | Body::Buffers(_) => {
                let regions = body.regions()?;
                for piece in &frame.pieces {
                    pieces.push(in_region(piece, regions)?);
                }
            }
        }
        let tail = if frame.tail.is_some() { places_of_tail(frame, body)? } else { Vec::new() };
        Some(Self { pieces, tail })
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
    pub fn all(&self) -> impl Iterator<Item = Piece<'a>> {
        self.pieces.iter().chain(&self.tail).copied()
    }

    /// Where the frame's bytes in `range` lie.
    pub fn range(&self, range: Range<usize>) -> impl Iterator<Item = Piece<'a>> {
        let mut end = 0;
        self.pieces.iter().chain(&self.tail).filter_map(move |piece| {
            let start = end;
            end += len(piece);
            let within = range.start.max(start)..range.end.min(end);
            (!within.is_empty()).then(|| cut(*piece, within.start - start..within.end - start))
        })
    }
}

/// Where a piece of mapped memory lies.
#[inline]
fn in_region<'a>(piece: &crate::Piece, regions: &'a [Region]) -> Option<Piece<'a>> {
    let Place::Region { index, offset } = piece.place else { return None };
    let region = regions.get(usize::from(index))?;
    Some(Piece::Shared { region, offset: usize::try_from(offset).ok()?, len: piece.len.into() })
}

/// Where the bytes of a frame's tail lie.
#[cold]
fn places_of_tail<'a>(frame: &'a Frame, body: Body<'a>) -> Option<Vec<Piece<'a>>> {
    let runs = || frame.runs().skip(frame.pieces.len());
    let mut ranges = Vec::new();
    if let Body::Granted { memory, mapped } = body {
        for run in runs() {
            let Run::Piece(piece) = run else { continue };
            let Place::Grant(granted) = piece.place else { return None };
            ranges.push(DmaRange::new(granted, piece.len));
        }
        memory.dma_map(mapped, &mut ranges);
    }
    let mut ranges = ranges.iter();
    runs()
        .map(|run| match (run, body.regions()) {
            (Run::Private(bytes), _) => Some(Piece::Private(bytes)),
            (Run::Piece(piece), Some(regions)) => in_region(piece, regions),
            (Run::Piece(_), None) => ranges.next()?.address,
        })
        .collect()
}

fn len(piece: &Piece<'_>) -> usize {
    match piece {
        Piece::Shared { len, .. } => *len,
        Piece::Private(bytes) => bytes.len(),
    }
}

/// The bytes of `piece` in `range`, which lies in it.
fn cut(piece: Piece<'_>, range: Range<usize>) -> Piece<'_> {
    match piece {
        Piece::Shared { region, offset, .. } => {
            Piece::Shared { region, offset: offset + range.start, len: range.len() }
        }
        Piece::Private(bytes) => Piece::Private(&bytes[range]),
    }
}

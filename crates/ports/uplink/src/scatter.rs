//! A frame as the places where a device finds its bytes.

use std::ops::Range;

use arrayvec::ArrayVec;
use frame::{Body, Frame, Gather, PIECES_MAX};
use hypervisor::{DmaRead, Hypervisor};
use shm::Piece;

/// A frame's private header and its pieces.
const PLACES_MAX: usize = 1 + PIECES_MAX;

/// Where a device finds a frame's bytes, in order.
pub(crate) struct ScatterList<'a>(ArrayVec<Piece<'a>, PLACES_MAX>);

impl<'a> ScatterList<'a> {
    /// Asks for the addresses of a frame's bytes, in one batch. None where a grant does not permit
    /// it, or the platform has no addresses to give.
    pub(crate) fn of<H: Hypervisor>(
        hypervisor: &H,
        frame: &'a Frame,
        body: Body<'a, H::Peer>,
    ) -> Option<Self> {
        let mut reads = ArrayVec::<DmaRead<'a, H::Peer>, PLACES_MAX>::new();
        let mut gather = Gather::new(frame, body);
        while let Some((source, len)) = gather.next(u16::MAX) {
            reads.push(DmaRead::new(source, len));
        }
        hypervisor.dma_map(&mut reads);
        reads.iter().map(|read| read.address).collect::<Option<_>>().map(Self)
    }

    /// The whole frame.
    pub(crate) fn all(&self) -> impl Iterator<Item = Piece<'a>> {
        self.0.iter().copied()
    }

    /// Where the frame's bytes in `range` lie.
    pub(crate) fn range(&self, range: Range<usize>) -> impl Iterator<Item = Piece<'a>> {
        let mut end = 0;
        self.0.iter().filter_map(move |piece| {
            let start = end;
            end += len(piece);
            let within = range.start.max(start)..range.end.min(end);
            (!within.is_empty()).then(|| cut(*piece, within.start - start..within.end - start))
        })
    }
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

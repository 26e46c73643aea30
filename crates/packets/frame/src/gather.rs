//! Walking a frame's bytes as runs that each lie in one place.

use arrayvec::ArrayVec;
use hypervisor::{CopyStatus, Counted, Dest, GrantCopy, Hypervisor, Source};

use crate::{Body, Frame, Outcome, PIECES_MAX};

/// Runs of a whole frame when each may have 64 KiB: its header and its pieces.
const RUNS_MAX: usize = 1 + PIECES_MAX;

/// A cursor over a frame's bytes: the private header first, then the pieces.
#[derive(Debug)]
pub struct Gather<'a, P> {
    frame: &'a Frame,
    body: Body<'a, P>,
    /// 0 is the header, n the n-th piece.
    part: usize,
    /// Bytes of the part already taken.
    taken: u16,
}

impl<'a, P> Gather<'a, P> {
    /// Starts at the frame's first byte.
    #[inline]
    pub fn new(frame: &'a Frame, body: Body<'a, P>) -> Self {
        Self { frame, body, part: 0, taken: 0 }
    }

    /// The next run of at most `max` bytes; none at the frame's end.
    #[inline]
    pub fn next(&mut self, max: u16) -> Option<(Source<'a, P>, u16)> {
        loop {
            let len = match self.part.checked_sub(1) {
                None => u16::from(self.frame.header_len),
                Some(n) => self.frame.pieces.get(n)?.len,
            };
            let left = len - self.taken;
            if left == 0 {
                self.part += 1;
                self.taken = 0;
                continue;
            }
            let run = left.min(max);
            let source = match self.part.checked_sub(1) {
                None => Source::Private(&self.frame.header()[usize::from(self.taken)..]),
                Some(n) => self.body.source(self.frame.pieces[n], self.taken),
            };
            self.taken += run;
            return Some((source, run));
        }
    }
}

/// How many runs [`Gather`] needs at most to fill places of `place` bytes each.
#[must_use]
pub fn pieces_of(frame: &Frame, place: u32) -> usize {
    1 + frame.pieces.len() + frame.len.div_ceil(place) as usize
}

/// Copies a frame into private memory, whole: what lies in granted pages by the hypervisor, in one
/// batch, and the rest here, noted as [`Counted::DriverBytes`]. `whole` has the frame's length.
pub fn linearise<H: Hypervisor>(
    hypervisor: &H,
    frame: &Frame,
    body: Body<'_, H::Peer>,
    whole: &mut [u8],
) -> Result<(), Outcome> {
    let mut copies = ArrayVec::<GrantCopy<'_, H::Peer>, RUNS_MAX>::new();
    let mut gather = Gather::new(frame, body);
    let mut copied = 0;
    let mut rest = whole;
    while let Some((source, len)) = gather.next(u16::MAX) {
        let Some((run, after)) = rest.split_at_mut_checked(len.into()) else { break };
        rest = after;
        if let Some((region, offset)) = source.mapped() {
            region.copy_out(offset, run).map_err(|_| Outcome::SourceFault)?;
        } else if let Source::Private(bytes) = source {
            run.copy_from_slice(&bytes[..run.len()]);
        } else {
            copies.push(GrantCopy::new(source, Dest::Private(run), len));
            continue;
        }
        copied += u64::from(len);
    }
    hypervisor.note(Counted::DriverBytes, copied);
    if copies.is_empty() {
        return Ok(());
    }
    hypervisor.copy(&mut copies);
    let readable = copies.iter().all(|copy| copy.status == CopyStatus::Okay);
    if readable { Ok(()) } else { Err(Outcome::SourceFault) }
}

#[cfg(test)]
mod tests {
    use hypervisor::GrantRef;
    use proptest::prelude::*;
    use shm::Region;

    use super::*;
    use crate::{HEADER_MAX, Piece};

    proptest! {
        #[test]
        fn every_byte_once_and_in_order(
            header in 1u8..=128,
            lens in prop::collection::vec(1u16..300, 0..18),
            places in prop::collection::vec(1u16..500, 1..50),
        ) {
            let total: usize = usize::from(header) + lens.iter().map(|l| usize::from(*l)).sum::<usize>();
            let bytes: Vec<u8> = (0..total).map(|n| (n % 251).to_le_bytes()[0]).collect();
            let region = Region::anonymous(8192).unwrap();
            region.copy_in(0, &bytes[usize::from(header)..]).unwrap();
            let mut frame = Frame::empty();
            frame.header_len = header;
            frame.bytes[..usize::from(header)].copy_from_slice(&bytes[..usize::from(header)]);
            frame.len = u32::try_from(total).unwrap();
            let mut offset = 0;
            for len in lens {
                frame.pieces.push(Piece { gref: GrantRef(0), offset, len, place: Piece::NOWHERE });
                offset += u32::from(len);
            }
            prop_assert!(usize::from(header) <= HEADER_MAX);
            let mut gather = Gather::<()>::new(&frame, Body::Mapped(&region));
            let mut seen = Vec::new();
            let mut max = places.iter().cycle();
            while let Some((source, len)) = gather.next(*max.next().unwrap()) {
                let mut run = vec![0; len.into()];
                match source {
                    Source::Private(bytes) => run.copy_from_slice(&bytes[..len.into()]),
                    Source::Mapped { region, offset } => region.copy_out(offset, &mut run).unwrap(),
                    Source::Grant { .. } | Source::MappedGrant { .. } => unreachable!(),
                }
                prop_assert!(len > 0);
                seen.extend(run);
            }
            prop_assert_eq!(seen, bytes);
        }
    }
}

//! Walking a frame's bytes as runs that each lie in one place.

use hypervisor::Source;

use crate::{Frame, Memory, Run};

/// A cursor over a frame's bytes: the private header first, then the fragments and the tail.
#[derive(Debug)]
pub struct Gather<'a, P> {
    frame: &'a Frame,
    memory: &'a Memory<'a, P>,
    /// 0 is the header, n the n-th run of the body.
    part: usize,
    /// Bytes of the part already taken.
    taken: u16,
}

impl<'a, P> Gather<'a, P> {
    /// Starts at the frame's first byte.
    #[inline]
    pub fn new(frame: &'a Frame, memory: &'a Memory<'a, P>) -> Self {
        Self { frame, memory, part: 0, taken: 0 }
    }

    /// The next run of at most `max` bytes; none at the frame's end.
    #[inline]
    pub fn next(&mut self, max: u16) -> Option<(Source<'a, P>, u16)> {
        loop {
            let len = match self.part.checked_sub(1) {
                None => u16::from(self.frame.header_len),
                Some(n) => match self.frame.fragments.get(n) {
                    Some(fragment) => fragment.len,
                    None => return self.next_of_tail(max),
                },
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
                Some(n) => self.memory.source(&self.frame.fragments[n], self.taken, run),
            };
            self.taken += run;
            return Some((source, run));
        }
    }

    /// The same behind the fragments.
    fn next_of_tail(&mut self, max: u16) -> Option<(Source<'a, P>, u16)> {
        let tail = self.frame.tail.as_deref()?;
        let run = tail.run(self.part - 1 - self.frame.fragments.len())?;
        let taken = (run.len() - self.taken).min(max);
        let source = match run {
            Run::Private(bytes) => Source::Private(&bytes[usize::from(self.taken)..]),
            Run::Fragment(fragment) => self.memory.source(fragment, self.taken, taken),
        };
        self.taken += taken;
        if self.taken == run.len() {
            self.part += 1;
            self.taken = 0;
        }
        Some((source, taken))
    }
}

/// How many runs [`Gather`] needs at most to fill places of `place` bytes each.
#[must_use]
pub fn runs_in_places(frame: &Frame, place: u32) -> usize {
    1 + frame.runs_max() + frame.len.div_ceil(place) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shm::Region;

    use super::*;
    use crate::{Fragment, HEADER_MAX};

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
                frame.fragments.push(Fragment::in_region(0, offset, len));
                offset += u64::from(len);
            }
            prop_assert!(usize::from(header) <= HEADER_MAX);
            let memory = Memory::Regions(std::slice::from_ref(&region));
            let mut gather = Gather::<()>::new(&frame, &memory);
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

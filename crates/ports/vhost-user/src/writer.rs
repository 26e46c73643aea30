//! Writes a frame into the buffers that a guest posted.

use port::Outcome;
use shm::{Iovec, OutOfBounds, Region};
use virtqueue::Buffer;

/// The places of a frame for a guest, in order. Writing fails only where a buffer is not what the ring said.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    regions: &'a [Region],
    buffers: std::slice::Iter<'a, Buffer>,
    place: Buffer,
}

/// The guest's buffers are not where its ring said.
#[derive(Debug)]
pub(crate) struct NoPlace;

impl From<OutOfBounds> for NoPlace {
    fn from(_: OutOfBounds) -> Self {
        Self
    }
}

impl<'a> Writer<'a> {
    pub(crate) fn new(regions: &'a [Region], buffers: &'a [Buffer]) -> Self {
        let place = Buffer { region: 0, offset: 0, len: 0 };
        Self { regions, buffers: buffers.iter(), place }
    }

    /// The next place for at most `wanted` bytes.
    #[inline]
    fn next(&mut self, wanted: usize) -> Result<(&'a Region, usize, usize), NoPlace> {
        if self.place.len == 0 {
            self.place = *self.buffers.next().ok_or(NoPlace)?;
        }
        let Buffer { region, offset, len } = self.place;
        let taken = u32::try_from(wanted).unwrap_or(u32::MAX).min(len);
        self.place.offset += u64::from(taken);
        self.place.len -= taken;
        let region = self.regions.get(usize::from(region)).ok_or(NoPlace)?;
        Ok((region, usize::try_from(offset).map_err(|_| NoPlace)?, taken as usize))
    }

    /// Writes private bytes.
    #[inline]
    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> Result<(), NoPlace> {
        while !bytes.is_empty() {
            let (region, at, len) = self.next(bytes.len())?;
            let (now, later) = bytes.split_at(len);
            region.copy_in(at, now)?;
            bytes = later;
        }
        Ok(())
    }

    /// Copies the parts of a frame from where they lie.
    ///
    /// # Errors
    /// [`Outcome::SourceFault`] where the sender's memory cannot be read.
    pub(crate) fn copy<'b>(
        &mut self,
        iovecs: impl Iterator<Item = Iovec<'b>>,
    ) -> Result<Result<(), Outcome>, NoPlace> {
        for iovec in iovecs {
            let (source, mut from, mut left) = match iovec {
                Iovec::Private(bytes) => {
                    self.write(bytes)?;
                    continue;
                }
                Iovec::Shared { region, offset, len } => (region, offset, len),
            };
            if source.address(from, left).is_err() {
                return Ok(Err(Outcome::SourceFault));
            }
            while left > 0 {
                let (region, at, len) = self.next(left)?;
                Region::copy_between(source, from, region, at, len)?;
                (from, left) = (from + len, left - len);
            }
        }
        Ok(Ok(()))
    }
}

//! A frame to be sent: its chain of descriptors, and its bytes.

use cdna::descriptor::{FRAGMENTS_MAX, FRAME_MAX, FRAME_MIN};
use cdna::{ContextId, Flags, Offload, Reason};

use crate::bus::{Bus, ContextPages};
use crate::fetch::{CACHE, Fetcher, Violation};

/// The descriptors of one frame, which are the next ones of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    /// How many, with the offload's.
    pub(crate) descriptors: u32,
    /// The frame's bytes.
    pub(crate) len: usize,
    /// Of the first descriptor.
    pub(crate) flags: Flags,
    pub(crate) offload: Option<Offload>,
}

const _: () = assert!(FRAGMENTS_MAX < CACHE as usize);

impl Chain {
    /// The next frame of a ring; none if its end was not produced yet.
    #[inline]
    pub(crate) fn next(
        fetcher: &mut Fetcher,
        pages: &impl ContextPages,
    ) -> Result<Option<Self>, Violation> {
        if fetcher.available(1, pages)? == 0 {
            return Ok(None);
        }
        let first = fetcher.peek(0);
        let (flags, len) = (first.flags(), usize::from(first.len));
        if len >= FRAME_MIN && flags.contains(Flags::EOP) && !flags.contains(Flags::GSO) {
            return Ok(Some(Self { descriptors: 1, len, flags, offload: None }));
        }
        Self::long(fetcher, pages)
    }

    /// A frame of more than one descriptor, or a bad one.
    fn long(fetcher: &mut Fetcher, pages: &impl ContextPages) -> Result<Option<Self>, Violation> {
        let first = fetcher.peek(0);
        let flags = first.flags();
        let offload = match (flags.contains(Flags::GSO), first.len) {
            (false, _) => None,
            (true, 0) => Some(
                Offload::from_field(first.addr)
                    .ok_or_else(|| violation(fetcher, 0, Reason::Offload, first.addr))?,
            ),
            (true, len) => return Err(violation(fetcher, 0, Reason::Offload, len.into())),
        };
        // An offload alone has no bytes, which the check of the frame's length finds.
        let mut ends = offload.is_some() && flags.contains(Flags::EOP);
        let mut descriptors = u32::from(offload.is_some());
        let (mut len, mut buffers) = (0, 0);
        while !ends {
            if buffers == FRAGMENTS_MAX {
                return Err(violation(fetcher, descriptors, Reason::Chain, buffers as u64));
            }
            if fetcher.available(descriptors + 1, pages)? <= descriptors {
                return Ok(None);
            }
            let descriptor = fetcher.peek(descriptors);
            if descriptor.len == 0 {
                return Err(violation(fetcher, descriptors, Reason::Length, 0));
            }
            if descriptor.flags().contains(Flags::GSO) {
                let value = descriptor.len.into();
                return Err(violation(fetcher, descriptors, Reason::Offload, value));
            }
            ends = descriptor.flags().contains(Flags::EOP);
            len += usize::from(descriptor.len);
            (descriptors, buffers) = (descriptors + 1, buffers + 1);
        }
        if !(FRAME_MIN..=FRAME_MAX).contains(&len) {
            return Err(violation(fetcher, 0, Reason::FrameLength, len as u64));
        }
        Ok(Some(Self { descriptors, len, flags, offload }))
    }

    /// Copies the frame's bytes to the start of `frame`, which has room for them, and counts its descriptors as used.
    #[inline]
    pub(crate) fn gather(
        &self,
        fetcher: &mut Fetcher,
        bus: &mut impl Bus,
        context: ContextId,
        frame: &mut [u8],
    ) -> Result<(), Violation> {
        if let Some(address) = fetcher.upcoming() {
            bus.prefetch(context, address, false);
        }
        let mut at = 0;
        for ahead in u32::from(self.offload.is_some())..self.descriptors {
            let descriptor = fetcher.peek(ahead);
            let end = at + usize::from(descriptor.len);
            let read = bus.read(context, descriptor.addr, &mut frame[at..end]);
            read.map_err(|fault| violation(fetcher, ahead, fault.reason, fault.address))?;
            at = end;
        }
        fetcher.consume(self.descriptors);
        Ok(())
    }
}

/// The descriptor `ahead` places after the next one is bad.
fn violation(fetcher: &Fetcher, ahead: u32, reason: Reason, value: u64) -> Violation {
    Violation { reason, index: fetcher.next().wrapping_add(ahead), value }
}

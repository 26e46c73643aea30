//! Where the bytes of a batch of frames lie.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use arrayvec::ArrayVec;
use hypervisor::{
    Granted, GrantedMemory, Hypervisor, MappedGrants, MappedPages, PeerMemory, Source,
};
use shm::Region;

use crate::Frame;

/// The memory that the fragments of a batch of frames lie in. It may belong to any platform, or to
/// none.
#[derive(Clone, Copy)]
pub enum Body<'a> {
    /// Pages that a domain grants. Some of them may be mapped for the time of the batch.
    Granted {
        /// The domain's memory.
        memory: &'a Arc<dyn GrantedMemory>,
        /// The pages that are mapped.
        mapped: Option<MappedPages<'a>>,
    },
    /// Memory that is mapped in this domain: an uplink's buffers, a virtual machine's memory.
    Regions(&'a Arc<[Region]>),
    /// The same, where a receiver may keep a frame after the call.
    Buffers(&'a dyn ReceiveBuffers),
}

/// The buffers of an ingress port in which whole frames lie.
pub trait ReceiveBuffers {
    /// The memory in which the fragments lie.
    fn regions(&self) -> &Arc<[Region]>;

    /// Keeps a frame in hand: its private header and its body, in one run of `len` bytes. Any number
    /// of receivers may keep a frame. None if it does not lie so, or if the port has too few buffers
    /// left: the caller copies instead.
    fn keep(&self, frame: &Frame) -> Option<KeptFrame>;
}

/// A frame in a buffer that its port does not use again before this is dropped.
#[derive(Clone, Debug)]
pub struct KeptFrame {
    /// The buffer.
    pub memory: Arc<Region>,
    /// The frame's first byte.
    pub offset: usize,
}

impl<'a> Body<'a> {
    /// The same memory as platform `H` sees it; none if it belongs to another platform, whose
    /// grants `H` cannot copy from.
    #[inline]
    #[must_use]
    pub fn local<H: Hypervisor>(self) -> Option<Memory<'a, H::Peer>> {
        match self {
            Self::Granted { memory, mapped } => {
                let any: &dyn Any = &**memory;
                let PeerMemory { peer, .. } = any.downcast_ref::<PeerMemory<H>>()?;
                let mapped = mapped.map(|pages| MappedGrants { peer, pages });
                Some(Memory::Granted { peer, mapped })
            }
            Self::Regions(regions) => Some(Memory::Regions(regions)),
            Self::Buffers(buffers) => Some(Memory::Regions(buffers.regions())),
        }
    }

    /// The memory that is mapped in this domain, if it is.
    #[inline]
    #[must_use]
    pub fn regions(self) -> Option<&'a Arc<[Region]>> {
        match self {
            Self::Granted { .. } => None,
            Self::Regions(regions) => Some(regions),
            Self::Buffers(buffers) => Some(buffers.regions()),
        }
    }
}

impl fmt::Debug for Body<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Granted { .. } => "Granted",
            Self::Regions(_) => "Regions",
            Self::Buffers(_) => "Buffers",
        })
    }
}

/// A contiguous part of a frame's body, as Linux' `skb_frag_t`. (A part of an IP datagram is an IP fragment.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Where it lies.
    pub place: Place,
    /// How many bytes.
    pub len: u16,
}

/// Where a fragment lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Within one page that the sender grants.
    Grant(Granted),
    /// Within one of the regions that the sender's memory is mapped as.
    Region {
        /// Which region.
        index: u16,
        /// First byte within it.
        offset: Offset,
    },
}

/// A byte of a region. It is aligned as a grant reference is, so a [`Fragment`] has 16 bytes, four to a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, packed(4))]
pub struct Offset(u64);

const _: () = assert!(size_of::<Fragment>() == 16);

impl Offset {
    /// The byte `offset`.
    #[inline]
    #[must_use]
    pub const fn new(offset: u64) -> Self {
        Self(offset)
    }

    /// Its number.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The same as an index of this process's memory. One that is too large names no byte of it.
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl Fragment {
    /// A fragment of a granted page.
    #[inline]
    #[must_use]
    pub fn granted(granted: Granted, len: u16) -> Self {
        Self { place: Place::Grant(granted), len }
    }

    /// A fragment of the region `index`, from its byte `offset` on.
    #[inline]
    #[must_use]
    pub fn in_region(index: u16, offset: u64, len: u16) -> Self {
        Self { place: Place::Region { index, offset: Offset(offset) }, len }
    }

    /// Leaves at most the first `left` bytes, and takes those that it has off `left`.
    pub(crate) fn truncate(&mut self, left: &mut usize) {
        self.len = self.len.min(u16::try_from(*left).unwrap_or(u16::MAX));
        *left -= usize::from(self.len);
    }

    /// Takes `taken` bytes off the front, at most all of them.
    #[inline]
    pub(crate) fn advance(&mut self, taken: u16) {
        match &mut self.place {
            Place::Grant(granted) => granted.offset += taken,
            Place::Region { offset, .. } => offset.0 += u64::from(taken),
        }
        self.len -= taken;
    }
}

/// The memory that fragments lie in, as one platform reaches it.
#[derive(Debug)]
pub enum Memory<'a, P> {
    /// Pages that a peer of the platform grants.
    Granted {
        /// Whose pages.
        peer: &'a P,
        /// Those that are mapped for the time of the batch.
        mapped: Option<MappedGrants<'a, P>>,
    },
    /// Memory that is mapped in this domain.
    Regions(&'a [Region]),
    /// A private copy, named as region 0.
    Private(&'a [u8]),
}

impl<P> Memory<'_, P> {
    /// The bytes of `fragment` from its byte `skip` on, `len` of them.
    ///
    /// A place that this memory does not have becomes a source of no bytes, which every copy
    /// refuses.
    #[inline]
    pub fn source(&self, fragment: &Fragment, skip: u16, len: u16) -> Source<'_, P> {
        const NOTHING: &[u8] = &[];
        match (self, fragment.place) {
            (Self::Granted { peer, mapped }, Place::Grant(granted)) => {
                granted.skip(skip).source(peer, mapped.as_ref(), len)
            }
            (Self::Regions(regions), Place::Region { index, offset }) => {
                match regions.get(usize::from(index)) {
                    Some(region) => {
                        let offset = offset.index().saturating_add(skip.into());
                        Source::Mapped { region, offset }
                    }
                    None => Source::Private(NOTHING),
                }
            }
            (Self::Private(bytes), Place::Region { offset, .. }) => {
                let bytes = bytes.get(offset.index().saturating_add(skip.into())..);
                Source::Private(bytes.unwrap_or(NOTHING))
            }
            _ => Source::Private(NOTHING),
        }
    }
}

/// Most buffers that one frame takes: the pages of 64 KiB, and one for the GSO extra.
pub const LENT_MAX: usize = 17;

/// The buffers of an egress queue in which a frame's body lies already.
///
/// An ingress queue borrowed them. If the frame is for the queue that lent them, its body is not
/// copied. For any other, the body is where the frame's fragments say, as that of any frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lent {
    /// Which egress queue lent them. No two of a process have the same number.
    pub lender: u64,
    /// Their tokens, in order. Each but the last is full. If the frame is
    /// unsegmented, there is one more, without bytes.
    pub tokens: ArrayVec<u32, LENT_MAX>,
    /// Whether the first `header_len` bytes lie there too. Otherwise they are missing, and the lender
    /// writes them.
    pub has_header: bool,
    /// Where the frame begins in the first buffer. Other than 0 only if there is one buffer.
    pub offset: u16,
}

impl Lent {
    /// A frame that lies in no lent buffer.
    pub const NONE: Self =
        Self { lender: 0, tokens: ArrayVec::new_const(), has_header: false, offset: 0 };

    /// Whether the frame lies in lent buffers.
    #[inline]
    #[must_use]
    pub fn is_any(&self) -> bool {
        !self.tokens.is_empty()
    }
}

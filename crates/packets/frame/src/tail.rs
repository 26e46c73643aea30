//! The rest of a merged frame: the segments behind its first.

use offload::Gso;

use crate::{Fragment, Frame, Lent};

/// Most runs of a tail: the payloads of a frame of 64 KiB in segments of the usual MTU, each of which begins in a private header.
pub const TAIL_MAX: usize = 90;

/// Where the payloads of further frames lie, in order: their private parts here, the others where their sender put them.
#[derive(Clone, Debug, Default)]
pub struct Tail {
    runs: Vec<TailRun>,
    /// The private parts.
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
enum TailRun {
    Private { start: usize, len: u8 },
    Fragment(Fragment),
}

/// A contiguous part of a frame's body.
#[derive(Clone, Copy, Debug)]
pub enum Run<'a> {
    /// In private memory.
    Private(&'a [u8]),
    /// Where the sender put it.
    Fragment(&'a Fragment),
}

impl Run<'_> {
    /// How many bytes.
    #[inline]
    pub(crate) fn len(&self) -> u16 {
        match self {
            // At most a private header.
            Self::Private(bytes) => u16::try_from(bytes.len()).unwrap_or(u16::MAX),
            Self::Fragment(fragment) => fragment.len,
        }
    }
}

impl Tail {
    /// How many runs there are.
    pub(crate) fn len(&self) -> usize {
        self.runs.len()
    }

    pub(crate) fn run(&self, n: usize) -> Option<Run<'_>> {
        Some(match self.runs.get(n)? {
            TailRun::Private { start, len } => {
                Run::Private(self.bytes.get(*start..)?.get(..usize::from(*len))?)
            }
            TailRun::Fragment(fragment) => Run::Fragment(fragment),
        })
    }

    fn clear(&mut self) {
        self.runs.clear();
        self.bytes.clear();
    }

    fn push_private(&mut self, bytes: &[u8]) {
        if let (Ok(len), false) = (u8::try_from(bytes.len()), bytes.is_empty()) {
            self.runs.push(TailRun::Private { start: self.bytes.len(), len });
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// Leaves the first `left` bytes.
    fn truncate(&mut self, mut left: usize) {
        for run in &mut self.runs {
            match run {
                TailRun::Private { len, .. } => {
                    *len = (*len).min(u8::try_from(left).unwrap_or(u8::MAX));
                    left -= usize::from(*len);
                }
                TailRun::Fragment(fragment) => fragment.truncate(&mut left),
            }
        }
        self.runs.retain(|run| match run {
            TailRun::Private { len, .. } => *len > 0,
            TailRun::Fragment(fragment) => fragment.len > 0,
        });
    }
}

impl Frame {
    /// Whether there is more of the frame than its private header.
    #[inline]
    #[must_use]
    pub fn has_body(&self) -> bool {
        !self.fragments.is_empty() || self.tail.is_some()
    }

    /// How many frames it was merged from; one for others.
    #[inline]
    #[must_use]
    pub fn merged_from(&self) -> u32 {
        if self.tail.is_some() { self.packets() } else { 1 }
    }

    /// The runs of the frame's body, in order.
    #[inline]
    pub fn runs(&self) -> impl Iterator<Item = Run<'_>> {
        let tail = self.tail.as_deref();
        let tail = tail.into_iter().flat_map(|tail| (0..tail.len()).map_while(|n| tail.run(n)));
        self.fragments.iter().map(Run::Fragment).chain(tail)
    }

    /// How many runs the body has at most.
    #[inline]
    #[must_use]
    pub fn runs_max(&self) -> usize {
        self.fragments.len() + self.tail.as_ref().map_or(0, |tail| tail.len())
    }

    /// Makes this a copy of `first`, to which the payloads of other frames can be [appended](Self::append). No memory is allocated where
    /// it was one before.
    pub fn begin_merge(&mut self, first: &Self) {
        let mut tail = self.tail.take().unwrap_or_default();
        tail.clear();
        self.bytes = first.bytes;
        (self.header_len, self.len) = (first.header_len, first.len);
        (self.headers, self.checksum, self.gso) = (first.headers, first.checksum, first.gso);
        self.fragments.clear();
        self.fragments.extend(first.fragments.iter().copied());
        self.lent = Lent::NONE;
        self.tail = Some(tail);
    }

    /// Appends the payload of another frame, which lies in the same memory. Returns false, and changes nothing, where it would have more than
    /// [`TAIL_MAX`] runs beside its own.
    #[must_use]
    pub fn append(&mut self, other: &Self) -> bool {
        let start = usize::from(other.headers.payload_offset);
        let private = other.header().get(start..).unwrap_or_default();
        let tail = self.tail.get_or_insert_default();
        if tail.len() + 1 + other.fragments.len() > TAIL_MAX {
            return false;
        }
        tail.push_private(private);
        let fragments = other.fragments.iter().copied().filter(|fragment| fragment.len > 0);
        tail.runs.extend(fragments.map(TailRun::Fragment));
        self.len += other.len.saturating_sub(other.headers.payload_offset.into());
        true
    }

    /// The merged frame is complete: it is to be segmented like this, and its checksum is partial.
    pub fn end_merge(&mut self, gso: Gso) {
        (self.gso, self.checksum) = (Some(gso), offload::Checksum::Partial);
    }

    /// Leaves the first `len` bytes of the frame, at least its private header.
    pub fn truncate(&mut self, len: usize) {
        let mut left = len.saturating_sub(self.header_len.into());
        self.len = self.len.min(u32::try_from(len).unwrap_or(u32::MAX));
        for fragment in &mut self.fragments {
            fragment.truncate(&mut left);
        }
        self.fragments.retain(|fragment| fragment.len > 0);
        if let Some(tail) = &mut self.tail {
            tail.truncate(left);
        }
    }
}

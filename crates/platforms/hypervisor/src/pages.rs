//! Granted pages: bytes within one, and where pages are mapped in this domain.

use std::num::NonZero;

use shm::{Iovec, Region};

use crate::id::{FrameNumber, GrantRef};

/// Bytes in a page, the unit of grants (Xen's `XEN_PAGE_SIZE`).
pub const PAGE_SIZE: usize = 4096;

/// Granted pages that are also mapped in this domain. [`MappedGrants`](crate::MappedGrants) adds
/// their owner.
#[derive(Clone, Copy, Debug)]
pub struct MappedPages<'a> {
    /// The memory in which they lie, a page for each place.
    pub region: &'a Region,
    /// The grant that is mapped at each place.
    pub grefs: &'a [Option<GrantRef>],
    /// Their numbers in their owner's memory, if they are mapped
    /// [unpinned](crate::GrantMap::unpinned): a copy uses the mapping only while the grant still
    /// names this page.
    pub frames: Option<&'a [FrameNumber]>,
}

impl<'a> MappedPages<'a> {
    /// The grant that is mapped at a place.
    #[inline]
    #[must_use]
    pub fn at(&self, place: u16) -> Option<GrantRef> {
        self.grefs.get(usize::from(place)).copied().flatten()
    }

    /// The place where granted bytes are mapped, if they are: `len` of them, within one page.
    #[inline]
    #[must_use]
    pub fn find(&self, bytes: Granted, len: u16) -> Option<u16> {
        // Another page may have been mapped at this place since it was looked up. And the bytes
        // must not reach beyond the page.
        let within_page = usize::from(bytes.offset) + usize::from(len) <= PAGE_SIZE;
        let place = bytes.mapped?.get();
        (within_page && self.at(place) == Some(bytes.gref)).then_some(place)
    }

    /// Where granted bytes lie in this domain's address space, if they are mapped.
    #[must_use]
    pub fn address(&self, bytes: Granted, len: u16) -> Option<Iovec<'a>> {
        let place = usize::from(self.find(bytes, len)?);
        let offset = place * PAGE_SIZE + usize::from(bytes.offset);
        Some(Iovec::Shared { region: self.region, offset, len: len.into() })
    }
}

/// Bytes within one granted page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Which page.
    pub gref: GrantRef,
    /// First byte within the page.
    pub offset: u16,
    /// Where the page is [mapped](MappedPages), if it is. This is a hint, checked at
    /// every use, because another page may have been mapped there since.
    pub mapped: Option<MappedAt>,
}

/// The place of a mapped page, in two bytes also where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedAt(NonZero<u16>);

impl MappedAt {
    /// None for place 65,535, whose number does not fit: a hint may be missing.
    #[inline]
    #[must_use]
    pub fn new(place: u16) -> Option<Self> {
        NonZero::new(place.wrapping_add(1)).map(Self)
    }

    /// Its number.
    #[inline]
    #[must_use]
    pub fn get(self) -> u16 {
        self.0.get() - 1
    }
}

impl Granted {
    /// The bytes from the byte `skip` on.
    #[inline]
    #[must_use]
    pub fn skip(self, skip: u16) -> Self {
        Self { offset: self.offset.saturating_add(skip), ..self }
    }
}

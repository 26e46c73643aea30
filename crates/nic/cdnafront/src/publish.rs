//! How descriptors get into a ring, by protection.

use std::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;
use cdna::{Descriptor, Direction, address, ring};

use crate::call::{BATCH, CallError, Hypercalls};
use crate::pages::Pages;

/// Puts descriptors into one ring.
pub(crate) trait Publish: Send {
    /// Puts descriptors into the slots of `first` and the indices after it.
    fn publish(&mut self, first: u32, batch: &[Descriptor]) -> Result<(), CallError>;

    /// The card is done with these descriptors. Called before their buffers are used.
    fn retire(&mut self, first: u32, count: u32) -> Result<(), CallError> {
        let _ = (first, count);
        Ok(())
    }

    /// Whether publishing is a call of the hypervisor, which costs as much for one descriptor as for [`BATCH`].
    fn is_call(&self) -> bool {
        false
    }

    /// Whether a buffer's pages must rest after they are retired: the hypervisor may still wait for the card to forget
    /// them.
    fn needs_rest(&self) -> bool {
        false
    }
}

/// The ring is written here, and the card can use the addresses at any time.
pub(crate) struct Direct {
    pub(crate) pages: Arc<Pages>,
    pub(crate) direction: Direction,
}

impl Publish for Direct {
    #[inline]
    fn publish(&mut self, first: u32, batch: &[Descriptor]) -> Result<(), CallError> {
        for (n, descriptor) in (0..).zip(batch) {
            self.pages.write(self.direction, first.wrapping_add(n), *descriptor);
        }
        Ok(())
    }
}

/// The hypervisor writes the ring.
pub(crate) struct Enqueue {
    pub(crate) calls: Box<dyn Hypercalls>,
    pub(crate) direction: Direction,
}

impl Publish for Enqueue {
    fn publish(&mut self, _: u32, batch: &[Descriptor]) -> Result<(), CallError> {
        self.calls.enqueue(self.direction, batch)
    }

    fn is_call(&self) -> bool {
        true
    }
}

/// The ring is written here, and the card can use an address only while the hypervisor maps it.
pub(crate) struct MapEach {
    ring: Direct,
    calls: Box<dyn Hypercalls>,
    /// The pages of each slot's buffer.
    mapped: Box<[Range<u64>]>,
}

impl MapEach {
    pub(crate) fn new(ring: Direct, calls: Box<dyn Hypercalls>) -> Self {
        Self { ring, calls, mapped: vec![0..0; ring::SLOTS as usize].into() }
    }
}

impl Publish for MapEach {
    fn publish(&mut self, first: u32, batch: &[Descriptor]) -> Result<(), CallError> {
        let mut runs = Runs::default();
        for (n, descriptor) in (0..).zip(batch) {
            // A buffer of this domain does not reach the end of the address space.
            let pages = address::pages(descriptor.addr, descriptor.len).unwrap_or(0..0);
            // There are no more descriptors than ranges fit.
            runs.add(&pages);
            self.mapped[ring::slot(first.wrapping_add(n))] = pages;
        }
        if !runs.0.is_empty() {
            self.calls.map(self.ring.direction, &runs.0)?;
        }
        self.ring.publish(first, batch)
    }

    fn retire(&mut self, first: u32, count: u32) -> Result<(), CallError> {
        let mut runs = Runs::default();
        for n in 0..count {
            let pages = &self.mapped[ring::slot(first.wrapping_add(n))];
            if !runs.add(pages) {
                self.calls.unmap(&runs.0)?;
                runs = Runs::default();
                runs.add(pages);
            }
        }
        if runs.0.is_empty() { Ok(()) } else { self.calls.unmap(&runs.0) }
    }

    fn is_call(&self) -> bool {
        true
    }

    fn needs_rest(&self) -> bool {
        true
    }
}

/// Ranges of pages, of which those that follow each other are one.
#[derive(Default)]
struct Runs(ArrayVec<Range<u64>, BATCH>);

impl Runs {
    /// Adds a range. Returns false if it does not fit.
    fn add(&mut self, pages: &Range<u64>) -> bool {
        match self.0.last_mut() {
            _ if pages.is_empty() => true,
            Some(last) if last.end == pages.start => {
                last.end = pages.end;
                true
            }
            _ => self.0.try_push(pages.clone()).is_ok(),
        }
    }
}

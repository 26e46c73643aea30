//! Which of a guest's page numbers are in use, and where pages that come are mapped.
//!
//! A large page maps a block of 2 MiB only if all of the block is mapped alike. One page in it that
//! is mapped elsewhere or was given up forces small pages on the whole block. In Menon et al. 2006
//! (§5.3.1) read-only page-table frames broke superpages in this way, and the guest's allocator
//! grouped pages with restricted permissions into superpages reserved for them. Here the pages that
//! flips replace break large pages, and the same remedy applies: their numbers come from blocks
//! reserved for them. The paper's §5.4.2 proposes to balloon by whole superpages, which its
//! prototype did not implement. The balloon here does, as far as the free pages allow.
//!
//! ```text
//!  0             pages                                   what the numbers are for
//! ┌──────┬──────┬──────┐ ┌──────┬──────┐
//! │ordi- │      │      │ │places│      │   Grouped: pages that come are mapped behind
//! │nary  │      │      │ │      │      │   Scattered: at free numbers of ordinary blocks
//! └──────┴──────┴──────┘ └──────┴──────┘
//! ```

use std::cmp::Reverse;
use std::ops::Range;

use crate::memory::{BLOCK_PAGES, MemorySize};

/// Where a guest maps the pages that are transferred to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grouping {
    /// In blocks reserved for them: large pages map the rest.
    #[default]
    Grouped,
    /// At free numbers of its ordinary memory, as in Xen 2: each place costs an ordinary page, and
    /// the large mapping of its block.
    Scattered,
}

/// The state of an ordinary page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Used,
    /// Given up to the hypervisor.
    Out,
}

/// How many pages of a block are in which state.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    pages: usize,
    free: usize,
    out: usize,
}

/// The page numbers of a guest.
pub(super) struct Frames {
    grouping: Grouping,
    /// The ordinary pages, by number.
    ordinary: Vec<State>,
    /// Their blocks, by page number / [`BLOCK_PAGES`].
    blocks: Vec<Block>,
    /// Numbers behind the ordinary ones that are free. Taken from the end.
    reserved: Vec<usize>,
    /// Places that may still be taken, of either kind.
    places: usize,
    /// The block after the one where the last scattered place was taken.
    next: usize,
}

impl Frames {
    /// All free except the grant table's.
    pub(super) fn new(size: MemorySize) -> Self {
        let MemorySize { pages, grant_pages, exchange_pages, .. } = size;
        let lengths = (0..pages).step_by(BLOCK_PAGES).map(|first| BLOCK_PAGES.min(pages - first));
        let mut this = Self {
            grouping: Grouping::default(),
            ordinary: vec![State::Free; pages],
            blocks: lengths.map(|pages| Block { pages, free: pages, out: 0 }).collect(),
            reserved: (pages..pages + exchange_pages).rev().collect(),
            places: exchange_pages,
            next: 0,
        };
        (0..grant_pages.min(pages)).for_each(|page| this.set(page, State::Used));
        this
    }

    /// Decides where places are taken from now on.
    pub(super) fn group(&mut self, grouping: Grouping) {
        self.grouping = grouping;
    }

    fn set(&mut self, page: usize, state: State) {
        let was = std::mem::replace(&mut self.ordinary[page], state);
        let block = &mut self.blocks[page / BLOCK_PAGES];
        for (of, change) in [(was, usize::MAX), (state, 1)] {
            match of {
                State::Free => block.free = block.free.wrapping_add(change),
                State::Out => block.out = block.out.wrapping_add(change),
                State::Used => {}
            }
        }
    }

    fn set_all(&mut self, pages: Range<usize>, state: State) {
        pages.for_each(|page| self.set(page, state));
    }

    fn pages_of(&self, block: usize) -> Range<usize> {
        let first = block * BLOCK_PAGES;
        first..first + self.blocks[block].pages
    }

    /// The first run of `count` free pages, taken.
    pub(super) fn take_run(&mut self, count: usize) -> Option<usize> {
        let mut run = 0..0;
        while run.len() < count {
            let page = run.end;
            match self.ordinary.get(page)? {
                State::Free => run.end += 1,
                _ => run = page + 1..page + 1,
            }
        }
        self.set_all(run.clone(), State::Used);
        Some(run.start)
    }

    /// Frees a page of a run.
    pub(super) fn put_back(&mut self, page: usize) {
        self.set(page, State::Free);
    }

    /// Takes a number for a page that will come.
    pub(super) fn take_place(&mut self) -> Option<usize> {
        self.places = self.places.checked_sub(1)?;
        let place = match self.grouping {
            Grouping::Grouped => self.reserved.pop(),
            Grouping::Scattered => self.scatter(),
        };
        if place.is_none() {
            self.places += 1;
        }
        place
    }

    /// The last free page of the next block that has one.
    fn scatter(&mut self) -> Option<usize> {
        let blocks = self.blocks.len();
        let turn = (self.next..self.next + blocks).map(|block| block % blocks);
        let block = turn.into_iter().find(|block| self.blocks[*block].free > 0)?;
        self.next = (block + 1) % blocks;
        let page = self.pages_of(block).rev().find(|page| self.ordinary[*page] == State::Free)?;
        self.set(page, State::Used);
        Some(page)
    }

    /// Frees a place of either kind.
    pub(super) fn put_back_place(&mut self, place: usize) {
        self.places += 1;
        match self.ordinary.get(place) {
            Some(_) => self.set(place, State::Free),
            None => self.reserved.push(place),
        }
    }

    /// Pages given up.
    pub(super) fn out(&self) -> usize {
        self.blocks.iter().map(|block| block.out).sum()
    }

    /// Chooses up to `count` free pages and marks them as given up: whole free blocks first, then
    /// single pages of as few blocks as possible.
    pub(super) fn give_up(&mut self, count: usize) -> Vec<Range<usize>> {
        let is_free = |block: &Block| block.free == BLOCK_PAGES;
        // From the end: runs are taken from the start.
        let free = (0..self.blocks.len()).rev().filter(|block| is_free(&self.blocks[*block]));
        let whole: Vec<_> = free.take(count / BLOCK_PAGES).collect();
        let mut given: Vec<_> = whole.into_iter().map(|block| self.pages_of(block)).collect();
        for pages in &given {
            self.set_all(pages.clone(), State::Out);
        }
        given.extend(self.give_up_singles(count % BLOCK_PAGES));
        given
    }

    /// Gives up fewer pages than a block has. Blocks that lack pages have no large mapping to lose,
    /// so they come first; then the block with the fewest used pages that has enough free ones.
    fn give_up_singles(&mut self, mut count: usize) -> Vec<Range<usize>> {
        let mut order: Vec<_> = (0..self.blocks.len()).collect();
        order.sort_by_key(|block| {
            let Block { pages, free, out } = self.blocks[*block];
            let large = out == 0 && pages == BLOCK_PAGES;
            (large, large && free < count, pages - out - free)
        });
        let mut given = Vec::new();
        for block in order {
            let part = self.runs(block, State::Free, count);
            for pages in part {
                count -= pages.len();
                self.set_all(pages.clone(), State::Out);
                given.push(pages);
            }
        }
        given
    }

    /// Up to `count` pages of a block that are in `state`, as runs, from its end: pages in use are
    /// taken from the start.
    fn runs(&self, block: usize, state: State, mut count: usize) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for page in self.pages_of(block).rev().filter(|page| self.ordinary[*page] == state) {
            if count == 0 {
                break;
            }
            count -= 1;
            match runs.last_mut().filter(|run| run.start == page + 1) {
                Some(run) => run.start = page,
                None => runs.push(page..page + 1),
            }
        }
        runs
    }

    /// Up to `count` pages to take back, first of blocks that lack the fewest, so that blocks
    /// become whole.
    pub(super) fn wanted(&self, mut count: usize) -> Vec<Range<usize>> {
        let mut order: Vec<_> =
            (0..self.blocks.len()).filter(|block| self.blocks[*block].out > 0).collect();
        order.sort_by_key(|block| (self.blocks[*block].out, Reverse(*block)));
        let mut wanted = Vec::new();
        for block in order {
            let part = self.runs(block, State::Out, count);
            count -= part.iter().map(ExactSizeIterator::len).sum::<usize>();
            wanted.extend(part);
        }
        wanted
    }

    /// Marks pages as free that were taken back, or that were not given up after all. Returns the
    /// blocks among them that are whole now.
    pub(super) fn returned(&mut self, pages: Range<usize>) -> Vec<Range<usize>> {
        self.set_all(pages.clone(), State::Free);
        let blocks = pages.start / BLOCK_PAGES..pages.end.div_ceil(BLOCK_PAGES);
        let is_whole = |block: &Block| block.out == 0 && block.pages == BLOCK_PAGES;
        blocks
            .filter(|block| is_whole(&self.blocks[*block]))
            .map(|block| self.pages_of(block))
            .collect()
    }
}

#[cfg(test)]
mod tests;

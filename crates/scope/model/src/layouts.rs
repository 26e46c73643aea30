//! One execution under several layouts of a program at once.
//!
//! Where a linker puts functions, and where the stack and the heap begin, decides which lines share a set of L1 and which data
//! shares a page. Two versions of a program differ in this by chance. The mean over layouts drawn at random does not.

use serde::{Deserialize, Serialize};

use crate::cache::{Cache, WAYS};
use crate::config::Config;
use crate::flush::Flush;
use crate::geometry::{LINE, TLB_ENTRIES};
use crate::lru_tlbs::LruTlbs;
use crate::mapping::{Mapping, Side};
use crate::paging::{PageSize, Paging};
use crate::piece::Piece;

/// The number of layouts.
pub const LAYOUTS: usize = 32;

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Lines of a page.
const PAGE_LINES: u64 = PAGE / LINE as u64;
/// The number of no line.
const NO_LINE: u64 = u64::MAX;

/// Misses of one layout, or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutMisses {
    /// Lines of code that L1I missed.
    pub code: u64,
    /// Lines of data that L1D missed.
    pub data: u64,
    /// Pages that DTLBs of [`LAYOUT_TLBS`](crate::LAYOUT_TLBS) sizes missed, together.
    pub pages: u64,
}

impl std::ops::AddAssign for LayoutMisses {
    fn add_assign(&mut self, other: Self) {
        self.code += other.code;
        self.data += other.data;
        self.pages += other.pages;
    }
}

/// An L1I, an L1D and DTLBs for each layout. [Pieces](Piece) of the program lie elsewhere in each, everything else where it is.
#[derive(Debug)]
pub struct Layouts {
    paging: Paging,
    /// The number of the first line of each piece: a piece has lines of its own, behind those of memory.
    first_lines: Vec<u64>,
    /// How far each layout shifts each piece, in bytes.
    shifts: Vec<[u16; LAYOUTS]>,
    layouts: Vec<Layout>,
    /// The lines of each side, and the page, that all layouts used last: using them again changes nothing in any.
    last: [u64; 2],
    last_page: u64,
}

/// The state of one layout.
#[derive(Debug)]
struct Layout {
    l1: [Cache; 2],
    /// The lines that were used last: using them again changes nothing.
    last: [u64; 2],
    last_page: u64,
    small: LruTlbs,
    large: LruTlbs,
    misses: LayoutMisses,
}

/// A page that does not move.
#[derive(Clone, Copy, Debug)]
pub struct FixedPage {
    /// Its virtual number, in pages of 4 KiB.
    pub page: u64,
    /// How it is mapped.
    pub mapping: Mapping,
}

impl Layouts {
    /// Empty caches and TLBs for a program of these pieces. All physical lines have numbers below `lines`.
    #[must_use]
    pub fn new(config: Config, paging: Paging, lines: u64, pieces: &[Piece]) -> Self {
        let mut next = lines.next_multiple_of(PAGE_LINES);
        let place = |piece: &Piece| {
            let first = next;
            // A shift is less than a page, and a last access may end beyond the piece.
            next += (piece.bytes.div_ceil(PAGE) + 2) * PAGE_LINES;
            first
        };
        let first_lines = pieces.iter().map(place).collect();
        let entries = usize::from(TLB_ENTRIES[config.tlb]);
        let layout = || Layout {
            l1: [(); 2].map(|()| Cache::new(config.l1_bytes, next)),
            last: [NO_LINE; 2],
            last_page: NO_LINE,
            small: LruTlbs::new(entries),
            large: LruTlbs::new(entries / 2),
            misses: LayoutMisses::default(),
        };
        let layouts = (0..LAYOUTS).map(|_| layout()).collect();
        let shifts = pieces.iter().map(Piece::shifts).collect();
        Self { paging, first_lines, shifts, layouts, last: [NO_LINE; 2], last_page: NO_LINE }
    }

    /// Uses a line that does not move, by its physical number. Returns the misses of all layouts together.
    #[inline]
    pub fn fixed(&mut self, side: Side, line: u64) -> u64 {
        if std::mem::replace(&mut self.last[side as usize], line) == line {
            return 0;
        }
        self.layouts.iter_mut().map(|layout| layout.line(side, line)).sum()
    }

    /// Uses a page of data that does not move. Returns the misses of the DTLBs of all layouts together.
    #[inline]
    pub fn fixed_page(&mut self, page: FixedPage) -> u64 {
        let FixedPage { page, mapping } = page;
        if mapping.size.is_none() {
            // Nothing maps it, so no TLB holds it.
            return 0;
        }
        let key = key_of(page, mapping.size);
        if std::mem::replace(&mut self.last_page, key) == key {
            return 0;
        }
        let use_one = |layout: &mut Layout| layout.page(key, mapping.size, mapping.global);
        self.layouts.iter_mut().map(use_one).sum()
    }

    /// Fetches or accesses `bytes` bytes at an offset into a piece. Returns the misses of all layouts together.
    #[inline]
    pub fn moved(&mut self, side: Side, piece: usize, (offset, bytes): (u64, u64)) -> LayoutMisses {
        let mut all = LayoutMisses::default();
        let (Some(first), Some(shifts)) = (self.first_lines.get(piece), self.shifts.get(piece))
        else {
            return all;
        };
        self.last[side as usize] = NO_LINE;
        if side == Side::Data {
            self.last_page = NO_LINE;
        }
        for (layout, shift) in self.layouts.iter_mut().zip(shifts) {
            let at = offset + u64::from(*shift);
            let end = at + bytes.max(1) - 1;
            let lines = first + at / LINE as u64..=first + end / LINE as u64;
            if side == Side::Data {
                for page in lines.start() / PAGE_LINES..=lines.end() / PAGE_LINES {
                    all.pages += layout.page(moved_key(page), Some(PageSize::Small), false);
                }
            }
            let missed: u64 = lines.map(|line| layout.line(side, line)).sum();
            *(if side == Side::Code { &mut all.code } else { &mut all.data }) += missed;
        }
        all
    }

    /// Applies an instruction that empties TLBs. Pieces are parts of one program, so an invalidated page of one is rare: then
    /// all pages that are not global go.
    pub fn flush(&mut self, what: Flush, moved: bool) {
        let globals = self.paging.apply(what);
        self.last_page = NO_LINE;
        for layout in &mut self.layouts {
            layout.last_page = NO_LINE;
            match what {
                Flush::Page(address) | Flush::Pcid(0, _, address) if !moved => {
                    layout.small.remove(key_of(address / PAGE, Some(PageSize::Small)));
                    layout.large.remove(key_of(address / PAGE, Some(PageSize::Large)));
                    layout.large.remove(key_of(address / PAGE, Some(PageSize::Huge)));
                }
                Flush::Cr4(_) if !globals => {}
                _ => {
                    layout.small.clear(globals);
                    layout.large.clear(globals);
                }
            }
        }
    }

    /// The misses of each layout so far.
    pub fn misses(&self) -> impl Iterator<Item = LayoutMisses> {
        self.layouts.iter().map(|layout| layout.misses)
    }
}

impl Layout {
    #[inline]
    fn line(&mut self, side: Side, line: u64) -> u64 {
        let number = side as usize;
        if self.last[number] == line {
            return 0;
        }
        self.last[number] = line;
        let missed = u64::from(self.l1[number].access(line) == WAYS);
        match side {
            Side::Code => self.misses.code += missed,
            Side::Data => self.misses.data += missed,
        }
        missed
    }

    #[inline]
    fn page(&mut self, key: u64, size: Option<PageSize>, global: bool) -> u64 {
        if self.last_page == key {
            return 0;
        }
        let tlb = match size {
            Some(PageSize::Small) => &mut self.small,
            Some(PageSize::Large | PageSize::Huge) => &mut self.large,
            // Nothing maps it, so no TLB holds it.
            None => return 0,
        };
        self.last_page = key;
        let missed = tlb.access(key, global);
        self.misses.pages += missed;
        missed
    }
}

/// The key of a page that does not move, by the number of one of its 4 KiB.
fn key_of(page: u64, size: Option<PageSize>) -> u64 {
    let size = size.unwrap_or(PageSize::Small);
    (page >> (size.bits() - PAGE.ilog2())) << 3 | (size as u64) << 1
}

/// The key of a page of a piece.
fn moved_key(page: u64) -> u64 {
    page << 3 | 1
}

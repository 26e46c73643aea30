//! One execution under several layouts of a program at once.
//!
//! Where a linker puts functions, and where the stack and the heap begin, decides which lines share a set of L1 and which data
//! shares a page. Two versions of a program differ in this by chance. The mean over layouts drawn at random does not.

use serde::{Deserialize, Serialize};

use crate::config::{Config, LAYOUTS, LINE, TLB_ENTRIES};
use crate::layout_lines::{Each, LayoutLines};
use crate::layout_pages::LayoutPages;
use crate::mapping::{Mapping, Side};
use crate::paging::{Flush, Paging};
use crate::section::Section;

/// Bytes of a page.
const PAGE: u64 = 4096;
const PAGE_LINES: u64 = PAGE / LINE as u64;
const NO_PAGE: u32 = u32::MAX;

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

/// An L1I, an L1D and DTLBs for each layout. [Sections](Section) of the program lie elsewhere in each layout, all else where it is.
#[derive(Debug)]
pub struct Layouts {
    paging: Paging,
    sections: Vec<Places>,
    lines: [LayoutLines; 2],
    pages: LayoutPages,
}

/// Where a section lies.
#[derive(Debug)]
struct Places {
    /// The number of its first line: a section has lines of its own, behind those of memory.
    first_line: u32,
    /// How far each layout shifts it, in bytes.
    shifts: Each<u32>,
    /// The numbers of its pages, once they are used.
    pages: Box<[u32]>,
    /// For each place in a page, in steps of `align`: the layouts that shift a byte there to the next page, a bit each.
    next_page: Box<[u32]>,
    align: u64,
    page_count: usize,
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
    /// Empty caches and TLBs for a program of these sections. All physical lines have numbers below `lines`.
    ///
    /// # Panics
    /// If the lines of memory and of the sections are more than 256 GiB.
    #[must_use]
    pub fn new(config: Config, paging: Paging, lines: u64, sections: &[Section]) -> Self {
        let mut next = lines.next_multiple_of(PAGE_LINES);
        let place = |section: &Section| {
            let first = next;
            next += pages_of(section) * PAGE_LINES;
            Places::new(first, section)
        };
        let sections = sections.iter().map(place).collect();
        let lines = [(); 2].map(|()| LayoutLines::new(config.l1_bytes, next));
        let pages = LayoutPages::new(usize::from(TLB_ENTRIES[config.tlb]));
        Self { paging, sections, lines, pages }
    }

    /// Uses a line that does not move, by its physical number. Returns the misses of all layouts together.
    #[inline]
    pub fn fixed(&mut self, side: Side, line: u64) -> u64 {
        self.lines[side as usize].fixed(short(line))
    }

    /// Uses a page of data that does not move. Returns the misses of the DTLBs of all layouts together.
    #[inline]
    pub fn fixed_page(&mut self, page: FixedPage) -> u64 {
        self.pages.fixed(page.page, page.mapping)
    }

    /// Fetches or accesses `bytes` bytes at an offset into a section. Returns the misses of all layouts together.
    #[inline]
    pub fn moved(
        &mut self,
        side: Side,
        section: usize,
        (offset, bytes): (u64, u64),
    ) -> LayoutMisses {
        let mut all = LayoutMisses::default();
        let Some(places) = self.sections.get_mut(section) else { return all };
        let bytes = bytes.max(1);
        if side == Side::Data {
            all.pages = places.use_pages((offset, bytes), &mut self.pages);
        }
        let (line, offset) = (offset / LINE as u64, offset % LINE as u64);
        let at = (places.first_line + short(line), short(offset));
        let missed = self.lines[side as usize].moved(at, short(bytes), &places.shifts);
        *(if side == Side::Code { &mut all.code } else { &mut all.data }) = missed;
        all
    }

    /// Applies an instruction that empties TLBs. Sections are parts of one program, so an invalidated page of one is rare: then
    /// all pages that are not global go.
    pub fn flush(&mut self, what: Flush, moved: bool) {
        let globals = self.paging.apply(what);
        match what {
            Flush::Page(address) | Flush::Pcid(0, _, address) if !moved => {
                self.pages.remove(address / PAGE);
            }
            Flush::Cr4(_) if !globals => {}
            _ => self.pages.clear(globals),
        }
    }

    /// The misses of each layout so far.
    pub fn misses(&self) -> impl Iterator<Item = LayoutMisses> {
        let [code, data] = [0, 1].map(|side: usize| self.lines[side].misses());
        let pages = self.pages.misses();
        (0..LAYOUTS).map(|layout| LayoutMisses {
            code: code[layout],
            data: data[layout],
            pages: pages[layout],
        })
    }
}

/// A line's number, which [`LayoutLines::new`] has checked to be short, or the bytes of one access, in 32 bits.
#[inline]
fn short(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[inline]
fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// The pages that a section uses: a shift is less than a page, and a last access may end beyond the section.
fn pages_of(section: &Section) -> u64 {
    section.bytes.div_ceil(PAGE) + 2
}

impl Places {
    fn new(first_line: u64, section: &Section) -> Self {
        Self {
            first_line: short(first_line),
            shifts: section.shifts().map(u32::from),
            pages: Box::default(),
            next_page: Box::default(),
            align: section.align.clamp(1, LINE as u64),
            page_count: index(pages_of(section)),
        }
    }

    /// Uses the pages of bytes of the section. Returns the misses of all layouts together.
    #[inline]
    fn use_pages(&mut self, (offset, bytes): (u64, u64), pages: &mut LayoutPages) -> u64 {
        let end = offset + bytes - 1;
        let (first_page, last_page) = (offset / PAGE, end / PAGE);
        if self.next_page.is_empty() {
            self.prepare_pages();
        }
        let next_page = |at: u64| self.next_page[index(at % PAGE / self.align)];
        let (first_next, last_next) = (next_page(offset), next_page(end));
        let mut missed = 0;
        for page in first_page..=last_page + 1 {
            // The layouts in which the first byte lies in this page or before it, and the last one in it or behind.
            let first = if page > first_page { u32::MAX } else { !first_next };
            let last = if page > last_page { last_next } else { u32::MAX };
            let Some(number) = self.pages.get_mut(index(page)) else { break };
            if first & last != 0 {
                if *number == NO_PAGE {
                    *number = pages.add_moved();
                }
                missed += pages.moved(*number, first & last);
            }
        }
        missed
    }

    /// Prepares for data: a section of code has no page in a DTLB.
    #[cold]
    fn prepare_pages(&mut self) {
        let reaches = |place: u64, shift: u32| place * self.align + u64::from(shift) >= PAGE;
        let layouts = |place| {
            let bits = self.shifts.iter().enumerate();
            bits.map(|(layout, shift)| u32::from(reaches(place, *shift)) << layout).sum()
        };
        self.next_page = (0..PAGE / self.align).map(layouts).collect();
        self.pages = vec![NO_PAGE; self.page_count].into();
    }
}

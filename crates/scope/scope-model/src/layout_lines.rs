//! The L1I or the L1D of each layout.

use wide::u32x8;

use crate::cache::WAYS;
use crate::config::{LAYOUTS, LINE};

/// Layouts that one vector holds.
const LANES: usize = 8;
const VECTORS: usize = LAYOUTS / LANES;
/// The tag of an empty way.
const EMPTY: u32 = u32::MAX;

/// A number for each layout.
pub type Each<T> = [T; LAYOUTS];

/// Caches of one size, one for each layout, with LRU replacement.
///
/// Each way of a set lies beside the same way of the other layouts. A line that does not move uses the same set in all layouts,
/// and is looked up for [`LANES`] of them at once. A line of a section uses another set in each.
#[derive(Debug)]
pub struct LayoutLines {
    /// The tags by set and way, the most recently used first.
    sets: Box<[[Row; WAYS]]>,
    /// The number of sets, less one, and its bits.
    mask: u32,
    bits: u32,
    last: Last,
    misses: Each<u64>,
}

/// The tags of one way of one set.
type Row = Each<u32>;

/// The lines that were used last: using them again changes nothing.
#[derive(Debug)]
enum Last {
    Fixed(u32),
    Moved(Each<u32>),
}

impl LayoutLines {
    /// Empty caches of `bytes` bytes for lines whose numbers are below `lines`.
    ///
    /// # Panics
    /// If the caches have no set, or `lines` are more than 256 GiB.
    pub fn new(bytes: usize, lines: u64) -> Self {
        let sets = bytes / LINE / WAYS;
        assert!(sets > 0, "a cache of no sets");
        assert!(lines < EMPTY.into(), "too much memory for layouts");
        let bits = sets.ilog2();
        let sets = vec![[[EMPTY; LAYOUTS]; WAYS]; 1 << bits];
        let last = Last::Fixed(EMPTY);
        Self { sets: sets.into(), mask: (1 << bits) - 1, bits, last, misses: [0; LAYOUTS] }
    }

    /// The misses of each layout so far.
    pub fn misses(&self) -> &Each<u64> {
        &self.misses
    }

    /// Uses a line that is the same in each layout. Returns how many missed it.
    #[inline]
    pub fn fixed(&mut self, line: u32) -> u64 {
        if matches!(self.last, Last::Fixed(last) if last == line) {
            return 0;
        }
        self.last = Last::Fixed(line);
        let (set, tag) = (line & self.mask, u32x8::splat(line >> self.bits));
        let Some(ways) = self.sets.get_mut(set as usize) else { return 0 };
        let mut missed = 0;
        for vector in 0..VECTORS {
            let mut before = tag;
            // All bits of a layout are set until its way is found.
            let mut left = u32x8::splat(u32::MAX);
            for way in &mut *ways {
                let (vectors, _) = way.as_chunks_mut::<LANES>();
                let Some(tags) = vectors.get_mut(vector) else { break };
                let old = u32x8::from(*tags);
                *tags = ((before & left) | (old & !left)).to_array();
                left &= !old.simd_eq(tag);
                before = old;
                if left == u32x8::splat(0) {
                    break;
                }
            }
            if left != u32x8::splat(0) {
                let (misses, _) = self.misses.as_chunks_mut::<LANES>();
                for (misses, left) in misses[vector].iter_mut().zip(left.to_array()) {
                    *misses += u64::from(left & 1);
                    missed += u64::from(left & 1);
                }
            }
        }
        missed
    }

    /// Uses the lines of `bytes` bytes. The first byte lies `offset` bytes and the layout's shift behind the start of the line
    /// `line`. Returns the misses of all layouts together.
    #[inline]
    pub fn moved(&mut self, (line, offset): (u32, u32), bytes: u32, shifts: &Each<u32>) -> u64 {
        const LINE_BITS: u32 = LINE.ilog2();
        let first = shifts.map(|shift| line + ((offset + shift) >> LINE_BITS));
        let end = shifts.map(|shift| line + ((offset + shift + bytes - 1) >> LINE_BITS));
        let (is_one, same) =
            (first == end, matches!(&self.last, Last::Moved(last) if *last == first));
        if is_one && same {
            return 0;
        }
        let mut missed = if same { 0 } else { self.each(&first, self.older(&first)) };
        if !is_one {
            let mut next = first;
            loop {
                next = std::array::from_fn(|layout| next[layout] + 1);
                let mut are_left = 0;
                for layout in 0..LAYOUTS {
                    are_left |= u32::from(next[layout] <= end[layout]) << layout;
                }
                if are_left == 0 {
                    break;
                }
                missed += self.each(&next, are_left);
            }
        }
        self.last = Last::Moved(end);
        missed
    }

    /// The layouts in which these lines are not the newest of their sets, a bit each.
    #[inline]
    fn older(&self, lines: &Each<u32>) -> u32 {
        let mut older = 0;
        for (layout, line) in lines.iter().enumerate() {
            let newest = self.sets[(line & self.mask) as usize][0][layout];
            older |= u32::from(newest != line >> self.bits) << layout;
        }
        older
    }

    /// Uses a line in each of some layouts, a bit each. Returns how many were missing.
    #[inline]
    fn each(&mut self, lines: &Each<u32>, mut layouts: u32) -> u64 {
        let mut missed = 0;
        while layouts != 0 {
            let layout = layouts.trailing_zeros() as usize % LAYOUTS;
            layouts &= layouts - 1;
            missed += self.one(layout, lines[layout]);
        }
        missed
    }

    /// Uses a line of one layout. Returns 1 if it was missing.
    #[inline]
    fn one(&mut self, layout: usize, line: u32) -> u64 {
        let (set, tag) = (line & self.mask, line >> self.bits);
        let Some(ways) = self.sets.get_mut(set as usize) else { return 0 };
        let mut before = tag;
        for way in ways {
            let old = std::mem::replace(&mut way[layout], before);
            if old == tag {
                return 0;
            }
            before = old;
        }
        self.misses[layout] += 1;
        1
    }
}

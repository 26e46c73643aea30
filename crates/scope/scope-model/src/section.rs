//! The sections of a program that layouts put elsewhere, and how far.

use crate::config::LAYOUTS;

/// A part of a program that a linker or an allocator may put anywhere: a function, a segment of data, the heap, the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// The seed of its random places: a hash of its name, which is the same in every version of the program.
    pub seed: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its alignment in bytes, at most a line: a power of two.
    pub align: u64,
}

/// Lines of a page, which shifts are spread over.
const LINES: u64 = 64;
/// Bytes of a line.
const LINE: u64 = 64;

impl Section {
    /// How far each layout shifts the section, in bytes: less than a page, as only the place in the page matters for L1.
    ///
    /// The layouts together spread a section evenly over the page and over the places in a line: less is left to chance than if
    /// each were drawn alone. Two sections are independent.
    #[must_use]
    pub fn shifts(&self) -> [u16; LAYOUTS] {
        let mut random = Random(self.seed);
        let (strata, phases) = (random.permutation(), random.permutation());
        let stratum = LINES / LAYOUTS as u64;
        let align = self.align.clamp(1, LINE);
        std::array::from_fn(|layout| {
            let line = strata[layout] * stratum + random.below(stratum);
            let phase = phases[layout] % (LINE / align) * align;
            u16::try_from(line * LINE + phase).unwrap_or(0)
        })
    }
}

const _: () =
    assert!(LINES.is_multiple_of(LAYOUTS as u64), "each layout has as many lines of a page");

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// A number below `limit`, which is small.
    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// The numbers of all layouts in a random order.
    fn permutation(&mut self) -> [u64; LAYOUTS] {
        let mut order = std::array::from_fn(|number| number as u64);
        for last in (1..LAYOUTS).rev() {
            let other = usize::try_from(self.below(last as u64 + 1)).unwrap_or(0);
            order.swap(last, other);
        }
        order
    }
}

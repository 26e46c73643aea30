//! Tells lines that follow a neighbour from isolated ones.

/// How many lines are remembered, and for how many uses of lines.
const LINES: usize = 64;
const WAYS: usize = 2;
const SETS: usize = LINES / WAYS;
const LINES_OF_A_PAGE: u64 = 64;

/// The lines that were used last beyond L1, as a prefetcher between L1 and L2 remembers them.
///
/// A line is sequential if the line before or after it was used shortly before: the steps of a copy, but not the nodes of a
/// list. A set forgets the older of its two lines. Lines at the same place of two pages share a set for one pair of pages
/// in 32 only, because copies from page to page use them in turn.
#[derive(Clone, Debug)]
pub struct Streams {
    /// The lines of each set, the newest first, and when they were used.
    recent: [[(u64, u64); WAYS]; SETS],
    /// Counts uses.
    now: u64,
}

impl Default for Streams {
    fn default() -> Self {
        Self { recent: [[(0, 0); WAYS]; SETS], now: LINES as u64 }
    }
}

impl Streams {
    /// Uses a line by its physical number. Returns whether it is sequential.
    #[inline]
    pub fn follows(&mut self, line: u64) -> bool {
        self.now += 1;
        let is_recent = |line: u64| {
            let used = |(other, at): (u64, u64)| (other == line) & (self.now - at <= LINES as u64);
            let [newest, older] = self.recent[set(line)];
            used(newest) | used(older)
        };
        let follows = is_recent(line.wrapping_sub(1)) | is_recent(line + 1);
        let set = &mut self.recent[set(line)];
        if set[0].0 != line {
            set[1] = set[0];
        }
        set[0] = (line, self.now);
        follows
    }
}

/// The set of a line: those of a page are in all sets, from a set that the page's number chooses.
#[inline]
fn set(line: u64) -> usize {
    // The golden ratio's digits: the upper bits of the product depend on all bits of the page's number.
    let begin = (line / LINES_OF_A_PAGE).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    usize::try_from(line.wrapping_add(begin) % SETS as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequential(lines: impl IntoIterator<Item = u64>) -> usize {
        let mut streams = Streams::default();
        lines.into_iter().filter(|line| streams.follows(*line)).count()
    }

    #[test]
    fn copies_are_sequential_in_both_directions_and_isolated_lines_are_not() {
        assert_eq!(sequential(100..200), 99);
        assert_eq!(sequential((100..200).rev()), 99);
        // From and to, alternating.
        assert_eq!(sequential((0..100).flat_map(|line| [1000 + line, 5010 + line])), 198);
        // From page to page, line for line.
        let pages = |to: u64| (0..64).flat_map(move |line| [6400 + line, to * 64 + line]);
        assert!((200..300).all(|to| sequential(pages(to)) == 126));
        assert_eq!(sequential((0..100).map(|line| line * 7)), 0);
        // Every line of a page, far apart in time.
        let scattered = (0..64).flat_map(|line| (0..65).map(move |other| line + other * 4096 + 64));
        assert_eq!(sequential(scattered), 0);
        assert_eq!(sequential([0]), 0);
    }
}

//! Tells lines that follow a neighbour from isolated ones.

/// Lines that are remembered, and for how many uses of others.
const LINES: usize = 64;

/// The lines that were used last beyond L1, as a prefetcher between L1 and L2 remembers them.
///
/// A line is sequential if the line before or after it was used shortly before: the steps of a copy, but not the nodes of a
/// list. The lower bits of a line's number choose its slot, so a line is forgotten when another one takes the slot.
#[derive(Clone, Debug)]
pub struct Streams {
    /// The line in each slot, and when it was used.
    recent: [(u64, u64); LINES],
    /// Counts uses.
    now: u64,
}

impl Default for Streams {
    fn default() -> Self {
        Self { recent: [(0, 0); LINES], now: LINES as u64 }
    }
}

impl Streams {
    /// Uses a line by its physical number. Returns whether it is sequential.
    #[inline]
    pub fn follows(&mut self, line: u64) -> bool {
        let slot = |line: u64| usize::try_from(line % LINES as u64).unwrap_or(0);
        self.now += 1;
        let is_recent = |line: u64| {
            let (other, at) = self.recent[slot(line)];
            (other == line) & (self.now - at <= LINES as u64)
        };
        let follows = is_recent(line.wrapping_sub(1)) | is_recent(line + 1);
        self.recent[slot(line)] = (line, self.now);
        follows
    }
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
        assert_eq!(sequential((0..100).map(|line| line * 7)), 0);
        // Every line of a page, far apart in time.
        let scattered = (0..64).flat_map(|line| (0..65).map(move |other| line + other * 4096 + 64));
        assert_eq!(sequential(scattered), 0);
        assert_eq!(sequential([0]), 0);
    }
}

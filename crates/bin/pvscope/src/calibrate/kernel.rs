//! Small programs whose accesses are known.

/// Bytes of a cache line.
pub const LINE: usize = scope_model::LINE;
const PAGE: usize = 4096;
/// The payload of a full TCP segment.
pub const SEGMENT: usize = 1448;
/// The buffer that segments are copied to.
pub const BUFFER: usize = 64 << 10;

/// A small program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Follows a list through every fourth line of a number of bytes: page by page, the lines of a page in random order. No line is
    /// next to another.
    List(usize),
    /// Follows a list with one line in each of a number of pages.
    Pages(usize),
    /// Reads a number of bytes in their order.
    Read(usize),
    /// Adds to a number that other processors could use.
    Locked,
    SystemCall,
    /// Follows a list through all lines of a number of bytes in random order.
    Scattered(usize),
    /// Copies segments out of a number of bytes, one after the other.
    Copied(usize),
}

use Kernel::{Copied, List, Locked, Pages, Read, Scattered, SystemCall};

/// The kernels that costs are fitted to, and those that check them.
const ALL: [Kernel; Kernel::COUNT] = [
    List(16 << 10),
    List(512 << 10),
    List(8 << 20),
    List(256 << 20),
    Read(16 << 10),
    Read(512 << 10),
    Read(8 << 20),
    Read(128 << 20),
    Pages(256),
    Pages(16 << 10),
    Locked,
    SystemCall,
    Scattered(2 << 20),
    Scattered(64 << 20),
    Copied(4 << 20),
    Copied(64 << 20),
];

impl Kernel {
    pub const COUNT: usize = 16;

    pub fn all() -> [Self; Self::COUNT] {
        ALL
    }

    /// Its place among all.
    pub fn number(self) -> usize {
        ALL.iter().position(|kernel| *kernel == self).unwrap_or(0)
    }

    /// Whether it checks costs, rather than that costs are fitted to it.
    pub fn is_check(self) -> bool {
        matches!(self, Scattered(_) | Copied(_))
    }

    /// Its name, without a mark of those that check costs.
    pub fn name(self) -> String {
        let size = |bytes: usize| match bytes >> 20 {
            0 => format!("{} KiB", bytes >> 10),
            mebibytes => format!("{mebibytes} MiB"),
        };
        match self {
            List(bytes) => format!("list, page by page, {}", size(bytes)),
            Pages(pages) => format!("list, a line in each of {pages} pages"),
            Read(bytes) => format!("read in order, {}", size(bytes)),
            Locked => "locked addition".to_owned(),
            SystemCall => "getppid".to_owned(),
            Scattered(bytes) => format!("list, scattered, {}", size(bytes)),
            Copied(bytes) => format!("copy of {SEGMENT} bytes, out of {}", size(bytes)),
        }
    }

    /// The unit of its cycles.
    pub fn unit(self) -> &'static str {
        match self {
            Locked | SystemCall => "call",
            _ => "line",
        }
    }

    /// Instructions per unit, roughly.
    pub fn instructions(self) -> u64 {
        match self {
            List(_) | Pages(_) | Scattered(_) => 5,
            Read(_) => 9,
            Copied(_) => 3,
            Locked => 2,
            // The kernel's own are not known.
            SystemCall => 100,
        }
    }

    /// The lines in the order of the list, for a kernel that follows one. All runs have the same order.
    pub fn order(self) -> Vec<u32> {
        const LINES: usize = PAGE / LINE;
        let mut random = Random(1);
        let lines: Vec<usize> = match self {
            List(bytes) => {
                let pages = random.shuffled(bytes / PAGE);
                let mut lines = |page: usize| {
                    let lines = random.shuffled(LINES / 4);
                    // The first one differs, so that the lines lie in all sets of the caches.
                    lines.into_iter().map(move |line| page * LINES + line * 4 + page / 32 % 4)
                };
                pages.into_iter().flat_map(&mut lines).collect()
            }
            // Different lines in the pages, so that they lie in all sets of an L2.
            Pages(pages) => {
                let pages = random.shuffled(pages).into_iter();
                pages.map(|page| page * LINES + page / 32 % LINES).collect()
            }
            Scattered(bytes) => random.shuffled(bytes / LINE),
            Read(_) | Copied(_) | Locked | SystemCall => Vec::new(),
        };
        lines.into_iter().map(|line| u32::try_from(line).unwrap_or(0)).collect()
    }

    /// The same with less memory, for tests.
    #[cfg(test)]
    pub fn smaller(self) -> Self {
        match self {
            List(bytes) => List(bytes.min(64 << 10)),
            Pages(pages) => Pages(pages.min(64)),
            Read(bytes) => Read(bytes.min(64 << 10)),
            Scattered(bytes) => Scattered(bytes.min(64 << 10)),
            Copied(bytes) => Copied(bytes.min(64 << 10)),
            other => other,
        }
    }
}

/// A generator of numbers, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or(0) % limit.max(1)
    }

    fn shuffled(&mut self, count: usize) -> Vec<usize> {
        let mut numbers: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            let other = self.below(last + 1);
            numbers.swap(last, other);
        }
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_visit_every_line_once() {
        for (kernel, count) in
            [(List(64 << 10), 256), (Pages(100), 100), (Scattered(64 << 10), 1024)]
        {
            let order = kernel.order();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!((order.len(), sorted.len()), (count, count), "{kernel:?}");
            assert!(!order.is_sorted());
        }
        // Page by page.
        let pages: Vec<u32> = List(64 << 10).order().iter().map(|line| line / 64).collect();
        assert_eq!(pages.chunk_by(|a, b| a == b).count(), 16);
    }
}

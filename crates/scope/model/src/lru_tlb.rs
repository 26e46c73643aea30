//! One TLB of one size.

/// A fully associative TLB with LRU replacement, as an ordered list: simple, for a few accesses that no filter has caught.
/// [`Tlb`](crate::Tlb) is the one for all sizes at once.
#[derive(Clone, Debug)]
pub struct LruTlb {
    /// The keys of pages, the most recently used first.
    keys: Vec<u64>,
    /// Whether each is global.
    globals: Vec<bool>,
    entries: usize,
}

impl LruTlb {
    /// An empty one.
    #[must_use]
    pub fn new(entries: usize) -> Self {
        Self { keys: Vec::with_capacity(entries), globals: Vec::with_capacity(entries), entries }
    }

    /// Uses a page. Returns whether it was there.
    #[inline]
    pub fn access(&mut self, key: u64, global: bool) -> bool {
        let found = self.keys.iter().position(|known| *known == key);
        if found.is_none() {
            if self.keys.len() == self.entries {
                self.keys.pop();
                self.globals.pop();
            }
            self.keys.push(key);
            self.globals.push(global);
        }
        let place = found.unwrap_or(self.keys.len() - 1);
        self.keys[..=place].rotate_right(1);
        self.globals[..=place].rotate_right(1);
        found.is_some()
    }

    /// Removes a page.
    pub fn remove(&mut self, key: u64) {
        if let Some(place) = self.keys.iter().position(|known| *known == key) {
            self.keys.remove(place);
            self.globals.remove(place);
        }
    }

    /// Removes all pages; global ones only if `globals`.
    pub fn clear(&mut self, globals: bool) {
        let mut kept = self.globals.iter().map(|global| *global && !globals);
        self.keys.retain(|_| kept.next().unwrap_or(false));
        self.globals.retain(|global| *global && !globals);
    }
}

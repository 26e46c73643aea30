//! Which pages of a ring are free.

use crate::RING_LEN;

const WORDS: usize = RING_LEN / 64;

/// A set of page numbers below [`RING_LEN`], of which the lowest is taken first.
///
/// So a frame's pages mostly follow each other, and are one piece for the kernel; and the few pages that are used again
/// and again stay in the CPU's caches.
#[derive(Clone, Debug)]
pub(crate) struct FreePages {
    words: [u64; WORDS],
    len: usize,
}

impl FreePages {
    /// All pages.
    pub(crate) fn all() -> Self {
        Self { words: [u64::MAX; WORDS], len: RING_LEN }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The free pages, in the order in which they will be taken.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.words.iter().enumerate().flat_map(|(word, bits)| {
            let mut left = *bits;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros() as usize;
                left &= left.wrapping_sub(1);
                (bit < 64).then_some(word * 64 + bit)
            })
        })
    }

    /// Takes the lowest free page.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<usize> {
        let word = self.words.iter().position(|bits| *bits != 0)?;
        let bit = self.words[word].trailing_zeros() as usize;
        self.words[word] &= self.words[word] - 1;
        self.len -= 1;
        Some(word * 64 + bit)
    }

    /// Frees a page. Returns whether it is a page that was taken.
    #[inline]
    #[must_use = "a page that is freed twice would hold two frames"]
    pub(crate) fn free(&mut self, page: usize) -> bool {
        let (word, bit) = (page / 64, 1 << (page % 64));
        let Some(bits) = self.words.get_mut(word).filter(|bits| **bits & bit == 0) else {
            return false;
        };
        *bits |= bit;
        self.len += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn frames_that_are_answered_in_order_take_pages_that_follow_each_other() {
        let mut pages = FreePages::all();
        let take = |pages: &mut FreePages| -> Vec<usize> {
            (0..16).map(|_| pages.take().unwrap()).collect()
        };
        let mut frames = std::collections::VecDeque::from([take(&mut pages), take(&mut pages)]);
        for _ in 0..100 {
            for page in frames.pop_front().unwrap() {
                assert!(pages.free(page));
            }
            let frame = take(&mut pages);
            assert!(frame.windows(2).all(|pair| pair[1] == pair[0] + 1), "{frame:?}");
            assert!(frame[15] < 48, "more pages than are in use: {frame:?}");
            frames.push_back(frame);
        }
    }

    proptest! {
        #[test]
        fn it_is_a_set_whose_lowest_is_taken_first(
            steps in prop::collection::vec(prop::option::of(0usize..300), 0..2000),
        ) {
            let mut pages = FreePages::all();
            let mut model: BTreeSet<usize> = (0..RING_LEN).collect();
            for step in steps {
                match step {
                    Some(page) => {
                        let was_taken = page < RING_LEN && model.insert(page);
                        prop_assert_eq!(pages.free(page), was_taken);
                    }
                    None => prop_assert_eq!(pages.take(), model.pop_first()),
                }
                prop_assert_eq!(pages.len(), model.len());
                prop_assert!(pages.iter().eq(model.iter().copied()));
            }
        }
    }
}

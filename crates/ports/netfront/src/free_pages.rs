//! Which pages of a ring are free.

#![expect(clippy::cast_possible_truncation, reason = "a page's number is below the ring's length")]

use crate::RING_LEN;

const WORDS: usize = RING_LEN / 64;

/// A set of page numbers below [`RING_LEN`], of which the lowest is taken first.
///
/// So a frame's pages mostly follow each other, and are one iovec for the kernel; and the few pages that are used again
/// and again stay in the CPU's caches.
#[derive(Clone, Debug)]
pub(crate) struct FreePages {
    words: [u64; WORDS],
    /// The pages that were set aside. They are not free, and no frame has them.
    aside: [u64; WORDS],
    len: usize,
}

impl FreePages {
    pub(crate) fn all() -> Self {
        Self { words: [u64::MAX; WORDS], aside: [0; WORDS], len: RING_LEN }
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

    /// Takes at most `count` free pages out of use, those that would be taken last. `kept` free pages stay.
    pub(crate) fn set_aside(&mut self, count: usize, kept: usize) -> Vec<u16> {
        let idle = count.min(self.len.saturating_sub(kept));
        let pages: Vec<_> = self.iter().skip(self.len - idle).map(|page| page as u16).collect();
        for page in &pages {
            let (word, bit) = place(usize::from(*page));
            self.words[word] &= !bit;
            self.aside[word] |= bit;
        }
        self.len -= idle;
        pages
    }

    /// Uses a page again that was set aside. Another one is ignored.
    pub(crate) fn put_back(&mut self, page: u16) {
        let (word, bit) = place(usize::from(page));
        let Some(aside) = self.aside.get_mut(word).filter(|aside| **aside & bit != 0) else {
            return;
        };
        *aside &= !bit;
        self.words[word] |= bit;
        self.len += 1;
    }

    /// Frees a page. Returns whether it is a page that was taken.
    #[inline]
    #[must_use = "a page that is freed twice would hold two frames"]
    pub(crate) fn free(&mut self, page: usize) -> bool {
        let (word, bit) = place(page);
        let Some(bits) = self.words.get_mut(word) else { return false };
        if (*bits | self.aside[word]) & bit != 0 {
            return false;
        }
        *bits |= bit;
        self.len += 1;
        true
    }
}

/// The word and the bit of a page.
#[inline]
fn place(page: usize) -> (usize, u64) {
    (page / 64, 1 << (page % 64))
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

    #[test]
    fn a_page_set_aside_is_freed_by_nobody_but_who_puts_it_back() {
        let mut pages = FreePages::all();
        let taken = pages.take().unwrap();
        let aside = pages.set_aside(RING_LEN, 64);
        assert_eq!((aside.len(), pages.len()), (RING_LEN - 65, 64));
        assert_eq!((aside[0], aside.last()), (65, Some(&255)), "those that are taken last");
        assert!(!pages.free(200), "a backend answers what it was never asked");
        assert!(pages.free(taken));
        (0..2).for_each(|_| [taken as u16, 200, 999].iter().for_each(|page| pages.put_back(*page)));
        assert_eq!(pages.len(), 66);
        assert_eq!(pages.iter().last(), Some(200));
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

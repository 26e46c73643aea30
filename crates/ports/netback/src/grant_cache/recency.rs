//! The places of a cache, in the order in which they were last used.

/// A list of all places that is linked both ways, in which a place moves without a search.
pub(super) struct Recency {
    /// Of each place, the place that was used before it and the one that was used after it. The
    /// entry behind the last place is the list's head: its neighbours are the ends.
    links: Box<[Links]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Links {
    before: u16,
    after: u16,
}

impl Recency {
    /// All of `places` places, of which there is one at least; none was used yet.
    pub(super) fn new(places: u16) -> Self {
        let all = places + 1;
        let links = |place| Links { before: (place + places) % all, after: (place + 1) % all };
        Self { links: (0..all).map(links).collect() }
    }

    fn head(&self) -> u16 {
        // Its number was given as 16 bits.
        u16::try_from(self.links.len() - 1).unwrap_or(u16::MAX)
    }

    fn at(&mut self, place: u16) -> &mut Links {
        &mut self.links[usize::from(place)]
    }

    /// The place that was not used for the longest time.
    #[inline]
    pub(super) fn oldest(&self) -> u16 {
        self.links[usize::from(self.head())].after
    }

    /// The place was used now.
    #[inline]
    pub(super) fn touch(&mut self, place: u16) {
        let head = self.head();
        let newest = self.at(head).before;
        self.put(place, Links { before: newest, after: head });
    }

    /// The place is the next one to be used again.
    pub(super) fn retire(&mut self, place: u16) {
        let (head, oldest) = (self.head(), self.oldest());
        self.put(place, Links { before: head, after: oldest });
    }

    /// Moves a place between two neighbours.
    #[inline]
    fn put(&mut self, place: u16, Links { before, after }: Links) {
        if before == place || after == place {
            return;
        }
        let old = *self.at(place);
        self.at(old.before).after = old.after;
        self.at(old.after).before = old.before;
        self.at(before).after = place;
        self.at(after).before = place;
        *self.at(place) = Links { before, after };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_queue(
            places in 1u16..9,
            steps in prop::collection::vec((any::<bool>(), 0u16..9), 0..60),
        ) {
            let mut recency = Recency::new(places);
            let mut model: VecDeque<u16> = (0..places).collect();
            for (is_used, place) in steps {
                let place = place % places;
                model.retain(|other| *other != place);
                if is_used {
                    recency.touch(place);
                    model.push_back(place);
                } else {
                    recency.retire(place);
                    model.push_front(place);
                }
                let mut all = vec![recency.oldest()];
                while all.len() < usize::from(places) {
                    all.push(recency.links[usize::from(all[all.len() - 1])].after);
                }
                prop_assert_eq!(&model, &all);
            }
        }
    }
}

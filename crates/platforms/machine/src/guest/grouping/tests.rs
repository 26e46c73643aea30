//! A page has one use at a time, and blocks are used for what they are reserved for.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::memory::MemorySize;

const BLOCKS: usize = 4;
/// The last block is not a whole one.
const PAGES: usize = BLOCKS * BLOCK_PAGES + 100;
const GRANTS: usize = 3;
const PLACES: usize = 700;

fn frames(grouping: Grouping) -> Frames {
    let size = MemorySize {
        pages: PAGES,
        grant_pages: GRANTS,
        exchange_pages: PLACES,
        ..MemorySize::default()
    };
    let mut frames = Frames::new(size);
    frames.group(grouping);
    frames
}

fn blocks(pages: &[Range<usize>]) -> BTreeSet<usize> {
    pages.iter().cloned().flatten().map(|page| page / BLOCK_PAGES).collect()
}

fn count(pages: &[Range<usize>]) -> usize {
    pages.iter().map(ExactSizeIterator::len).sum()
}

#[test]
fn coarse_requests_take_blocks_and_fine_ones_take_pages_of_one_block() {
    let mut frames = frames(Grouping::Grouped);
    let coarse = frames.give_up(2 * BLOCK_PAGES);
    assert_eq!(coarse, [3 * BLOCK_PAGES..PAGES - 100, 2 * BLOCK_PAGES..3 * BLOCK_PAGES]);
    let fine = frames.give_up(10);
    assert_eq!((count(&fine), blocks(&fine).len()), (10, 1));
    let more = frames.give_up(20);
    assert_eq!(blocks(&more), blocks(&fine), "it was broken already");
    assert_eq!(frames.out(), 2 * BLOCK_PAGES + 30);
}

#[test]
fn a_coarse_request_takes_no_block_that_is_used() {
    let mut frames = frames(Grouping::Grouped);
    for _ in 0..BLOCKS {
        frames.take_run(BLOCK_PAGES - 10).unwrap();
    }
    assert_eq!(frames.give_up(BLOCK_PAGES), []);
    assert_eq!(count(&frames.give_up(BLOCK_PAGES - 1)), PAGES - GRANTS - BLOCKS * 502);
}

#[test]
fn broken_blocks_are_completed_first() {
    let mut frames = frames(Grouping::Grouped);
    let coarse = frames.give_up(BLOCK_PAGES);
    let fine = frames.give_up(7);
    let wanted = frames.wanted(8);
    assert_eq!(blocks(&wanted[..1]), blocks(&fine));
    assert_eq!((count(&wanted), blocks(&wanted[1..])), (8, blocks(&coarse)));
    let whole: Vec<_> = wanted.into_iter().flat_map(|pages| frames.returned(pages)).collect();
    let partial = blocks(&fine).contains(&BLOCKS);
    assert_eq!(whole.len(), usize::from(!partial), "the coarse one lacks 511 pages");
    assert_eq!(frames.out(), BLOCK_PAGES - 1);
}

#[test]
fn scattered_places_lie_in_every_block() {
    let mut frames = frames(Grouping::Scattered);
    let places: Vec<_> = (0..=BLOCKS).map(|_| frames.take_place().unwrap()).collect();
    let lie: BTreeSet<_> = places.iter().map(|place| place / BLOCK_PAGES).collect();
    assert_eq!(lie.len(), BLOCKS + 1);
    assert!(places.iter().all(|place| *place < PAGES));
}

#[derive(Clone, Debug)]
enum Step {
    Run(usize),
    EndRun(Index),
    Place,
    EndPlace(Index),
    GiveUp(usize),
    Refill(usize),
    Group(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<Index>;
    prop_oneof![
        3 => (1usize..400).prop_map(Step::Run),
        2 => index().prop_map(Step::EndRun),
        4 => Just(Step::Place),
        2 => index().prop_map(Step::EndPlace),
        2 => (1usize..1200).prop_map(Step::GiveUp),
        2 => (1usize..1200).prop_map(Step::Refill),
        1 => any::<bool>().prop_map(Step::Group),
    ]
}

/// What was handed out.
struct World {
    frames: Frames,
    grouping: Grouping,
    taken: BTreeSet<usize>,
    runs: Vec<Range<usize>>,
    places: Vec<usize>,
}

impl World {
    fn new() -> Self {
        let grouping = Grouping::Grouped;
        let taken = (0..GRANTS).collect();
        Self { frames: frames(grouping), grouping, taken, runs: Vec::new(), places: Vec::new() }
    }

    fn take(&mut self, pages: Range<usize>) {
        for page in pages {
            assert!(self.taken.insert(page), "{page} is handed out twice");
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Run(count) => {
                let Some(first) = self.frames.take_run(count) else { return };
                assert!(first + count <= PAGES, "a run in a block of places");
                self.take(first..first + count);
                self.runs.push(first..first + count);
            }
            Step::EndRun(index) if !self.runs.is_empty() => {
                let run = self.runs.swap_remove(index.index(self.runs.len()));
                for page in run {
                    self.taken.remove(&page);
                    self.frames.put_back(page);
                }
            }
            Step::Place => {
                let Some(place) = self.frames.take_place() else { return };
                let grouped = self.grouping == Grouping::Grouped;
                assert_eq!(place >= PAGES, grouped, "a place in the wrong kind of block");
                self.take(place..place + 1);
                self.places.push(place);
            }
            Step::EndPlace(index) if !self.places.is_empty() => {
                let place = self.places.swap_remove(index.index(self.places.len()));
                self.taken.remove(&place);
                self.frames.put_back_place(place);
            }
            Step::GiveUp(count) => {
                let given = self.frames.give_up(count);
                assert!(self::count(&given) <= count);
                given.into_iter().for_each(|pages| self.take(pages));
            }
            Step::Refill(count) => {
                for pages in self.frames.wanted(count) {
                    pages.clone().for_each(|page| assert!(self.taken.remove(&page)));
                    self.frames.returned(pages);
                }
            }
            Step::Group(scattered) => {
                self.grouping = if scattered { Grouping::Scattered } else { Grouping::Grouped };
                self.frames.group(self.grouping);
            }
            Step::EndRun(_) | Step::EndPlace(_) => {}
        }
    }
}

proptest! {
    #[test]
    fn every_page_has_one_use_and_comes_back(steps in prop::collection::vec(step(), 1..80)) {
        let mut world = World::new();
        steps.iter().for_each(|step| world.step(step));
        let World { mut frames, runs, places, .. } = world;
        runs.into_iter().flatten().for_each(|page| frames.put_back(page));
        places.into_iter().for_each(|place| frames.put_back_place(place));
        for pages in frames.wanted(usize::MAX) {
            frames.returned(pages);
        }
        prop_assert_eq!(frames.out(), 0);
        frames.group(Grouping::Grouped);
        let all: BTreeSet<_> = (0..PLACES).filter_map(|_| frames.take_place()).collect();
        prop_assert_eq!(all, (PAGES..PAGES + PLACES).collect::<BTreeSet<_>>());
        prop_assert_eq!(frames.take_run(PAGES - GRANTS), Some(GRANTS));
        prop_assert!(frames.take_run(1).is_none());
    }
}

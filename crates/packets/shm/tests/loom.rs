//! The record of a guarded region under loom: every interleaving of a reader and of a thread that uses the record again for another region,
//! and every reordering that the memory model allows, of the production code.
//!
//! Shown: the reader finds one region or the other, or none, and never the start of one with the length of the other. The control tests leave
//! out a fence and must fail.

use std::sync::Arc;

use loom::sync::atomic::{AtomicUsize, Ordering, fence};
use loom::thread;

#[path = "../src/region/record.rs"]
mod record;

use record::{WORDS, Words, is_free, publish, region_of, retire};

const FIRST: (usize, usize) = (16, 4);
const SECOND: (usize, usize) = (64, 32);

struct Record {
    words: [AtomicUsize; WORDS],
    /// The fence that a control test leaves out.
    omitted: Option<Ordering>,
}

impl Words for Record {
    fn load(&self, word: usize, order: Ordering) -> usize {
        self.words[word].load(order)
    }
    fn store(&self, word: usize, value: usize, order: Ordering) {
        self.words[word].store(value, order);
    }
    fn fence(&self, order: Ordering) {
        if self.omitted != Some(order) {
            fence(order);
        }
    }
}

fn check(omitted: Option<Ordering>) {
    loom::model(move || {
        let words = std::array::from_fn(|_| AtomicUsize::new(0));
        let record = Arc::new(Record { words, omitted });
        publish(&*record, FIRST.0, FIRST.1);
        let writer = thread::spawn({
            let record = record.clone();
            move || {
                retire(&*record);
                assert!(is_free(&*record));
                publish(&*record, SECOND.0, SECOND.1);
            }
        });
        // Each start is in its region, and in what a torn record would say.
        for address in [FIRST.0, SECOND.0] {
            if let Some(found) = region_of(&*record, address) {
                assert!([FIRST, SECOND].contains(&found), "a torn record: {found:?}");
            }
        }
        writer.join().unwrap();
        assert_eq!(region_of(&*record, SECOND.0 + SECOND.1 - 1), Some(SECOND));
        assert_eq!(region_of(&*record, SECOND.0 + SECOND.1), None);
        assert_eq!(region_of(&*record, FIRST.0), None);
    });
}

#[test]
fn a_record_is_read_whole_or_not_at_all() {
    check(None);
}

#[test]
#[should_panic(expected = "a torn record")]
fn without_the_writers_fence_a_record_is_torn() {
    check(Some(Ordering::Release));
}

#[test]
#[should_panic(expected = "a torn record")]
fn without_the_readers_fence_a_record_is_torn() {
    check(Some(Ordering::Acquire));
}

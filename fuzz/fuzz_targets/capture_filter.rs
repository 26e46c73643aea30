//! Any text is a filter, or an error with a position in the text. Any filter can look at any
//! frame, and its negation says the opposite.
//!
//! Input: a length, a frame's first bytes, of that length, and the text. Run with
//! `cargo fuzz run --features libfuzzer --sanitizer none capture_filter`.
#![no_main]

use capture::{Direction, Filter, Packet};
use libfuzzer_sys::fuzz_target;
use port::{DropReason, Frame, HEADER_MAX, Outcome};

const OUTCOMES: [Outcome; 3] =
    [Outcome::Delivered, Outcome::SourceFault, Outcome::Dropped(DropReason::NoRoom)];

fuzz_target!(|input: &[u8]| {
    let Some((len, rest)) = input.split_first() else { return };
    let (header, text) = rest.split_at(rest.len().min(usize::from(*len).min(HEADER_MAX)));
    let Ok(text) = str::from_utf8(text) else { return };
    let filter = match text.parse::<Filter>() {
        Ok(filter) => filter,
        Err(error) => {
            assert!((1..=text.chars().count() + 1).contains(&error.position));
            return;
        }
    };
    // The empty text, and one that is as deep as may be, cannot stand in parentheses.
    let Ok(negated) = format!("not ({text})").parse::<Filter>() else { return };
    let mut frame = Frame::empty();
    if frame.set_header(header).is_err() {
        return;
    }
    for direction in [Direction::Inbound, Direction::Outbound] {
        for outcome in OUTCOMES {
            let packet = Packet { frame: &frame, direction, outcome };
            assert_ne!(filter.matches(&packet), negated.matches(&packet));
        }
    }
});

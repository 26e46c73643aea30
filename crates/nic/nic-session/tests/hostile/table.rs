//! All attacks, and what becomes of each under no protection, the hypervisor's, and the IOMMU's static, strict and
//! deferred mappings, in this order.

use crate::outcome::Outcome;
use crate::world::{Setup, World};
use crate::{ends, memory, rings};

pub struct Case {
    /// The name of its function.
    pub name: &'static str,
    pub setup: Setup,
    pub attack: fn(&mut World) -> Outcome,
    pub expected: [&'static str; 5],
}

const USUAL: Setup = Setup { start: 0, exchange_pages: 0 };
const EXCHANGE: Setup = Setup { start: 0, exchange_pages: 8 };
/// 100 descriptors before the indices wrap.
const WRAP: Setup = Setup { start: 100u32.wrapping_neg(), exchange_pages: 0 };

const WINS: &str = "guest wins";
const FOREIGN: &str = "refused at enqueue: a page of another domain, or of none";
const UNMAPPED: &str = "fault reported: address not mapped";
const OUTSIDE: &str = "fault reported: address outside the machine";
const SEQUENCE: &str = "fault reported: wrong sequence number";
const SEALED: &str = "refused: the file is sealed";
const GIVEN_UP: &str =
    "refused at enqueue: a page that the domain gave up, or that can be transferred";
const NO_CALL: &str = "refused at map: not with this context's protection";
const NO_MAP: &str = "refused at map: a page of another domain, or of none";
const OWN: &str = "harmless: both pages are its own";
const KEPT: &str = "harmless: it must keep the pages";

macro_rules! case {
    ($setup:ident, $module:ident::$attack:ident, $expected:expr) => {
        Case {
            name: stringify!($attack),
            setup: $setup,
            attack: $module::$attack,
            expected: $expected,
        }
    };
}

pub const CASES: &[Case] = &[
    case!(USUAL, memory::reads_another_guests_page, [WINS, FOREIGN, UNMAPPED, UNMAPPED, UNMAPPED]),
    case!(
        USUAL,
        memory::reads_across_the_end_of_its_memory,
        [WINS, FOREIGN, UNMAPPED, UNMAPPED, UNMAPPED]
    ),
    case!(USUAL, memory::reads_across_the_end_of_a_page, [OWN, OWN, OWN, UNMAPPED, UNMAPPED]),
    case!(USUAL, memory::writes_another_guests_page, [WINS, FOREIGN, UNMAPPED, UNMAPPED, UNMAPPED]),
    case!(USUAL, memory::maps_another_guests_page, [NO_CALL, NO_CALL, NO_CALL, NO_MAP, NO_MAP]),
    case!(
        USUAL,
        memory::gives_pages_to_the_balloon_that_are_in_use,
        [WINS, KEPT, UNMAPPED, KEPT, KEPT]
    ),
    case!(
        USUAL,
        memory::uses_pages_that_it_gave_to_the_balloon,
        [WINS, GIVEN_UP, UNMAPPED, UNMAPPED, UNMAPPED]
    ),
    case!(
        EXCHANGE,
        memory::uses_a_page_that_can_be_transferred,
        [OUTSIDE, GIVEN_UP, UNMAPPED, UNMAPPED, UNMAPPED]
    ),
    case!(
        USUAL,
        memory::gives_a_page_away_that_it_unmapped,
        [WINS, KEPT, UNMAPPED, UNMAPPED, UNMAPPED]
    ),
    case!(USUAL, rings::forges_a_descriptor, [WINS, SEALED, UNMAPPED, UNMAPPED, UNMAPPED]),
    case!(USUAL, rings::forges_a_consumer_index, [SEALED; 5]),
    case!(
        USUAL,
        rings::writes_its_ring_through_a_receive_buffer,
        [OUTSIDE, FOREIGN, UNMAPPED, UNMAPPED, UNMAPPED]
    ),
    case!(WRAP, rings::replays_a_descriptor_after_the_wrap, [SEQUENCE; 5]),
    case!(USUAL, rings::searches_for_another_contexts_page, ["harmless: each page is a file"; 5]),
    case!(
        USUAL,
        ends::writes_to_its_files_after_revocation,
        ["harmless: each assignment has new files"; 5]
    ),
    case!(
        USUAL,
        ends::has_its_card_killed_under_load,
        ["harmless: links go down, and up with the next card"; 5]
    ),
    case!(
        USUAL,
        ends::is_killed_under_load,
        ["harmless: its memory stays until the card is quiet, and no longer"; 5]
    ),
];

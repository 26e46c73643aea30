//! All attacks, and what becomes of each under no protection, the hypervisor's, and the IOMMU's static, strict and
//! deferred mappings, in this order.

use crate::outcome::Outcome;
use crate::world::{Setup, World};
use crate::{memory, rings, service};

pub struct Case {
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
const BACKWARDS: &str = "fault reported: producer index went back";
const AHEAD: &str = "fault reported: producer index beyond the ring";
const SEALED: &str = "refused: the file is sealed";
const GIVEN_UP: &str =
    "refused at enqueue: a page that the domain gave up, or that can be transferred";
const NO_CALL: &str = "refused at map: not with this context's protection";
const NO_MAP: &str = "refused at map: a page of another domain, or of none";
const WRAPS: &str = "refused at enqueue: beyond the end of all addresses";
const FULL: &str = "refused at enqueue: room for 0 descriptors only";
const NOT_YOURS: &str = "refused at enqueue: not the caller's context";
const OWN: &str = "harmless: both pages are its own";
const KEPT: &str = "harmless: it must keep the pages";

pub const CASES: &[Case] = &[
    Case {
        name: "reads another guest's page",
        setup: USUAL,
        attack: memory::reads_another_guests_page,
        expected: [WINS, FOREIGN, UNMAPPED, UNMAPPED, UNMAPPED],
    },
    Case {
        name: "reads across the end of its memory",
        setup: USUAL,
        attack: memory::reads_across_the_end_of_its_memory,
        expected: [WINS, FOREIGN, UNMAPPED, UNMAPPED, UNMAPPED],
    },
    Case {
        name: "reads across the end of the machine",
        setup: USUAL,
        attack: memory::reads_across_the_end_of_the_machine,
        expected: [OUTSIDE, FOREIGN, UNMAPPED, UNMAPPED, UNMAPPED],
    },
    Case {
        name: "reads across the end of all addresses",
        setup: USUAL,
        attack: memory::reads_across_the_end_of_all_addresses,
        expected: [OUTSIDE, WRAPS, UNMAPPED, UNMAPPED, UNMAPPED],
    },
    Case {
        name: "reads across the end of a page",
        setup: USUAL,
        attack: memory::reads_across_the_end_of_a_page,
        expected: [OWN, OWN, OWN, UNMAPPED, UNMAPPED],
    },
    Case {
        name: "writes another guest's page",
        setup: USUAL,
        attack: memory::writes_another_guests_page,
        expected: [WINS, FOREIGN, UNMAPPED, UNMAPPED, UNMAPPED],
    },
    Case {
        name: "maps another guest's page",
        setup: USUAL,
        attack: memory::maps_another_guests_page,
        expected: [NO_CALL, NO_CALL, NO_CALL, NO_MAP, NO_MAP],
    },
    Case {
        name: "gives pages to the balloon that are in use",
        setup: USUAL,
        attack: memory::gives_pages_to_the_balloon_that_are_in_use,
        expected: [WINS, KEPT, UNMAPPED, KEPT, KEPT],
    },
    Case {
        name: "uses pages that it gave to the balloon",
        setup: USUAL,
        attack: memory::uses_pages_that_it_gave_to_the_balloon,
        expected: [WINS, GIVEN_UP, UNMAPPED, UNMAPPED, UNMAPPED],
    },
    Case {
        name: "uses a page that can be transferred",
        setup: EXCHANGE,
        attack: memory::uses_a_page_that_can_be_transferred,
        expected: [OUTSIDE, GIVEN_UP, UNMAPPED, UNMAPPED, UNMAPPED],
    },
    Case {
        name: "gives a page away that it unmapped",
        setup: USUAL,
        attack: memory::gives_a_page_away_that_it_unmapped,
        expected: [WINS, KEPT, UNMAPPED, UNMAPPED, UNMAPPED],
    },
    Case {
        name: "forges a descriptor",
        setup: USUAL,
        attack: rings::forges_a_descriptor,
        expected: [WINS, SEALED, UNMAPPED, UNMAPPED, UNMAPPED],
    },
    Case {
        name: "forges a consumer index",
        setup: USUAL,
        attack: rings::forges_a_consumer_index,
        expected: [SEALED; 5],
    },
    Case {
        name: "writes its ring through a receive buffer",
        setup: USUAL,
        attack: rings::writes_its_ring_through_a_receive_buffer,
        expected: [OUTSIDE, FOREIGN, UNMAPPED, UNMAPPED, UNMAPPED],
    },
    Case {
        name: "moves its producer back",
        setup: USUAL,
        attack: rings::moves_its_producer_back,
        expected: [BACKWARDS; 5],
    },
    Case {
        name: "moves its producer beyond the ring",
        setup: USUAL,
        attack: rings::moves_its_producer_beyond_the_ring,
        expected: [AHEAD; 5],
    },
    Case {
        name: "moves its producer to a stale descriptor",
        setup: USUAL,
        attack: rings::moves_its_producer_to_a_stale_descriptor,
        expected: [SEQUENCE; 5],
    },
    Case {
        name: "replays a descriptor after the wrap",
        setup: WRAP,
        attack: rings::replays_a_descriptor_after_the_wrap,
        expected: [SEQUENCE; 5],
    },
    Case {
        name: "wraps its sequence numbers",
        setup: WRAP,
        attack: rings::honest_numbers_that_wrap,
        expected: ["harmless: 600 frames cross the wrap"; 5],
    },
    Case {
        name: "leaves a gap in the numbers",
        setup: USUAL,
        attack: rings::leaves_a_gap_in_the_numbers,
        expected: [SEQUENCE, "harmless: the hypervisor numbers", SEQUENCE, SEQUENCE, SEQUENCE],
    },
    Case {
        name: "posts more than the ring holds",
        setup: USUAL,
        attack: rings::posts_more_than_the_ring_holds,
        expected: [AHEAD, FULL, AHEAD, AHEAD, AHEAD],
    },
    Case {
        name: "calls for another context",
        setup: USUAL,
        attack: rings::calls_for_another_context,
        expected: [NOT_YOURS; 5],
    },
    Case {
        name: "looks for another context's page",
        setup: USUAL,
        attack: rings::looks_for_another_contexts_page,
        expected: ["harmless: each page is a file"; 5],
    },
    Case {
        name: "floods its mailboxes",
        setup: USUAL,
        attack: service::floods_its_mailboxes,
        expected: ["harmless: a step handles a mailbox once"; 5],
    },
    Case {
        name: "fills the ring of vectors",
        setup: USUAL,
        attack: service::fills_the_ring_of_vectors,
        expected: ["harmless: the card keeps who is to be interrupted"; 5],
    },
    Case {
        name: "is revoked under load",
        setup: USUAL,
        attack: service::is_revoked_under_load,
        expected: ["harmless: the card has stopped when it says so"; 5],
    },
    Case {
        name: "writes to its files after revocation",
        setup: USUAL,
        attack: service::writes_to_its_files_after_revocation,
        expected: ["harmless: each assignment has new files"; 5],
    },
    Case {
        name: "has its card killed under load",
        setup: USUAL,
        attack: service::has_its_card_killed_under_load,
        expected: ["harmless: links go down, and up with the next card"; 5],
    },
    Case {
        name: "is killed under load",
        setup: USUAL,
        attack: service::is_killed_under_load,
        expected: ["harmless: its memory stays until the card is quiet, and no longer"; 5],
    },
];

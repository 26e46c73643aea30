//! Addresses that were taught.

use switch::{Learning, Limits, MacTable, PortId, TeachError};

use crate::{SLOTS, station};

#[test]
fn an_address_that_was_taught_stays_until_its_port_goes() {
    let table = MacTable::new(64, Limits::default());
    // Also if another was faster.
    table.learn(station(1), PortId(0), 5);
    table.teach(station(1), PortId(1), 5).unwrap();
    for now in [5, 6, 100_000] {
        assert_eq!(table.learn(station(1), PortId(0), now), Learning::RefusedMove);
        assert_eq!(table.lookup(station(1), now), Some(PortId(1)));
    }
    table.sweep(1_000_000);
    assert_eq!(table.lookup(station(1), 1_000_000), Some(PortId(1)), "it does not age");
    assert_eq!(table.teach(station(1), PortId(2), 6), Err(TeachError::Taken(PortId(1))));
    assert_eq!(table.teach(station(1), PortId(1), 6), Ok(()));
    assert_eq!(table.counts().refused_moves, 3);
    table.forget_port(PortId(1));
    assert_eq!(table.lookup(station(1), 6), None);
    assert_eq!(table.teach(station(1), PortId(2), 6), Ok(()));
}

#[test]
fn what_was_taught_finds_a_place_in_a_full_bucket() {
    let table = MacTable::new(SLOTS, Limits { per_port: 8, ..Limits::default() });
    for number in 0..8 {
        table.learn(station(number), PortId(0), number);
    }
    for number in 0..8 {
        table.teach(station(100 + number), PortId(1), 10).unwrap();
        assert_eq!(table.lookup(station(number), 10), None, "seen for the longest time");
    }
    assert_eq!(table.teach(station(200), PortId(2), 10), Err(TeachError::Full));
    assert_eq!((table.learnt(PortId(0)), table.learnt(PortId(1))), (0, 0));
}

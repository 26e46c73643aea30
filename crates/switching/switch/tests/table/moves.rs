//! Stations that move, and addresses that were taught and stay.

use switch::{Learning, Limits, MacTable, Move, PortId, TeachError};

use crate::{SLOTS, station};

#[test]
fn a_flapping_station_moves_once_per_second() {
    const SECONDS: u32 = 10;
    let table = MacTable::new(64, Limits::default());
    table.learn(station(1), PortId(0), 0);
    for now in 0..SECONDS {
        for _ in 0..1000 {
            table.learn(station(1), PortId(1), now);
            table.learn(station(1), PortId(0), now);
        }
    }
    assert_eq!(table.counts().moves, SECONDS.into());
    // Each second has a move, and the frames after it from the port that it left: 1000 and 999 in turn.
    assert_eq!(table.counts().refused_moves, u64::from(SECONDS) * 1999 / 2);
}

#[test]
fn a_port_takes_a_bounded_number_of_stations_per_second() {
    let limits = Limits { moves_per_second: 10, ..Limits::default() };
    let table = MacTable::new(8192, limits);
    for number in 0..1000 {
        table.learn(station(number), PortId(0), 0);
    }
    let stations = table.learnt(PortId(0));
    for now in 100..105 {
        for number in 0..1000 {
            table.learn(station(number), PortId(1), now);
        }
        assert_eq!(table.counts().moves, u64::from(now - 99) * 10);
    }
    assert_eq!((table.learnt(PortId(0)), table.learnt(PortId(1))), (stations - 50, 50));
    // Another port has its own.
    table.learn(station(0), PortId(2), 105);
    assert_eq!(table.lookup(station(0), 105), Some(PortId(2)));
}

#[test]
fn moves_are_reported_once() {
    let table = MacTable::new(64, Limits::default());
    for number in [1, 2, 3] {
        table.learn(station(number), PortId(0), 10);
    }
    table.learn(station(1), PortId(1), 20);
    table.learn(station(2), PortId(1), 20);
    table.learn(station(2), PortId(2), 21);
    assert_eq!(table.take_moves(20), []);
    assert_eq!(table.take_moves(21), []);
    let moved =
        |number, from, to| Move { mac: station(number), from: PortId(from), to: PortId(to) };
    assert_eq!(table.take_moves(22), [moved(1, 0, 1)]);
    assert_eq!(table.take_moves(23), [moved(2, 1, 2)]);
    assert_eq!(table.take_moves(24), []);
}

#[test]
fn a_moving_station_takes_its_count_along() {
    let table = MacTable::new(64, Limits::default());
    table.learn(station(1), PortId(0), 5);
    table.learn(station(1), PortId(1), 6);
    assert_eq!(table.lookup(station(1), 6), Some(PortId(1)));
    assert_eq!((table.learnt(PortId(0)), table.learnt(PortId(1))), (0, 1));
}

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

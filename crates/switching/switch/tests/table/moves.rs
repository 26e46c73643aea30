//! Stations that move.

use switch::{Limits, MacTable, Move, PortId};

use crate::station;

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

//! The learning table: its bounds, against a plain model, and under several threads.

mod model;
mod moves;
mod workers;

use switch::{Limits, MacEntry, MacTable, PortId};
use wire::ethernet::MacAddr;

const SLOTS: usize = 8;

/// The station with this number; their addresses are unicast and not zero.
fn station(number: u32) -> MacAddr {
    let [a, b, c, d] = number.to_be_bytes();
    MacAddr([0x02, 0, a, b, c, d])
}

fn sorted_entries(table: &MacTable, now: u32) -> Vec<MacEntry> {
    let mut entries = table.entries(now);
    entries.sort_by_key(|entry| entry.mac);
    entries
}

#[test]
fn capacity_is_a_power_of_two_of_whole_buckets() {
    for (asked, got) in [(0, 8), (8, 8), (9, 16), (8192, 8192)] {
        assert_eq!(MacTable::new(asked, Limits::default()).capacity(), got);
    }
}

#[test]
fn a_worker_with_a_lagging_clock_ages_nothing() {
    let table = MacTable::new(64, Limits { age_seconds: 2, ..Limits::default() });
    table.learn(station(1), PortId(0), 10);
    table.learn(station(1), PortId(0), 9);
    assert_eq!(table.lookup(station(1), 9), Some(PortId(0)));
    assert_eq!(table.lookup(station(1), 11), Some(PortId(0)));
    assert_eq!(table.lookup(station(1), 12), None);
}

/// A flood of addresses never evicts the stations of other ports, with any bound.
#[test]
fn a_flood_evicts_no_fresh_entry_of_another_port() {
    const VICTIMS: u32 = 32;
    let table = MacTable::new(256, Limits { per_port: 10_000, ..Limits::default() });
    for number in 0..VICTIMS {
        table.learn(station(number), PortId(1), 100);
    }
    let learnt = table.learnt(PortId(1));
    let known: Vec<_> = table.entries(100);
    for number in 0..10_000 {
        table.learn(station(1_000_000 + number), PortId(2), 101);
    }
    assert_eq!(table.learnt(PortId(1)), learnt);
    for entry in known {
        assert_eq!(table.lookup(entry.mac, 101), Some(PortId(1)));
    }
    assert!(table.counts().refused_addresses > 0);
}

#[test]
fn a_flood_stops_at_the_ports_bound() {
    let table = MacTable::new(4096, Limits { per_port: 100, ..Limits::default() });
    for number in 0..10_000 {
        table.learn(station(number), PortId(2), 0);
    }
    assert_eq!(table.learnt(PortId(2)), 100);
    table.learn(station(1_000_000), PortId(1), 0);
    assert_eq!(table.lookup(station(1_000_000), 0), Some(PortId(1)));
    assert_eq!(table.counts().refused_addresses, 9_900);
}

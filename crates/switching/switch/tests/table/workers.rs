//! Several threads on one table.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use switch::{Limits, MacEntry, MacTable, PortId, TeachError};

use crate::{SLOTS, sorted_entries, station};

/// Everything in the table: seen from second 0, nothing is aged.
fn all_entries(table: &MacTable) -> Vec<MacEntry> {
    sorted_entries(table, 0)
}

/// Threads that learn, move, sweep and forget in two buckets leave a table whose counts are its contents.
#[test]
fn counts_match_contents_after_a_race() {
    const PORTS: u16 = 4;
    for round in 0..20 {
        let table =
            MacTable::new(2 * SLOTS, Limits { per_port: 5, age_seconds: 3, ..Limits::default() });
        thread::scope(|scope| {
            for worker in 0..4u32 {
                let table = &table;
                scope.spawn(move || race(table, round * 4 + worker, PORTS));
            }
        });
        let entries = all_entries(&table);
        for pair in entries.windows(2) {
            assert_ne!(pair[0].mac, pair[1].mac, "an address has two slots");
        }
        for port in (0..PORTS).map(PortId) {
            let held = entries.iter().filter(|entry| entry.port == port).count();
            assert_eq!(table.learnt(port) as usize, held);
            assert!(held <= 5);
        }
    }
}

fn race(table: &MacTable, seed: u32, ports: u16) {
    let mut random = seed.wrapping_mul(0x9e37_79b9) | 1;
    for turn in 0..3000u32 {
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        let port = PortId(u16::try_from(random % 4).expect("small") % ports);
        match (random >> 8) % 64 {
            0 => table.sweep(turn / 100),
            1 => table.forget_port(port),
            _ => {
                table.learn(station((random >> 16) % 20), port, turn / 100);
            }
        }
    }
}

/// A lookup that races with a station's moves finds it at the one or the other port, never nowhere.
#[test]
fn a_moving_station_is_always_found() {
    let table = MacTable::new(64, Limits::default());
    table.learn(station(1), PortId(0), 0);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0..20_000u16 {
                table.learn(station(1), PortId(turn % 2), turn.into());
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            let found = table.lookup(station(1), 0);
            assert!(matches!(found, Some(PortId(0 | 1))), "{found:?}");
        }
    });
    assert_eq!(table.counts().moves, 19_999);
    assert_eq!(table.learnt(PortId(0)) + table.learnt(PortId(1)), 1);
}

/// Stations that different workers learn at the same time are all found afterwards.
#[test]
fn workers_learn_side_by_side() {
    const PER_WORKER: u32 = 64;
    let table = MacTable::new(65_536, Limits::default());
    thread::scope(|scope| {
        for worker in 0..4u16 {
            let table = &table;
            scope.spawn(move || {
                for number in 0..PER_WORKER {
                    table.learn(station(u32::from(worker) << 16 | number), PortId(worker), 0);
                }
            });
        }
    });
    assert_eq!(table.counts().refused_addresses, 0);
    for worker in 0..4u16 {
        assert_eq!(table.learnt(PortId(worker)), PER_WORKER);
    }
}

/// Of all workers that see a station in one second, one moves it.
#[test]
fn workers_move_a_station_once_per_second() {
    const SECONDS: u32 = 200;
    let table = MacTable::new(64, Limits::default());
    table.learn(station(1), PortId(0), 0);
    for now in 1..=SECONDS {
        thread::scope(|scope| {
            for worker in 1..=3u16 {
                let table = &table;
                scope.spawn(move || {
                    for turn in 0..20 {
                        table.learn(station(1), PortId(worker * 100 + turn), now);
                    }
                });
            }
        });
        assert_eq!(table.counts().moves, now.into());
    }
}

/// Whatever workers learn meanwhile, an address has its port from when it was taught until that port goes.
#[test]
fn workers_take_no_address_that_is_taught() {
    const TAUGHT: PortId = PortId(9);
    let table = MacTable::new(2 * SLOTS, Limits { age_seconds: 3, ..Limits::default() });
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for worker in 0..3 {
            let (table, done) = (&table, &done);
            scope.spawn(move || {
                let mut round = worker;
                while !done.load(Ordering::Acquire) {
                    race(table, round, 4);
                    round += 3;
                }
            });
        }
        for _ in 0..300 {
            for number in 0..4 {
                table.teach(station(number), TAUGHT, 0).unwrap();
            }
            for number in 0..4 {
                // A worker that missed it has put it in again, and is about to take that out.
                while table.lookup(station(number), 30) != Some(TAUGHT) {
                    thread::yield_now();
                }
                let again = table.teach(station(number), PortId(8), 0);
                assert_eq!(again, Err(TeachError::Taken(TAUGHT)));
            }
            table.forget_port(TAUGHT);
        }
        done.store(true, Ordering::Release);
    });
}

//! The learning table against a plain map, and under several threads.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use proptest::prelude::*;
use switch::{Entry, Limits, MacTable, PortId};
use wire::ethernet::MacAddr;

const SLOTS: usize = 8;

/// The station with this number; their addresses are unicast and not zero.
fn station(number: u32) -> MacAddr {
    let [a, b, c, d] = number.to_be_bytes();
    MacAddr([0x02, 0, a, b, c, d])
}

#[derive(Clone, Debug)]
enum Step {
    Learn { station: u32, port: u16 },
    LearnGroup { port: u16 },
    LearnZero { port: u16 },
    Forget { port: u16 },
    Sweep,
    Wait { seconds: u32 },
}

fn step(stations: u32, ports: u16) -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (0..stations, 0..ports).prop_map(|(station, port)| Step::Learn { station, port }),
        1 => (0..ports).prop_map(|port| Step::LearnGroup { port }),
        1 => (0..ports).prop_map(|port| Step::LearnZero { port }),
        1 => (0..ports).prop_map(|port| Step::Forget { port }),
        2 => Just(Step::Sweep),
        3 => (1u32..8).prop_map(|seconds| Step::Wait { seconds }),
    ]
}

/// A model of the table, as a map. All its stations share one bucket, or there are no more of them
/// than a bucket has slots.
struct Model {
    limits: Limits,
    stations: HashMap<MacAddr, (PortId, u32)>,
    refused: u64,
}

impl Model {
    fn learnt(&self, port: PortId) -> u32 {
        let count = self.stations.values().filter(|&&(at, _)| at == port).count();
        u32::try_from(count).expect("few")
    }

    fn is_aged(&self, seen: u32, now: u32) -> bool {
        now - seen >= self.limits.age_seconds
    }

    fn oldest_aged(&self, now: u32) -> Option<MacAddr> {
        let aged = self.stations.iter().filter(|&(_, &(_, seen))| self.is_aged(seen, now));
        aged.min_by_key(|&(_, &(_, seen))| seen).map(|(&mac, _)| mac)
    }

    fn learn(&mut self, mac: MacAddr, port: PortId, now: u32) {
        let known = self.stations.get(&mac).copied();
        if known.is_some_and(|(at, _)| at == port) {
            self.stations.insert(mac, (port, now));
            return;
        }
        let must_evict = known.is_none() && self.stations.len() == SLOTS;
        let victim = self.oldest_aged(now).filter(|_| must_evict);
        if self.learnt(port) == self.limits.per_port || (must_evict && victim.is_none()) {
            self.refused += 1;
            return;
        }
        if let Some(victim) = victim {
            self.stations.remove(&victim);
        }
        self.stations.insert(mac, (port, now));
    }

    fn apply(&mut self, step: &Step, now: u32) {
        match *step {
            Step::Learn { station: number, port } => self.learn(station(number), PortId(port), now),
            Step::Forget { port } => self.stations.retain(|_, &mut (at, _)| at != PortId(port)),
            Step::Sweep => {
                let age_seconds = self.limits.age_seconds;
                self.stations.retain(|_, &mut (_, seen)| now - seen < age_seconds);
            }
            Step::LearnGroup { .. } | Step::LearnZero { .. } | Step::Wait { .. } => {}
        }
    }

    fn entries(&self, now: u32) -> Vec<Entry> {
        let fresh = self.stations.iter().filter(|&(_, &(_, seen))| !self.is_aged(seen, now));
        let mut entries: Vec<_> =
            fresh.map(|(&mac, &(port, seen))| Entry { mac, port, age: now - seen }).collect();
        entries.sort_by_key(|entry| entry.mac);
        entries
    }
}

fn apply(table: &MacTable, step: &Step, now: u32) {
    match *step {
        Step::Learn { station: number, port } => table.learn(station(number), PortId(port), now),
        Step::LearnGroup { port } => table.learn(MacAddr([0x03, 0, 0, 0, 0, 1]), PortId(port), now),
        Step::LearnZero { port } => table.learn(MacAddr([0; 6]), PortId(port), now),
        Step::Forget { port } => table.forget_port(PortId(port)),
        Step::Sweep => table.sweep(now),
        Step::Wait { .. } => {}
    }
}

fn sorted_entries(table: &MacTable, now: u32) -> Vec<Entry> {
    let mut entries = table.entries(now);
    entries.sort_by_key(|entry| entry.mac);
    entries
}

/// Runs the steps on table and model, one second or more apart so that "the oldest" is one entry.
fn agree(capacity: usize, stations: u32, ports: u16, steps: &[Step]) -> Result<(), TestCaseError> {
    let limits = Limits { per_port: 3, age_seconds: 20 };
    let table = MacTable::new(capacity, limits);
    let mut model = Model { limits, stations: HashMap::new(), refused: 0 };
    let mut now = 0;
    for step in steps {
        now += if let Step::Wait { seconds } = step { *seconds } else { 1 };
        apply(&table, step, now);
        model.apply(step, now);
        prop_assert_eq!(sorted_entries(&table, now), model.entries(now));
        prop_assert_eq!(table.refused(), model.refused);
        for port in (0..ports).map(PortId) {
            prop_assert_eq!(table.learnt(port), model.learnt(port));
        }
        for mac in (0..stations).map(station) {
            let known = model.stations.get(&mac);
            let fresh = known.filter(|&&(_, seen)| !model.is_aged(seen, now));
            prop_assert_eq!(table.lookup(mac, now), fresh.map(|&(port, _)| port));
        }
        prop_assert_eq!(table.lookup(MacAddr([0; 6]), now), None);
        prop_assert_eq!(table.lookup(MacAddr([0x03, 0, 0, 0, 0, 1]), now), None);
    }
    Ok(())
}

proptest! {
    /// More stations than slots: eviction, and refusal where nothing is aged.
    #[test]
    fn one_bucket_is_a_map(steps in prop::collection::vec(step(14, 5), 0..200)) {
        agree(SLOTS, 14, 5, &steps)?;
    }

    #[test]
    fn many_buckets_are_a_map(steps in prop::collection::vec(step(8, 4), 0..200)) {
        agree(1024, 8, 4, &steps)?;
    }
}

#[test]
fn capacity_is_a_power_of_two_of_whole_buckets() {
    for (asked, got) in [(0, 8), (8, 8), (9, 16), (8192, 8192)] {
        assert_eq!(MacTable::new(asked, Limits::default()).capacity(), got);
    }
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
    let table = MacTable::new(256, Limits { per_port: 10_000, age_seconds: 300 });
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
    assert!(table.refused() > 0);
}

#[test]
fn a_flood_stops_at_the_ports_bound() {
    let table = MacTable::new(4096, Limits { per_port: 100, age_seconds: 300 });
    for number in 0..10_000 {
        table.learn(station(number), PortId(2), 0);
    }
    assert_eq!(table.learnt(PortId(2)), 100);
    table.learn(station(1_000_000), PortId(1), 0);
    assert_eq!(table.lookup(station(1_000_000), 0), Some(PortId(1)));
    assert_eq!(table.refused(), 9_900);
}

/// Everything in the table: seen from second 0, nothing is aged.
fn all_entries(table: &MacTable) -> Vec<Entry> {
    sorted_entries(table, 0)
}

/// Threads that learn, move, sweep and forget in two buckets leave a table whose counts are its contents.
#[test]
fn counts_match_contents_after_a_race() {
    const PORTS: u16 = 4;
    for round in 0..20 {
        let table = MacTable::new(2 * SLOTS, Limits { per_port: 5, age_seconds: 3 });
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
            _ => table.learn(station((random >> 16) % 20), port, turn / 100),
        }
    }
}

/// A look-up that races with a station's moves finds it at the one or the other port, never nowhere.
#[test]
fn a_moving_station_is_always_found() {
    let table = MacTable::new(64, Limits::default());
    table.learn(station(1), PortId(0), 0);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0..20_000u16 {
                table.learn(station(1), PortId(turn % 2), 0);
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            let found = table.lookup(station(1), 0);
            assert!(matches!(found, Some(PortId(0 | 1))), "{found:?}");
        }
    });
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
    assert_eq!(table.refused(), 0);
    for worker in 0..4u16 {
        assert_eq!(table.learnt(PortId(worker)), PER_WORKER);
    }
}

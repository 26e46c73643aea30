//! The table against a model.

use std::collections::HashMap;

use proptest::prelude::*;
use switch::{Learning, LearningCounts, Limits, MacEntry, MacTable, PortId, TeachError};
use wire::ethernet::MacAddr;

use crate::{SLOTS, sorted_entries, station};

#[derive(Clone, Debug)]
enum Step {
    Learn { station: u32, port: u16 },
    Teach { station: u32, port: u16 },
    LearnGroup { port: u16 },
    LearnZero { port: u16 },
    Forget { port: u16 },
    Sweep,
    Wait { seconds: u32 },
}

fn step(stations: u32, ports: u16) -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (0..stations, 0..ports).prop_map(|(station, port)| Step::Learn { station, port }),
        2 => (0..stations, 0..ports).prop_map(|(station, port)| Step::Teach { station, port }),
        1 => (0..ports).prop_map(|port| Step::LearnGroup { port }),
        1 => (0..ports).prop_map(|port| Step::LearnZero { port }),
        1 => (0..ports).prop_map(|port| Step::Forget { port }),
        2 => Just(Step::Sweep),
        6 => (1u32..8).prop_map(|seconds| Step::Wait { seconds }),
    ]
}

/// A station of the model.
#[derive(Clone, Copy)]
struct Station {
    mac: MacAddr,
    port: PortId,
    seen: u32,
    taught: bool,
}

/// A model of the table: one bucket, as a list of slots. All its stations share that bucket, or there are no more of
/// them than a bucket has slots.
struct Model {
    limits: Limits,
    slots: [Option<Station>; SLOTS],
    /// The second of each address's last move.
    last_move: HashMap<MacAddr, u32>,
    /// Every move to a port that was not forgotten since: its second and the port.
    moves: Vec<(u32, PortId)>,
    counts: LearningCounts,
}

impl Model {
    fn new(limits: Limits) -> Self {
        let (slots, last_move, moves) = ([None; SLOTS], HashMap::new(), Vec::new());
        Self { limits, slots, last_move, moves, counts: LearningCounts::default() }
    }

    fn stations(&self) -> impl Iterator<Item = Station> + '_ {
        self.slots.iter().copied().flatten()
    }

    fn learnt(&self, port: PortId) -> u32 {
        let count = self.stations().filter(|station| station.port == port && !station.taught);
        u32::try_from(count.count()).expect("few")
    }

    fn is_aged(&self, station: Station, now: u32) -> bool {
        !station.taught && now - station.seen >= self.limits.age_seconds
    }

    fn find(&self, mac: MacAddr) -> Option<usize> {
        self.slots.iter().position(|slot| slot.is_some_and(|station| station.mac == mac))
    }

    /// The first free slot, else that of the station seen first among those that `may_go`.
    fn vacancy(&self, may_go: impl Fn(Station) -> bool) -> Option<usize> {
        let occupied = self.slots.iter().enumerate().filter_map(|(n, slot)| Some((n, (*slot)?)));
        let oldest = occupied.filter(|(_, station)| may_go(*station));
        let oldest = oldest.min_by_key(|(_, station)| station.seen).map(|(n, _)| n);
        self.slots.iter().position(Option::is_none).or(oldest)
    }

    fn has_moved(&self, mac: MacAddr, now: u32) -> bool {
        self.last_move.get(&mac).is_some_and(|second| *second == now)
    }

    fn moves_to(&self, port: PortId, now: u32) -> usize {
        self.moves.iter().filter(|last| **last == (now, port)).count()
    }

    fn learn(&mut self, mac: MacAddr, port: PortId, now: u32) -> Learning {
        let found = self.find(mac);
        let station = Station { mac, port, seen: now, taught: false };
        let is_full = self.learnt(port) == self.limits.per_port;
        match found.and_then(|slot| Some((slot, self.slots[slot]?))) {
            Some((slot, old)) if old.port == port => {
                self.slots[slot] = Some(Station { seen: now, ..old });
                Learning::Unchanged
            }
            Some((_, old)) if old.taught => Learning::RefusedMove,
            Some((slot, old)) if !self.is_aged(old, now) => {
                if self.has_moved(mac, now) {
                    Learning::RefusedMove
                } else if is_full {
                    Learning::Refused
                } else if self.moves_to(port, now) == self.limits.moves_per_second as usize {
                    Learning::RefusedMove
                } else {
                    self.slots[slot] = Some(station);
                    self.last_move.insert(mac, now);
                    self.moves.push((now, port));
                    Learning::Moved
                }
            }
            _ => match found.or_else(|| self.vacancy(|station| self.is_aged(station, now))) {
                Some(slot) if !is_full => {
                    self.slots[slot] = Some(station);
                    Learning::Added
                }
                _ => Learning::Refused,
            },
        }
    }

    fn teach(&mut self, mac: MacAddr, port: PortId, now: u32) -> Result<(), TeachError> {
        let found = self.find(mac);
        if let Some(old) = found.and_then(|slot| self.slots[slot])
            && old.taught
            && old.port != port
        {
            return Err(TeachError::Taken(old.port));
        }
        let slot = found.or_else(|| self.vacancy(|station| !station.taught));
        self.slots[slot.ok_or(TeachError::Full)?] =
            Some(Station { mac, port, seen: now, taught: true });
        Ok(())
    }

    fn remove(&mut self, gone: impl Fn(&Self, Station) -> bool) {
        for slot in 0..SLOTS {
            if self.slots[slot].is_some_and(|station| gone(self, station)) {
                self.slots[slot] = None;
            }
        }
    }

    fn entries(&self, now: u32) -> Vec<MacEntry> {
        let fresh = self.stations().filter(|station| !self.is_aged(*station, now));
        let mut entries: Vec<_> = fresh
            .map(|Station { mac, port, seen, taught }| MacEntry {
                vlan: switch::NO_VLAN,
                mac,
                port,
                age: now - seen,
                taught,
            })
            .collect();
        entries.sort_by_key(|entry| entry.mac);
        entries
    }
}

/// Applies a step to both.
fn apply(table: &MacTable, model: &mut Model, step: &Step, now: u32) -> Result<(), TestCaseError> {
    match *step {
        Step::Learn { station: number, port } => {
            let learning = model.learn(station(number), PortId(port), now);
            prop_assert_eq!(table.learn(station(number), PortId(port), now), learning);
            model.counts.refused_addresses += u64::from(learning == Learning::Refused);
            model.counts.moves += u64::from(learning == Learning::Moved);
            model.counts.refused_moves += u64::from(learning == Learning::RefusedMove);
        }
        Step::Teach { station: number, port } => {
            let taught = model.teach(station(number), PortId(port), now);
            prop_assert_eq!(table.teach(station(number), PortId(port), now), taught);
        }
        Step::LearnGroup { port } => {
            let group = MacAddr([0x03, 0, 0, 0, 0, 1]);
            prop_assert_eq!(table.learn(group, PortId(port), now), Learning::Unchanged);
            prop_assert_eq!(table.teach(group, PortId(port), now), Err(TeachError::NotAStation));
        }
        Step::LearnZero { port } => {
            let zero = MacAddr([0; 6]);
            prop_assert_eq!(table.learn(zero, PortId(port), now), Learning::Unchanged);
            prop_assert_eq!(table.teach(zero, PortId(port), now), Err(TeachError::NotAStation));
        }
        Step::Forget { port } => {
            table.forget_port(PortId(port));
            model.remove(|_, station| station.port == PortId(port));
            model.moves.retain(|(_, to)| *to != PortId(port));
        }
        Step::Sweep => {
            table.sweep(now);
            model.remove(|model, station| model.is_aged(station, now));
        }
        Step::Wait { .. } => {}
    }
    Ok(())
}

/// Runs the steps on table and model. Stations are learnt in the same second, other steps are a second or more apart:
/// then no address that moved in this second changes its slot.
fn agree(capacity: usize, stations: u32, ports: u16, steps: &[Step]) -> Result<(), TestCaseError> {
    let limits = Limits { per_port: 3, age_seconds: 20, moves_per_second: 2 };
    let table = MacTable::new(capacity, limits);
    let mut model = Model::new(limits);
    let mut now = 0;
    for step in steps {
        now += match step {
            Step::Learn { .. } => 0,
            Step::Wait { seconds } => *seconds,
            _ => 1,
        };
        apply(&table, &mut model, step, now)?;
        now += u32::from(!matches!(step, Step::Learn { .. }));
        prop_assert_eq!(sorted_entries(&table, now), model.entries(now));
        prop_assert_eq!(table.counts(), model.counts);
        for port in (0..ports).map(PortId) {
            prop_assert_eq!(table.learnt(port), model.learnt(port));
        }
        for mac in (0..stations).map(station) {
            let known = model.stations().find(|station| station.mac == mac);
            let fresh = known.filter(|station| !model.is_aged(*station, now));
            prop_assert_eq!(table.lookup(mac, now), fresh.map(|station| station.port));
        }
        prop_assert_eq!(table.lookup(MacAddr([0; 6]), now), None);
        prop_assert_eq!(table.lookup(MacAddr([0x03, 0, 0, 0, 0, 1]), now), None);
    }
    Ok(())
}

proptest! {
    /// More stations than slots: eviction, and refusal where nothing is aged.
    #[test]
    fn one_bucket_is_a_list(steps in prop::collection::vec(step(14, 5), 0..200)) {
        agree(SLOTS, 14, 5, &steps)?;
    }

    #[test]
    fn many_buckets_are_a_list(steps in prop::collection::vec(step(8, 4), 0..200)) {
        agree(1024, 8, 4, &steps)?;
    }
}

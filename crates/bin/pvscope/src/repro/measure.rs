//! Measurements on a recording: misses after events, and by size.

use scope_model::{Policy, Sweep};
use scope_result::{Domain, EventKind, Mode, Owner, Profile, Recording};

use super::plot::RecordingRow;
use crate::summary::plain;

/// Misses after events of a kind until the next one, in steps of [`Profile::STEP`] instructions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MissesAfter {
    pub events: usize,
    /// Instructions in each step, over all events.
    pub instructions: Vec<u64>,
    /// Misses of both TLBs.
    pub tlb: Vec<u64>,
    pub l2: Vec<u64>,
    /// Instructions, TLB misses and L2 misses of the whole recording.
    pub all: [u64; 3],
}

/// The fewest events whose average means anything.
const EVENTS_MIN: usize = 20;

impl MissesAfter {
    /// The misses after all events of a kind, if the recording has a profile of them.
    pub fn of(recording: &Recording, kind: EventKind) -> Option<Self> {
        let alike =
            |other: &EventKind| std::mem::discriminant(other) == std::mem::discriminant(&kind);
        let profile = &recording.after.iter().find(|after| alike(&after.kind))?.profile;
        let end = recording.samples.last().copied().unwrap_or_default();
        let times =
            recording.events.iter().filter(|event| alike(&event.kind)).map(|event| event.at);
        let times: Vec<u64> = times.collect();
        Some(Self {
            events: times.len(),
            instructions: exposure(&times, recording.instructions),
            tlb: profile.tlb.clone(),
            l2: profile.l2.clone(),
            all: [recording.instructions, end.itlb + end.dtlb, end.l2],
        })
    }

    /// The misses after each TLB flush for the unmapping of a grant in the flow.
    pub fn of_unmaps(recording: &Recording) -> Self {
        let times = unmaps(recording);
        let mut all = [0; 3];
        let mut misses = Vec::with_capacity(recording.flow.len());
        for step in &recording.flow {
            let Some(block) = recording.blocks.get(step.block as usize) else { continue };
            all[0] += u64::from(block.instructions);
            let found = [u64::from(step.itlb) + u64::from(step.dtlb), u64::from(step.l2)];
            misses.push((all[0], found));
            all[1] += found[0];
            all[2] += found[1];
        }
        let mut after = Self {
            events: times.len(),
            instructions: exposure(&times, all[0]),
            tlb: vec![0; Profile::STEPS],
            l2: vec![0; Profile::STEPS],
            all,
        };
        for (at, [tlb, l2]) in misses {
            let before = times.partition_point(|time| *time < at);
            let Some(time) = before.checked_sub(1).map(|n| times[n]) else { continue };
            let step = usize::try_from((at - time) / Profile::STEP).unwrap_or(usize::MAX);
            if step < Profile::STEPS {
                after.tlb[step] += tlb;
                after.l2[step] += l2;
            }
        }
        after
    }

    /// The share of all instructions in the first steps after an event.
    pub fn share_of_time(&self, steps: usize) -> f64 {
        share(&self.instructions, steps, self.all[0])
    }

    /// The share of all TLB misses in these steps.
    pub fn share_of_tlb(&self, steps: usize) -> f64 {
        share(&self.tlb, steps, self.all[1])
    }

    /// The share of all L2 misses in these steps.
    pub fn share_of_l2(&self, steps: usize) -> f64 {
        share(&self.l2, steps, self.all[2])
    }

    /// The rate of TLB misses in the first steps relative to the average; none if there are too few events.
    pub fn tlb_density(&self, steps: usize) -> Option<f64> {
        self.density(self.share_of_tlb(steps), steps)
    }

    /// The same for L2.
    pub fn l2_density(&self, steps: usize) -> Option<f64> {
        self.density(self.share_of_l2(steps), steps)
    }

    fn density(&self, misses: f64, steps: usize) -> Option<f64> {
        let time = self.share_of_time(steps);
        (self.events >= EVENTS_MIN && time > 0.0).then(|| misses / time)
    }

    /// Misses per 1000 instructions, by step.
    pub fn curve(&self, misses: &[u64]) -> Vec<(f64, f64)> {
        let steps = (0u32..).zip(misses.iter().zip(&self.instructions));
        let steps = steps.filter(|(_, (_, instructions))| **instructions > 0);
        steps
            .map(|(n, (misses, instructions))| {
                let at = f64::from(n) * Profile::STEP as f64;
                (at, *misses as f64 * 1000.0 / *instructions as f64)
            })
            .collect()
    }
}

/// The times of TLB flushes for the unmapping of grants: instructions since the flow's start.
pub fn unmaps(recording: &Recording) -> Vec<u64> {
    let mut unmaps = Unmaps::default();
    let mut now = 0;
    for step in &recording.flow {
        let Some(block) = recording.blocks.get(step.block as usize) else { continue };
        let function = recording.functions.get(block.function as usize);
        let name = function.map_or("", |function| function.name.as_str());
        unmaps.step(now, block.mode, name);
        now += u64::from(block.instructions);
    }
    unmaps.times
}

/// Calls of a function: executions of its first block.
pub fn calls(recording: &Recording, function: &str) -> u64 {
    let named = |place: u32| {
        let known = recording.functions.get(place as usize);
        known.is_some_and(|known| plain(&known.name) == function)
    };
    let blocks = recording.blocks.iter().filter(|block| named(block.function));
    let first = blocks.min_by_key(|block| block.address);
    first.map_or(0, |block| block.total().executions)
}

/// Finds where the hypervisor flushes the TLBs after it has unmapped a grant.
#[derive(Debug, Default)]
struct Unmaps {
    unmapped: bool,
    times: Vec<u64>,
}

impl Unmaps {
    fn step(&mut self, now: u64, mode: Mode, function: &str) {
        /// Xen's functions: `xen/common/grant_table.c`, `xen/arch/x86/flushtlb.c`.
        const UNMAP: &str = "gnttab_unmap";
        const FLUSH: &str = "flush_area_local";
        if mode != Mode::Hypervisor {
            self.unmapped = false;
        } else if function.contains(UNMAP) {
            self.unmapped = true;
        } else if function.contains(FLUSH) && self.unmapped {
            self.unmapped = false;
            self.times.push(now);
        }
    }
}

/// Instructions in each step after events, until the next event or the end.
fn exposure(times: &[u64], end: u64) -> Vec<u64> {
    let mut steps = vec![0; Profile::STEPS];
    let nexts = times.iter().skip(1).copied().chain([end]);
    for (time, next) in times.iter().zip(nexts) {
        let mut left = next.saturating_sub(*time);
        for step in &mut steps {
            let here = left.min(Profile::STEP);
            *step += here;
            left -= here;
        }
    }
    steps
}

fn share(counts: &[u64], steps: usize, all: u64) -> f64 {
    counts.iter().take(steps).sum::<u64>() as f64 / all.max(1) as f64
}

/// TLB misses between samples with events of some kinds, and between samples without.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QuietTime {
    /// Instructions and misses between samples with an event.
    pub disturbed: (u64, u64),
    /// Instructions and misses between the other samples.
    pub quiet: (u64, u64),
}

impl QuietTime {
    /// Divides a recording by the events that `is` selects.
    pub fn of(recording: &Recording, is: impl Fn(EventKind) -> bool) -> Self {
        let mut this = Self::default();
        let mut events = recording.events.iter().filter(|event| is(event.kind)).peekable();
        for pair in recording.samples.windows(2) {
            let (from, to) = (pair[0], pair[1]);
            let mut happens = false;
            while events.next_if(|event| event.at < to.at).is_some() {
                happens = true;
            }
            let sums = if happens { &mut this.disturbed } else { &mut this.quiet };
            sums.0 += to.at - from.at;
            sums.1 += (to.itlb + to.dtlb) - (from.itlb + from.dtlb);
        }
        this
    }

    /// The rate of TLB misses in quiet time relative to the rest.
    pub fn ratio(&self) -> Option<f64> {
        Some(rate(self.quiet)? / rate(self.disturbed).filter(|rate| *rate > 0.0)?)
    }

    pub fn share_of_time(&self) -> f64 {
        self.quiet.0 as f64 / (self.quiet.0 + self.disturbed.0).max(1) as f64
    }
}

fn rate((time, misses): (u64, u64)) -> Option<f64> {
    (time > 0).then(|| misses as f64 / time as f64)
}

/// Whether the event empties the TLBs, perhaps except for global pages.
pub fn is_flush(kind: EventKind) -> bool {
    matches!(kind, EventKind::Switch(_) | EventKind::Cr3 | EventKind::Cr4)
}

/// The share of misses that each step saves of the step before.
pub fn savings(counts: &[u64]) -> Vec<f64> {
    counts.windows(2).map(|pair| saved(pair[0], pair[1]).unwrap_or(0.0)).collect()
}

/// The share that is saved from `before` to `after`.
pub fn saved(before: u64, after: u64) -> Option<f64> {
    saved_of(before as f64, after as f64)
}

/// The same of costs.
pub fn saved_of(before: f64, after: f64) -> Option<f64> {
    (before > 0.0).then(|| 1.0 - after / before)
}

/// The misses of the owners that `is` selects.
pub fn sweep(recording: &Recording, is: impl Fn(Option<Domain>, Mode) -> bool) -> Sweep {
    let domain = |owner: &Owner| recording.domains.get(usize::from(owner.domain)).copied();
    let mut sum = Sweep::default();
    let some = recording.sweeps.iter().filter(|(owner, _)| is(domain(owner), owner.mode));
    some.for_each(|(_, sweep)| sum += sweep);
    sum
}

/// The misses of all owners.
pub fn sweep_of_all(recording: &Recording) -> Sweep {
    sweep(recording, |_, _| true)
}

/// DTLB and ITLB misses at a size, under a policy.
pub fn tlb(sweep: &Sweep, policy: Policy, size: usize) -> (u64, u64) {
    (sweep.dtlb[policy as usize][size], sweep.itlb[policy as usize][size])
}

pub struct WorkloadRecording {
    /// The workload's name.
    pub workload: &'static str,
    pub recording: Recording,
}

impl WorkloadRecording {
    /// The row of the document's table of recordings.
    pub fn summary(&self) -> RecordingRow {
        let work = &self.recording.work;
        RecordingRow {
            workload: self.workload.to_owned(),
            what: work.what.clone(),
            instructions: self.recording.instructions,
            frames: work.frames,
            bytes: work.bytes,
        }
    }
}

#[cfg(test)]
pub mod tests {
    use scope_result::{After, Block, Event, Function, Sample, Step};

    use super::*;

    /// A million instructions with switches at 100 000 and 200 000, 10 TLB misses in the first step after
    /// each, 20 in all other time.
    pub fn two_switches() -> Recording {
        let steps = |first| {
            let mut steps = vec![0; Profile::STEPS];
            steps[0] = first;
            steps
        };
        let profile = Profile { events: steps(2), tlb: steps(20), l2: steps(5) };
        let sample = |at, itlb, dtlb| Sample { at, itlb, dtlb, l2: 10 };
        let event = |at| Event { at, kind: EventKind::Switch(1) };
        Recording {
            instructions: 1_000_000,
            events: vec![event(100_000), event(200_000)],
            samples: vec![
                sample(0, 0, 0),
                sample(99_000, 1, 1),
                sample(250_000, 10, 20),
                sample(1_000_000, 20, 20),
            ],
            after: vec![After { kind: EventKind::Switch(0), profile }],
            ..Recording::default()
        }
    }

    #[test]
    fn the_share_of_misses_after_a_switch_is_compared_with_its_share_of_time() {
        let after = MissesAfter::of(&two_switches(), EventKind::Switch(0)).unwrap();
        assert_eq!((after.events, after.instructions[0]), (2, 1000));
        assert!((after.share_of_time(1) - 0.001).abs() < 1e-12);
        assert!((after.share_of_tlb(1) - 0.5).abs() < 1e-12);
        assert!((after.share_of_l2(1) - 0.5).abs() < 1e-12);
        assert_eq!(after.tlb_density(1), None, "two events are too few");
        let many = MissesAfter { events: EVENTS_MIN, ..after };
        assert!((many.tlb_density(1).unwrap() - 500.0).abs() < 1e-9);
        assert_eq!(MissesAfter::of(&two_switches(), EventKind::Invalidate), None);
    }

    #[test]
    fn the_time_after_an_event_ends_at_the_next_event() {
        let steps = exposure(&[0, 700], 10_000);
        assert_eq!((steps[0], steps[1], steps[2]), (1000, 700, 500));
        assert_eq!(exposure(&[], 10), vec![0; Profile::STEPS]);
    }

    #[test]
    fn quiet_time_has_no_flushes() {
        let quiet = QuietTime::of(&two_switches(), is_flush);
        assert_eq!(quiet.disturbed, (151_000, 28));
        assert_eq!(quiet.quiet, (849_000, 12));
        assert!(quiet.ratio().unwrap() < 0.1);
        assert_eq!(QuietTime::default().ratio(), None);
    }

    #[test]
    fn an_unmap_is_found_at_the_flush_that_follows_it() {
        let block = |address, function| Block { instructions: 100, function, ..Block::at(address) };
        let xen = 0xffff_82d0_4000_0000;
        let step = |block, dtlb| Step { block, l2: 1, dtlb, ..Step::default() };
        let recording = Recording {
            functions: vec![
                Function::default(),
                Function::new("xen", "gnttab_unmap_grant_ref"),
                Function::new("xen", "flush_area_local"),
            ],
            blocks: vec![block(xen, 1), block(xen, 2), block(0xffff_ffff_8100_0000, 0)],
            // A flush without an unmap before it has another cause, and so has one after a return to a kernel.
            flow: vec![
                step(1, 9),
                step(0, 0),
                step(1, 2),
                step(2, 3),
                step(1, 0),
                step(0, 0),
                step(2, 0),
                step(1, 0),
            ],
            ..Recording::default()
        };
        let after = MissesAfter::of_unmaps(&recording);
        assert_eq!((after.events, after.all), (1, [800, 14, 8]));
        assert_eq!((after.tlb[0], after.instructions[0], after.instructions[1]), (5, 500, 100));
    }
}

//! Misses after switches, flushes and unmaps: Figures 11 and 12.

use report::Unit;
use scope_model::{Policy, TLB_ENTRIES};
use scope_result::{EventKind, Profile, Recording, Sample};

use super::also;
use super::sizes::PAPERS_TLB;
use crate::packet::flow::Flow;
use crate::probes::{self, Probed};
use crate::repro::listing::{self, Listing};
use crate::repro::measure::{self, MissesAfter, QuietTime, WorkloadRecording, is_flush, saved};
use crate::repro::plot::{Plot, Section};
use crate::repro::rules::chadha07 as rules;

/// Blocks whose order the recording keeps. The first milliseconds have few unmaps.
pub const FLOW: &str = "4000000";

/// Steps of a [`Profile`] that count as right after an event: 2000 instructions.
const SOON: usize = 4;
/// The most points of a curve in a plot: more cannot be seen.
const POINTS: usize = 400;

/// Figure 11(a, b): time with and without switches.
pub fn tlb_misses_and_switches(first: &WorkloadRecording, others: &[WorkloadRecording]) -> Section {
    let recording = &first.recording;
    let ratio = |recording: &Recording| QuietTime::of(recording, is_flush).ratio();
    let quiet = rules::QUIET.judge(ratio(recording)).differs(format!(
        "{:.1} % of the time is between samples without a flush. TLBs of 1024 entries would avoid {} of all TLB misses: \
         these come from the TLBs' size, so quiet time has them too. Samples are {} instructions apart, so a flush shortly \
         before a sample also costs misses in the quiet time after it. Today's PV kernels write CR3 on system calls too, \
         because user and kernel have separate page tables.{}",
        100.0 * QuietTime::of(recording, is_flush).share_of_time(),
        share_by_size(recording).map_or("an unknown share".to_owned(), |share| Unit::Share.show(share)),
        spacing(recording),
        also(others, Unit::Times, ratio)
    ));
    let title = "Figure 11(a, b): TLB misses and VM switches";
    let mut plots = cumulative(recording, "TLB misses", |sample| sample.itlb + sample.dtlb);
    plots.push(events_over_time(recording));
    Section::new(title, vec![quiet], plots)
}

/// Interrupts, system calls and flushes over time: the events that the paper's parser finds (Figure 5).
fn events_over_time(recording: &Recording) -> Plot {
    type Is = fn(EventKind) -> bool;
    let kinds: [(&str, Is); 5] = [
        ("VM switches", |kind| matches!(kind, EventKind::Switch(_))),
        ("writes of CR3", |kind| kind == EventKind::Cr3),
        ("interrupts", |kind| probes::is(kind, Probed::Interrupt)),
        ("system calls", |kind| probes::is(kind, Probed::SystemCall)),
        ("explicit TLB flushes", |kind| probes::is(kind, Probed::TlbFlush)),
    ];
    let plot = Plot::new("Events", "10⁶ instructions since the start", "events until then");
    kinds.iter().fold(plot, |plot, (name, is)| {
        let at = recording.events.iter().filter(|event| is(event.kind)).map(|event| event.at);
        let points = (1u32..).zip(at).map(|(n, at)| (at as f64 / MILLION, f64::from(n)));
        plot.line(*name, thin(&points.collect::<Vec<_>>()))
    })
}

/// The share of all TLB misses that the largest TLBs would avoid.
fn share_by_size(recording: &Recording) -> Option<f64> {
    let sweep = measure::sweep_of_all(recording);
    let misses = |size| {
        let (data, code) = measure::tlb(&sweep, Policy::Real, size);
        data + code
    };
    saved(misses(PAPERS_TLB), misses(TLB_ENTRIES.len() - 1))
}

/// The length of a profile in instructions.
fn reach() -> u64 {
    Profile::STEP * Profile::STEPS as u64
}

fn spacing(recording: &Recording) -> u64 {
    recording.instructions / (recording.samples.len() as u64).max(1)
}

/// Instructions per unit of the axes.
const MILLION: f64 = 1e6;

/// Cumulative misses, over the whole recording and over a part of it, with the switches marked on the curve.
fn cumulative(recording: &Recording, what: &str, of: impl Fn(&Sample) -> u64) -> Vec<Plot> {
    let is_switch = |kind| matches!(kind, EventKind::Switch(_));
    let switches = recording.events.iter().filter(|event| is_switch(event.kind));
    let switches: Vec<u64> = switches.map(|event| event.at).collect();
    let points: Vec<(u64, u64)> =
        recording.samples.iter().map(|sample| (sample.at, of(sample))).collect();
    let middle = switches.get(switches.len() / 2).copied().unwrap_or(recording.instructions / 2);
    let width = recording.instructions / 50;
    let from = middle.saturating_sub(width / 2);
    [(0, recording.instructions, "whole recording"), (from, from + width, "a part of it")]
        .map(|(from, to, when)| {
            let within = |at: u64| at >= from && at <= to;
            let place = |at: u64| (at - from) as f64 / MILLION;
            let inside = points.iter().filter(|(at, _)| within(*at));
            let first = inside.clone().next().map_or(0, |(_, count)| *count);
            let curve = inside.map(|(at, count)| (place(*at), count.saturating_sub(first) as f64));
            let marks = switches.iter().filter(|at| within(**at)).map(|at| place(*at));
            Plot::new(format!("{what}, {when}"), "10⁶ instructions since the start", what)
                .line("misses", thin(&curve.collect::<Vec<_>>()))
                .marks("VM switches", marks.collect())
        })
        .into()
}

/// Drops points evenly until at most [`POINTS`] are left.
fn thin(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let every = points.len().div_ceil(POINTS).max(1);
    points.iter().step_by(every).copied().collect()
}

/// Figure 11(b, c): the surge after a switch.
pub fn tlb_misses_after_switch(first: &WorkloadRecording, others: &[WorkloadRecording]) -> Section {
    let recording = &first.recording;
    let after = |recording: &Recording| {
        MissesAfter::of(recording, EventKind::Switch(0)).unwrap_or_default()
    };
    let density = |recording: &Recording| after(recording).tlb_density(SOON);
    let after = after(recording);
    let claim = rules::TLB_SURGE.judge(density(recording)).differs(format!(
        "{} of all TLB misses fall in these instructions, and {} in the {} after a switch. There are {} switches for {} \
         frames.{}",
        Unit::Share.show(after.share_of_tlb(SOON)),
        Unit::Share.show(after.share_of_tlb(Profile::STEPS)),
        reach(),
        after.events,
        recording.work.frames,
        also(others, Unit::Times, density)
    ));
    let plot =
        after_plot("TLB misses after a VM switch", &[("switch", &after)], |after| &after.tlb);
    Section::new("Figure 11(b, c): TLB misses after a VM switch", vec![claim], vec![plot])
}

fn after_plot(
    title: &str,
    afters: &[(&str, &MissesAfter)],
    of: fn(&MissesAfter) -> &Vec<u64>,
) -> Plot {
    let plot = Plot::new(title, "instructions since the event", "misses per 1000 instructions");
    afters.iter().fold(plot, |plot, (name, after)| plot.line(*name, after.curve(of(after))))
}

/// Figure 11(d): the surge after a grant is revoked.
pub fn tlb_misses_after_unmap(first: &WorkloadRecording, others: &[WorkloadRecording]) -> Section {
    let recording = &first.recording;
    let density = |recording: &Recording| MissesAfter::of_unmaps(recording).tlb_density(SOON);
    let unmaps = MissesAfter::of_unmaps(recording);
    let share = unmaps.all[0] as f64 / recording.instructions.max(1) as f64;
    let surge = rules::UNMAP_SURGE.judge(density(recording)).differs(format!(
        "Found in the order of functions, which covers {:.1} % of the time: there, {} flushes follow gnttab_unmap.{}",
        100.0 * share,
        unmaps.events,
        also(others, Unit::Times, density)
    ));
    /// Xen's compiler puts do_tlb_flush into this one.
    const FLUSH: &str = "flush_area_local";
    let per_frame = |recording: &Recording| {
        let flushes = measure::calls(recording, FLUSH);
        let frames = recording.work.data_frames;
        (frames > 0).then(|| flushes as f64 / frames as f64)
    };
    let flushes = rules::UNMAP_FLUSHES.judge(per_frame(recording)).differs(format!(
        "Today's netback unmaps in batches, with one flush for a batch. INVLPG invalidated {} single pages: an unmap does \
         not use it.{}",
        recording.events.iter().filter(|event| event.kind == EventKind::Invalidate).count(),
        also(others, Unit::PerFrame, per_frame)
    ));
    let switches = MissesAfter::of(recording, EventKind::Switch(0)).unwrap_or_default();
    let both = [("unmap", &unmaps), ("VM switch", &switches)];
    let plot = after_plot("TLB misses after a grant is unmapped", &both, |after| &after.tlb);
    let title = "Figures 10 and 11(d): TLB misses after a grant is revoked";
    Section::new(title, vec![surge, flushes], vec![plot]).listing(around_unmap(recording))
}

/// The code around one flush for an unmap, the middle one of the recording, with its misses.
fn around_unmap(recording: &Recording) -> Option<Listing> {
    /// Instructions before the flush, and after it.
    const AROUND: u64 = 400;
    let times = measure::unmaps(recording);
    let flush = *times.get(times.len() / 2)?;
    let flow = Flow::new(recording);
    let place = |at: u64| flow.visits.partition_point(|visit| visit.at < at);
    let visits = place(flush.saturating_sub(AROUND))..place(flush + AROUND);
    let title = format!("Around the flush for unmap {} of {}", times.len() / 2 + 1, times.len());
    Some(listing::of(title, &flow, visits, flush))
}

/// Figure 12: L2 misses after a switch.
pub fn l2_misses_after_switch(first: &WorkloadRecording, others: &[WorkloadRecording]) -> Section {
    let recording = &first.recording;
    let density =
        |recording: &Recording| MissesAfter::of(recording, EventKind::Switch(0))?.l2_density(SOON);
    let after = MissesAfter::of(recording, EventKind::Switch(0)).unwrap_or_default();
    let claim = rules::L2_SURGE.judge(density(recording)).differs(format!(
        "In the {} instructions after a switch: {}. A switch evicts nothing from L2.{}",
        reach(),
        after
            .l2_density(Profile::STEPS)
            .map_or("not known".to_owned(), |density| Unit::Times.show(density)),
        also(others, Unit::Times, density)
    ));
    let mut plots = cumulative(recording, "L2 misses", |sample| sample.l2);
    plots.push(after_plot("L2 misses after a VM switch", &[("switch", &after)], |after| &after.l2));
    Section::new("Figure 12: L2 misses and VM switches", vec![claim], plots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_thinned_to_the_points_that_can_be_seen() {
        let points: Vec<(f64, f64)> = (0..10_000).map(|n| (f64::from(n), 0.0)).collect();
        assert!(thin(&points).len() <= POINTS);
        assert_eq!(thin(&points[..POINTS]), points[..POINTS]);
    }
}

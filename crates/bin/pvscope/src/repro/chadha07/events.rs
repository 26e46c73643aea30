//! Misses after switches, flushes and unmaps: Figures 11 and 12.

use report::{Rule, Statement, Unit};
use scope_model::{Policy, TLB_ENTRIES};
use scope_result::{EventKind, Profile, Recording, Sample};

use super::sizes::PAPERS_TLB;
use crate::packet::flow::{self, Flow, Line};
use crate::repro::measure::{self, MissesAfter, QuietTime, is_flush, saved};
use crate::repro::plot::{Listing, ListingLine, Plot, Section};
use crate::repro::recordings::WorkloadRecording;
use crate::summary::function_name;

/// Blocks whose order the recording keeps. The first milliseconds have few unmaps.
pub const FLOW: u32 = 4_000_000;

/// Steps of a [`Profile`] that count as right after an event: 2000 instructions.
const SOON: usize = 4;
/// The most points of a curve in a plot: more cannot be seen.
const POINTS: usize = 400;
/// A surge is at least twice the usual rate. It holds weakly from 1.2 times on.
const SURGE: Rule = Rule::AtLeast(2.0, 1.2);

/// A statement that the paper makes in words. The number found here is a ratio.
fn statement(source: &'static str, says: &'static str) -> Statement {
    Statement { source, says, number: None, unit: Unit::Times }
}

/// Figure 11(a, b): time with and without switches.
pub fn tlb_misses_and_switches(named: &WorkloadRecording) -> Section {
    let WorkloadRecording { workload, recording } = named;
    let quiet = QuietTime::of(recording, is_flush);
    let a = statement(
        "Figure 11(a), §4.1.5",
        "a period without switches and TLB flushes has negligible TLB misses",
    );
    let a = a
        .compare(
            workload,
            "TLB misses per instruction in time without flushes ÷ in time with them",
            quiet.ratio(),
            Rule::AtMost(0.1, 0.5),
        )
        .differs(format!(
            "{:.1} % of the time is between samples without a flush. TLBs of 1024 entries would avoid {} of all TLB \
             misses: these come from the TLBs' size, so quiet time has them too. Samples are {} instructions apart, so \
             a flush shortly before a sample also costs misses in the quiet time after it. Today's PV kernels write \
             CR3 on system calls too, because user and kernel have separate page tables.",
            100.0 * quiet.share_of_time(),
            share_by_size(recording).map_or("an unknown share".to_owned(), |share| Unit::Share.show(share)),
            spacing(recording)
        ));
    let after = MissesAfter::of(recording, EventKind::Switch(0)).unwrap_or_default();
    let b = statement(
        "Figure 11(b), §4.1.5",
        "a surge of TLB misses with each VM switch, and flat areas without",
    );
    let b = b
        .compare(
            workload,
            format!("share of TLB misses within {} instructions of a switch ÷ share of time", reach()),
            after.tlb_density(Profile::STEPS),
            SURGE,
        )
        .differs(format!(
            "{:.1} % of the TLB misses fall in the {:.1} % of the time after a switch. There are {} switches for {} \
             frames. A frame carries up to 64 KiB (TSO), so one switch serves the bytes of many packets.",
            100.0 * after.share_of_tlb(Profile::STEPS),
            100.0 * after.share_of_time(Profile::STEPS),
            after.events,
            recording.work.frames
        ));
    let title = "Figure 11(a, b): TLB misses and VM switches";
    let plots = cumulative(recording, "TLB misses", |sample| sample.itlb + sample.dtlb);
    Section::new(title, vec![a, b], plots)
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

/// Figure 11(c): the surge after a switch.
pub fn tlb_misses_after_switch(named: &WorkloadRecording) -> Section {
    let WorkloadRecording { workload, recording } = named;
    let after = MissesAfter::of(recording, EventKind::Switch(0)).unwrap_or_default();
    let statement = statement(
        "Figure 11(c), §4.1.5",
        "CR3 is changed, all TLBs are emptied, and each page that is touched then misses",
    );
    let claim = statement
        .compare(
            workload,
            format!("TLB misses in the {} instructions after a switch ÷ on average", soon()),
            after.tlb_density(SOON),
            SURGE,
        )
        .differs(format!(
            "{} of all TLB misses fall in these instructions, and {} in the {} after a switch: the surge is short.",
            Unit::Share.show(after.share_of_tlb(SOON)),
            Unit::Share.show(after.share_of_tlb(Profile::STEPS)),
            reach()
        ));
    let plot =
        after_plot("TLB misses after a VM switch", &[("switch", &after)], |after| &after.tlb);
    Section::new("Figure 11(c): TLB misses after a VM switch", vec![claim], vec![plot])
}

fn soon() -> u64 {
    SOON as u64 * Profile::STEP
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
pub fn tlb_misses_after_unmap(named: &WorkloadRecording) -> Section {
    let WorkloadRecording { workload, recording } = named;
    let statement = statement(
        "Figure 11(d), §4.1.5",
        "revoking a grant empties the TLBs as a whole, with misses like those of a VM switch",
    );
    let unmaps = MissesAfter::of_unmaps(recording);
    let frames = recording.work.frames as f64;
    let share = unmaps.all[0] as f64 / recording.instructions.max(1) as f64;
    let unmap = statement
        .compare(
            workload,
            format!("TLB misses in the {} instructions after an unmap's flush ÷ on average", soon()),
            unmaps.tlb_density(SOON),
            SURGE,
        )
        .differs(format!(
            "Found in the order of functions, which covers {:.1} % of the time: there, {} flushes follow gnttab_unmap, \
             for about {:.0} frames. `pvscope run {workload} --flow {FLOW}` keeps more of it. In the paper each unmap \
             writes CR3 (Figure 10); today netback unmaps in batches, and Xen writes CR4. INVLPG invalidated {} single \
             pages in the whole recording: an unmap does not use it.",
            100.0 * share,
            unmaps.events,
            frames * share,
            recording.events.iter().filter(|event| event.kind == EventKind::Invalidate).count()
        ));
    let whole = QuietTime::of(recording, |kind| kind == EventKind::Cr4);
    let whole = statement
        .compare(
            workload,
            "TLB misses per instruction between samples with a write of CR4 ÷ on average",
            whole.surge(),
            SURGE,
        )
        .differs(format!(
            "Xen empties whole TLBs, global pages included, by writing CR4: {} writes for {} frames. The writes for \
             unmaps are among them and cannot be told apart. Samples are {} instructions apart, which hides most of a \
             short surge.",
            recording.events.iter().filter(|event| event.kind == EventKind::Cr4).count(),
            recording.work.frames,
            spacing(recording)
        ));
    let switches = MissesAfter::of(recording, EventKind::Switch(0)).unwrap_or_default();
    let both = [("unmap", &unmaps), ("VM switch", &switches)];
    let plot = after_plot("TLB misses after a grant is unmapped", &both, |after| &after.tlb);
    let title = "Figure 11(d): TLB misses after a grant is revoked";
    Section::new(title, vec![unmap, whole], vec![plot]).listing(around_unmap(recording))
}

/// Instructions before the flush at which a listing begins.
const BEFORE: u64 = 400;

/// The code around one flush for an unmap, the middle one of the recording, with its misses.
fn around_unmap(recording: &Recording) -> Option<Listing> {
    let times = measure::unmaps(recording);
    let flush = *times.get(times.len() / 2)?;
    let flow = Flow::new(recording);
    let place = |at: u64| flow.visits.partition_point(|visit| visit.at < at);
    let (from, at, to) = (place(flush.saturating_sub(BEFORE)), place(flush), place(flush + soon()));
    // Folded separately: a function's work after the flush must not count in its line before it.
    let parts = [&flow.visits[from..at], &flow.visits[at..to]];
    let lines = parts.into_iter().flat_map(|visits| {
        let start = visits.first().map_or(flush, |visit| visit.at);
        let since = start.cast_signed() - flush.cast_signed();
        let lines = flow::fold(&flow::lines(&flow, visits, false));
        lines.into_iter().map(move |line| executed(recording, &line, since))
    });
    let title = format!("Around the flush for unmap {} of {}", times.len() / 2 + 1, times.len());
    Some(Listing { title, lines: lines.collect() })
}

fn executed(recording: &Recording, line: &Line, since: i64) -> ListingLine {
    let function = recording.functions.get(line.function as usize).cloned().unwrap_or_default();
    let (module, function) = function_name(&function);
    let (times, tally) = (line.times, line.tally);
    ListingLine {
        since: since + line.at.cast_signed(),
        who: line.who.to_string(),
        module,
        function: crate::summary::plain(&function).to_owned(),
        times,
        instructions: tally.instructions,
        tlb_misses: tally.itlb + tally.dtlb,
    }
}

/// Figure 12: L2 misses after a switch.
pub fn l2_misses_after_switch(named: &WorkloadRecording) -> Section {
    let WorkloadRecording { workload, recording } = named;
    let after = MissesAfter::of(recording, EventKind::Switch(0)).unwrap_or_default();
    let statement =
        statement("Figure 12, §4.1.5", "cache misses increase with VM switches as well");
    let claim = statement
        .compare(
            workload,
            format!("share of L2 misses within {} instructions of a switch ÷ share of time", reach()),
            after.l2_density(Profile::STEPS),
            SURGE,
        )
        .differs(format!(
            "In the {} instructions after a switch: {}. A switch evicts nothing from L2. Copies do, and a frame of up \
             to 64 KiB is copied at once.",
            soon(),
            after.l2_density(SOON).map_or("not known".to_owned(), |density| Unit::Times.show(density))
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

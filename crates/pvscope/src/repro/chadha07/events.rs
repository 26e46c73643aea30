//! What comes after switches, flushes and unmaps: Figures 11 and 12.

use scope_model::{Policy, TLB_ENTRIES};
use scope_result::{EventKind, Profile, Recording, Sample};

use super::FLOW;
use super::sizes::PAPERS_TLB;
use crate::repro::Named;
use crate::repro::measure::{self, Aftermath, Quiet, is_flush, saved};
use crate::repro::plot::{Plot, Section};
use crate::repro::verdict::{Rule, Said, Unit};

/// Right after an event: 2000 instructions, as [`Profile`] counts.
const SOON: usize = 4;
/// Points of a curve in a plot: as many as can be seen.
const POINTS: usize = 400;
/// Twice as often as else is a surge; a fifth more often is one, too, but a weak one.
const SURGE: Rule = Rule::AtLeast(2.0, 1.2);

/// Figure 11(a, b).
pub fn switches(named: &Named) -> Section {
    let Named { workload, recording } = named;
    let quiet = Quiet::of(recording, is_flush);
    let a = Said {
        source: "Figure 11(a), §4.1.5",
        says: "a period without switches and TLB flushes has negligible TLB misses",
        number: None,
        unit: Unit::Times,
    };
    let a = a
        .held(
            workload,
            "TLB misses an instruction in time without flushes ÷ in time with them",
            quiet.ratio(),
            Rule::AtMost(0.1, 0.5),
        )
        .differs(format!(
            "{:.1} % of the time is between samples without a flush. Of all TLB misses {} would not be with 1024 \
             entries: they come of the TLBs' size, and quiet time has them as well. Samples are {} instructions apart: \
             what a flush shortly before one costs is among the quiet time's. A PV kernel's system calls write CR3 as \
             well today, as user and kernel have page tables of their own.",
            100.0 * quiet.share_of_time(),
            share_by_size(recording).map_or("not known how many".to_owned(), |share| Unit::Share.show(share)),
            spacing(recording)
        ));
    let after = Aftermath::of(recording, EventKind::Switch(0)).unwrap_or_default();
    let b = Said {
        source: "Figure 11(b), §4.1.5",
        says: "a surge of TLB misses with each VM switch, and flat areas without",
        number: None,
        unit: Unit::Times,
    };
    let b = b
        .held(
            workload,
            format!("share of TLB misses within {} instructions of a switch ÷ share of time", reach()),
            after.tlb_density(Profile::STEPS),
            SURGE,
        )
        .differs(format!(
            "{:.1} % of the TLB misses fall in the {:.1} % of the time after a switch. There are {} switches for {} \
             frames: a frame carries up to 64 KiB (TSO), so a switch serves many packets' worth of bytes.",
            100.0 * after.share_of_tlb(Profile::STEPS),
            100.0 * after.share_of_time(Profile::STEPS),
            after.events,
            recording.work.frames
        ));
    let title = "Figure 11(a, b): TLB misses and VM switches";
    Section {
        title,
        claims: vec![a, b],
        plots: cumulative(recording, "TLB misses", |sample| sample.itlb + sample.dtlb),
    }
}

/// The share of all TLB misses that the largest TLBs would not have.
fn share_by_size(recording: &Recording) -> Option<f64> {
    let sweep = measure::sweep_of_all(recording);
    let misses = |size| {
        let (data, code) = measure::tlb(&sweep, Policy::Real, size);
        data + code
    };
    saved(misses(PAPERS_TLB), misses(TLB_ENTRIES.len() - 1))
}

/// Instructions that a profile reaches.
fn reach() -> u64 {
    Profile::STEP * Profile::STEPS as u64
}

fn spacing(recording: &Recording) -> u64 {
    recording.instructions / (recording.samples.len() as u64).max(1)
}

/// Misses as they grow, in all the time and in a part of it, with the switches on the curve.
fn cumulative(recording: &Recording, what: &str, of: impl Fn(&Sample) -> u64) -> Vec<Plot> {
    let is_switch = |kind| matches!(kind, EventKind::Switch(_));
    let switches = recording.events.iter().filter(|event| is_switch(event.kind));
    let switches: Vec<u64> = switches.map(|event| event.at).collect();
    let points: Vec<(u64, u64)> =
        recording.samples.iter().map(|sample| (sample.at, of(sample))).collect();
    let middle = switches.get(switches.len() / 2).copied().unwrap_or(recording.instructions / 2);
    let width = recording.instructions / 50;
    let from = middle.saturating_sub(width / 2);
    [(0, recording.instructions, "in all the time"), (from, from + width, "in a part of it")]
        .map(|(from, to, when)| {
            let within = |at: u64| at >= from && at <= to;
            let curve: Vec<_> = points.iter().filter(|(at, _)| within(*at)).copied().collect();
            let marks = switches.iter().filter(|at| within(**at));
            let marks = marks.filter_map(|at| Some((*at, value_at(&points, *at)?)));
            let marks = thin(&marks.collect::<Vec<_>>());
            Plot::new(format!("{what}, {when}"), "instructions", what)
                .line("misses", thin(&curve))
                .line("VM switches", marks)
        })
        .into()
}

/// As many points as can be seen.
fn thin(points: &[(u64, u64)]) -> Vec<(f64, f64)> {
    let every = points.len().div_ceil(POINTS).max(1);
    points.iter().step_by(every).map(|(at, value)| (*at as f64, *value as f64)).collect()
}

/// The last value before a time.
fn value_at(points: &[(u64, u64)], at: u64) -> Option<u64> {
    let after = points.partition_point(|(other, _)| *other <= at);
    Some(points.get(after.checked_sub(1)?)?.1)
}

/// Figure 11(c).
pub fn after_switch(named: &Named) -> Section {
    let Named { workload, recording } = named;
    let after = Aftermath::of(recording, EventKind::Switch(0)).unwrap_or_default();
    let said = Said {
        source: "Figure 11(c), §4.1.5",
        says: "CR3 is changed, all TLBs are emptied, and each page that is touched then misses",
        number: None,
        unit: Unit::Times,
    };
    let claim = said
        .held(
            workload,
            format!("TLB misses in the {} instructions after a switch ÷ on average", soon()),
            after.tlb_density(SOON),
            SURGE,
        )
        .differs(format!(
            "Of all TLB misses {} fall in these instructions, and {} in the {} after a switch: the surge is short.",
            Unit::Share.show(after.share_of_tlb(SOON)),
            Unit::Share.show(after.share_of_tlb(Profile::STEPS)),
            reach()
        ));
    let plot =
        after_plot("TLB misses after a VM switch", &[("switch", &after)], |after| &after.tlb);
    Section {
        title: "Figure 11(c): TLB misses after a VM switch",
        claims: vec![claim],
        plots: vec![plot],
    }
}

fn soon() -> u64 {
    SOON as u64 * Profile::STEP
}

fn after_plot(title: &str, afters: &[(&str, &Aftermath)], of: fn(&Aftermath) -> &Vec<u64>) -> Plot {
    let plot = Plot::new(title, "instructions since", "misses in 1000 instructions");
    afters.iter().fold(plot, |plot, (name, after)| plot.line(*name, after.curve(of(after))))
}

/// Figure 11(d).
pub fn after_unmap(named: &Named) -> Section {
    let Named { workload, recording } = named;
    let said = Said {
        source: "Figure 11(d), §4.1.5",
        says: "revoking a grant empties the TLBs as a whole, with misses like those of a VM switch",
        number: None,
        unit: Unit::Times,
    };
    let unmaps = Aftermath::of_unmaps(recording);
    let frames = recording.work.frames as f64;
    let share = unmaps.all[0] as f64 / recording.instructions.max(1) as f64;
    let unmap = said
        .held(
            workload,
            format!("TLB misses in the {} instructions after an unmap's flush ÷ on average", soon()),
            unmaps.tlb_density(SOON),
            SURGE,
        )
        .differs(format!(
            "By the order of functions, which is kept of {:.1} % of the time: {} flushes after gnttab_unmap there, \
             for what is {:.0} frames on average; `pvscope run {workload} --flow {FLOW}` keeps more of it. In the paper \
             each unmap writes CR3 (Figure 10); today netback unmaps in batches.",
            100.0 * share,
            unmaps.events,
            frames * share
        ));
    let pages = Aftermath::of(recording, EventKind::Invalidate).unwrap_or_default();
    let page = said
        .held(
            workload,
            format!("TLB misses in the {} instructions after INVLPG ÷ on average", soon()),
            pages.tlb_density(SOON),
            SURGE,
        )
        .differs(format!(
            "{} pages were taken out by themselves in all the time: it is not what an unmap does.",
            pages.events
        ));
    let whole = Quiet::of(recording, |kind| kind == EventKind::Cr4);
    let whole = said
        .held(
            workload,
            "TLB misses an instruction between samples with a write of CR4 ÷ on average",
            whole.surge(),
            SURGE,
        )
        .differs(format!(
            "Xen empties the TLBs as a whole, global pages too, by writing CR4: {} writes of it for {} frames, \
             those for unmaps among them and not told apart. Samples are {} instructions apart, which hides \
             most of a surge that is short.",
            recording.events.iter().filter(|event| event.kind == EventKind::Cr4).count(),
            recording.work.frames,
            spacing(recording)
        ));
    let both = [("unmap", &unmaps), ("INVLPG", &pages)];
    let plot = after_plot("TLB misses after a grant is unmapped", &both, |after| &after.tlb);
    Section {
        title: "Figure 11(d): TLB misses after a grant is revoked",
        claims: vec![unmap, whole, page],
        plots: vec![plot],
    }
}

/// Figure 12.
pub fn caches_after_switch(named: &Named) -> Section {
    let Named { workload, recording } = named;
    let after = Aftermath::of(recording, EventKind::Switch(0)).unwrap_or_default();
    let said = Said {
        source: "Figure 12, §4.1.5",
        says: "cache misses increase with VM switches as well",
        number: None,
        unit: Unit::Times,
    };
    let claim = said
        .held(
            workload,
            format!("share of L2 misses within {} instructions of a switch ÷ share of time", reach()),
            after.l2_density(Profile::STEPS),
            SURGE,
        )
        .differs(format!(
            "In the {} instructions after a switch: {}. A switch takes nothing out of L2; what is copied does, and \
             a frame of up to 64 KiB is copied at once.",
            soon(),
            after.l2_density(SOON).map_or("not known".to_owned(), |density| Unit::Times.show(density))
        ));
    let mut plots = cumulative(recording, "L2 misses", |sample| sample.l2);
    plots.push(after_plot("L2 misses after a VM switch", &[("switch", &after)], |after| &after.l2));
    Section { title: "Figure 12: L2 misses and VM switches", claims: vec![claim], plots }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_thinned_and_read() {
        let points: Vec<(u64, u64)> = (0..10_000).map(|n| (n, 2 * n)).collect();
        assert!(thin(&points).len() <= POINTS);
        assert_eq!(value_at(&points, 77), Some(154));
        assert_eq!(value_at(&[(5, 1)], 4), None);
    }
}

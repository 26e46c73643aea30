//! The gain of larger caches and TLBs, and of other policies: Figures 13 to 17.

use std::collections::HashSet;

use report::{Claim, Unit};
use scope_model::{L2_BYTES, Policy, Sweep, TLB_ENTRIES};
use scope_result::{Mode, Recording};

use super::also;
use crate::repro::measure::{self, WorkloadRecording, saved};
use crate::repro::plot::{Plot, Section};
use crate::repro::rules::{PaperClaim, chadha07 as rules};

/// Indices in [`TLB_ENTRIES`]: the paper's TLBs have 64 entries, and more than 128 gain nothing.
pub const PAPERS_TLB: usize = 2;
const ENTRIES_128: usize = 3;

/// Indices in [`L2_BYTES`]: the paper's L2 (§4.2), 4 MiB and 8 MiB.
const PAPERS_L2: usize = 3;
const FOUR_MIB: usize = 4;
const EIGHT_MIB: usize = 5;

/// Rules on L2, in the order of sizes; those on the receive side are fewer.
pub const TX_L2: &[PaperClaim] = &[rules::TX_L2_TO_4, rules::TX_L2_TO_8, rules::TX_L2_TO_16];
/// The same for Figure 15.
pub const RX_L2: &[PaperClaim] = &[rules::RX_L2_TO_4, rules::RX_L2_TO_8];

/// Figures 13 and 15: L2 misses by size.
pub fn l2_by_size(
    named: &WorkloadRecording,
    others: &[WorkloadRecording],
    title: &'static str,
    rules: &[PaperClaim],
) -> Section {
    let recording = &named.recording;
    let sweep = measure::sweep_of_all(recording);
    let misses = l2_misses(&sweep);
    type Number = fn(&[u64]) -> Option<f64>;
    let numbers: [(Number, Unit); 3] = [
        (|misses| saved(misses[PAPERS_L2], misses[FOUR_MIB]), Unit::Share),
        (|misses| of_gain(misses, FOUR_MIB), Unit::Times),
        (|misses| of_gain(misses, EIGHT_MIB), Unit::Times),
    ];
    let claims = rules.iter().zip(numbers).map(|(rule, (of, unit))| {
        let of_recording =
            |recording: &Recording| of(&l2_misses(&measure::sweep_of_all(recording)));
        rule.judge(of(&misses)).differs(also(others, unit, of_recording).trim_start().to_owned())
    });
    let mut claims: Vec<Claim> = claims.collect();
    if let Some(claim) = claims.get_mut(1) {
        claim.differs = format!(
            "Of the misses that 8 MiB save beyond 4, {} are of data. {}",
            data_share(&sweep, &misses)
                .map_or("an unknown share".to_owned(), |share| Unit::Share.show(share)),
            claim.differs
        );
    }
    Section::new(title, claims, l2_plots(recording, &sweep, &misses))
}

fn l2_misses(sweep: &Sweep) -> Vec<u64> {
    sweep.l2i.iter().zip(&sweep.l2d).map(|(code, data)| code + data).collect()
}

/// The misses that the doubling from a size saves, relative to those that the doubling from the paper's L2 saves.
fn of_gain(misses: &[u64], from: usize) -> Option<f64> {
    let gain = |from: usize| misses[from].saturating_sub(misses[from + 1]) as f64;
    let first = gain(PAPERS_L2);
    (first > 0.0).then(|| gain(from) / first)
}

/// The share of data in the misses that 8 MiB save beyond 4.
fn data_share(sweep: &Sweep, misses: &[u64]) -> Option<f64> {
    let saved = |counts: &[u64]| counts[FOUR_MIB].saturating_sub(counts[EIGHT_MIB]) as f64;
    let all = saved(misses);
    (all > 0.0).then(|| saved(&sweep.l2d) / all)
}

fn l2_plots(recording: &Recording, sweep: &Sweep, misses: &[u64]) -> Vec<Plot> {
    let sizes = || L2_BYTES.iter().map(|bytes| Unit::Bytes.show(*bytes as f64));
    let misses_of = Plot::new("L2 misses", "size of L2", "per frame")
        .steps(sizes())
        .values("code", per_frame(recording, &sweep.l2i))
        .values("data", per_frame(recording, &sweep.l2d))
        .values("both", per_frame(recording, misses));
    vec![misses_of, savings("L2 misses saved by the doubling to", sizes(), &[("both", misses)])]
}

fn per_frame(recording: &Recording, counts: &[u64]) -> Vec<f64> {
    let frames = recording.work.frames.max(1) as f64;
    counts.iter().map(|count| *count as f64 / frames).collect()
}

fn savings(title: &str, sizes: impl Iterator<Item = String>, of: &[(&str, &[u64])]) -> Plot {
    let plot = Plot::new(title, "to", "% of the misses before").steps(sizes.skip(1)).bars();
    of.iter().fold(plot, |plot, (name, counts)| {
        plot.values(*name, measure::savings(counts).into_iter().map(|saved| 100.0 * saved))
    })
}

/// Rules on TLBs: the gain up to 128 entries and beyond, and the code's beside the data's.
pub const TX_TLB: &[PaperClaim] = &[rules::TX_DTLB_TO_128, rules::TX_DTLB_PAST_128, rules::TX_ITLB];
/// The same for Figure 16.
pub const RX_TLB: &[PaperClaim] = &[rules::RX_DTLB_TO_128, rules::RX_DTLB_PAST_128];

/// Figures 14 and 16: TLB misses by entries.
pub fn tlbs_by_entries(
    named: &WorkloadRecording,
    others: &[WorkloadRecording],
    title: &'static str,
    rules: &[PaperClaim],
) -> Section {
    let recording = &named.recording;
    let sweep = measure::sweep_of_all(recording);
    let real = Policy::Real as usize;
    let (data, code) = (&sweep.dtlb[real], &sweep.itlb[real]);
    type Number = fn(&Sweep) -> Option<f64>;
    let numbers: [(Number, Unit); 3] = [
        (|sweep| to_128(&sweep.dtlb[Policy::Real as usize]), Unit::Share),
        (
            |sweep| {
                let data = &sweep.dtlb[Policy::Real as usize];
                saved(data[ENTRIES_128], data[TLB_ENTRIES.len() - 1])
            },
            Unit::Share,
        ),
        (
            |sweep| {
                let [data, code] =
                    [&sweep.dtlb, &sweep.itlb].map(|tlb| to_128(&tlb[Policy::Real as usize]));
                code.zip(data).map(|(code, data)| code / data)
            },
            Unit::Times,
        ),
    ];
    let claims = rules.iter().zip(numbers).map(|(rule, (of, unit))| {
        let others = also(others, unit, |recording| of(&measure::sweep_of_all(recording)));
        rule.judge(of(&sweep)).differs(others.trim_start().to_owned())
    });
    let mut claims: Vec<Claim> = claims.collect();
    if let Some(claim) = claims.get_mut(2) {
        claim.differs = format!("{} {}", code_pages(recording), claim.differs);
    }
    let sizes = || TLB_ENTRIES.iter().map(ToString::to_string);
    let misses = Plot::new("TLB misses", "entries", "per frame")
        .steps(sizes())
        .values("ITLB", per_frame(recording, code))
        .values("DTLB", per_frame(recording, data));
    let by_doubling =
        savings("TLB misses saved by the doubling to", sizes(), &[("ITLB", code), ("DTLB", data)]);
    Section::new(title, claims, vec![misses, by_doubling])
}

/// How many pages of code execute between two VM switches, in words.
fn code_pages(recording: &Recording) -> String {
    let mut between = Vec::new();
    let (mut pages, mut domain) = (HashSet::new(), None);
    for step in &recording.flow {
        let Some(block) = recording.blocks.get(step.block as usize) else { continue };
        if domain.replace(step.domain).is_some_and(|before| before != step.domain) {
            between.push(std::mem::take(&mut pages));
        }
        pages.insert((block.address >> 12, block.space, block.mode));
    }
    between.sort_by_key(HashSet::len);
    // What begins before the flow is no whole one.
    let at = |tenths: usize| between.get(between.len().saturating_sub(1) * tenths / 10);
    let (Some(low), Some(median), Some(high)) = (at(1), at(5), at(9)) else {
        return "The flow has no VM switch.".to_owned();
    };
    let of = |mode| median.iter().filter(|(_, _, own)| *own == mode).count();
    format!(
        "Between two VM switches code of {} pages executes (eight of ten times {} to {}), of them {} of Xen, {} of kernels and \
         {} of programs.",
        median.len(),
        low.len(),
        high.len(),
        of(Mode::Hypervisor),
        of(Mode::Kernel),
        of(Mode::User)
    )
}

/// The share of the misses with the paper's TLB that 128 entries save.
fn to_128(misses: &[u64]) -> Option<f64> {
    saved(misses[PAPERS_TLB], misses[ENTRIES_128])
}

/// The shares of no-global's misses that a policy saves, of the DTLB and of the ITLB.
fn global_saves(sweep: &Sweep, policy: Policy) -> [Option<f64>; 2] {
    let [none, with] =
        [Policy::NoGlobal, policy].map(|policy| measure::tlb(sweep, policy, PAPERS_TLB));
    [saved(none.0, with.0), saved(none.1, with.1)]
}

/// Figure 17: misses with and without global pages.
pub fn global_pages(named: &WorkloadRecording, others: &[WorkloadRecording]) -> Section {
    let recording = &named.recording;
    let sweep = measure::sweep_of_all(recording);
    let misses = |policy| measure::tlb(&sweep, policy, PAPERS_TLB);
    let today = global_saves(&sweep, Policy::Real);
    let show = |saved: Option<f64>| {
        saved.map_or("an unknown share".to_owned(), |saved| Unit::Share.show(saved))
    };
    let by_bit = |recording: &Recording| {
        global_saves(&measure::sweep_of_all(recording), Policy::GlobalHypervisor)
    };
    let data = |recording: &Recording| by_bit(recording)[0];
    let beside = |recording: &Recording| {
        let [data, code] = by_bit(recording);
        code.zip(data).map(|(code, data)| code / data)
    };
    let of_xen = measure::sweep(recording, |_, mode| mode == Mode::Hypervisor);
    let share = |size: usize| {
        let [xen, all] = [&of_xen, &sweep].map(|of| measure::tlb(of, Policy::NoGlobal, size).0);
        (all > 0).then(|| xen as f64 / all as f64)
    };
    let largest = TLB_ENTRIES.len() - 1;
    let [without, with] = [Policy::NoGlobal, Policy::GlobalHypervisor]
        .map(|policy| measure::tlb(&sweep, policy, largest).0);
    let claims = vec![
        rules::GLOBAL_DTLB.judge(data(recording)).differs(format!(
            "It cannot save more than what Xen misses: {} of no-global's DTLB misses. With {} entries Xen misses {} of them, and \
             the bit saves {}. An upper bound: no switch of domains or processes flushes the hypervisor's pages. The recorded Xen marks its \
             pages global and flushes them at such switches: real saves {} of no-global's DTLB misses, and {} of its ITLB \
             misses.{}",
            show(share(PAPERS_TLB)),
            TLB_ENTRIES[largest],
            show(share(largest)),
            show(saved(without, with)),
            show(today[0]),
            show(today[1]),
            also(others, Unit::Share, data)
        )),
        rules::GLOBAL_ITLB.judge(beside(recording)).differs(format!(
            "The ITLB saves {}.{}",
            show(by_bit(recording)[1]),
            also(others, Unit::Times, beside)
        )),
    ];
    let policies = [Policy::NoGlobal, Policy::Real, Policy::GlobalHypervisor, Policy::Tagged];
    let counts = |of: fn((u64, u64)) -> u64| -> Vec<u64> {
        policies.map(|policy| of(misses(policy))).into()
    };
    let bars = Plot::new("TLB misses with 64 entries", "policy", "per frame")
        .steps(policies.map(|policy| policy.name().to_owned()))
        .bars()
        .values("ITLB", per_frame(recording, &counts(|misses| misses.1)))
        .values("DTLB", per_frame(recording, &counts(|misses| misses.0)));
    let by_size = Plot::new("DTLB misses by policy", "entries", "per frame")
        .steps(TLB_ENTRIES.iter().map(ToString::to_string));
    let by_size = Policy::ALL.iter().filter(|policy| policies.contains(policy)).fold(
        by_size,
        |plot, policy| {
            plot.values(policy.name(), per_frame(recording, &sweep.dtlb[*policy as usize]))
        },
    );
    Section::new(
        "Figure 17: a global bit for the hypervisor, transmit",
        claims,
        vec![bars, by_size],
    )
}

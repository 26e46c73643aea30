//! The gain of larger caches and TLBs, and of other policies: Figures 13 to 17.

use report::{Claim, Rule, Statement, Unit};
use scope_model::{L2_BYTES, POLICIES, Policy, Sweep, TLB_ENTRIES};
use scope_result::Recording;

use crate::repro::measure::{self, GAIN, saved};
use crate::repro::plot::{Plot, Section};
use crate::repro::recordings::WorkloadRecording;

/// The shares saved that count as a gain, and as a weak one.
const GAINS: Rule = Rule::AtLeast(GAIN, GAIN / 4.0);
/// The shares saved that count as no gain, and as hardly any.
const NO_GAIN: Rule = Rule::AtMost(GAIN, 2.0 * GAIN);
/// Indices in [`TLB_ENTRIES`]: the paper's TLBs have 64 entries, and more than 128 gain nothing.
pub const PAPERS_TLB: usize = 2;
const ENTRIES_128: usize = 3;

/// Indices in [`L2_BYTES`]: the paper's L2 (§4.2), 4 MiB and 8 MiB.
const PAPERS_L2: usize = 3;
const FOUR_MIB: usize = 4;
const EIGHT_MIB: usize = 5;

/// Figures 13 and 15: L2 misses by size.
pub fn l2_by_size(named: &WorkloadRecording, title: &'static str) -> Section {
    let WorkloadRecording { workload, recording } = named;
    let sweep = measure::sweep_of_all(recording);
    let misses: Vec<u64> =
        sweep.l2i.iter().zip(&sweep.l2d).map(|(code, data)| code + data).collect();
    let source = source(workload, "Figure 13, §4.2", "Figure 15, §4.2");
    let statement = |says, number, unit| Statement { source, says, number, unit };
    let base = misses[PAPERS_L2];
    let of_base = |from: usize, to: usize| {
        (base > 0).then(|| misses[from].saturating_sub(misses[to]) as f64 / base as f64)
    };
    let knee = measure::knee(&misses).map(|place| L2_BYTES[place] as f64);
    let four = L2_BYTES[FOUR_MIB] as f64;
    let says = "good scaling up to 4 MB, after which the gain is minimal";
    let claims = vec![
        statement(says, Some(four), Unit::Bytes)
            .compare(workload, "the knee", knee, Rule::Doubling(four))
            .differs(format!(
                "Of the misses that 8 MiB save beyond 4, {} are of data. Frames have {:.0} bytes on average, and all \
                 frames that are written and not yet read need room in the cache.",
                data_share(&sweep, &misses).map_or("an unknown share".to_owned(), |share| Unit::Share.show(share)),
                recording.work.bytes as f64 / recording.work.frames.max(1) as f64
            )),
        statement(says, None, Unit::Share)
            .compare(workload, "share of the misses with 2 MiB that 4 MiB save", of_base(PAPERS_L2, FOUR_MIB), GAINS),
        statement(says, None, Unit::Share)
            .compare(workload, "share of the misses with 2 MiB that 8 MiB save beyond 4", of_base(FOUR_MIB, EIGHT_MIB), NO_GAIN),
        statement("beyond 8 MB misses are reduced only little", None, Unit::Share).compare(
            workload,
            "share of the misses with 2 MiB that 16 MiB save beyond 8",
            of_base(EIGHT_MIB, EIGHT_MIB + 1),
            NO_GAIN,
        ),
    ];
    Section::new(title, claims, l2_plots(recording, &sweep, &misses))
}

/// The share of data in the misses that 8 MiB save beyond 4.
fn data_share(sweep: &Sweep, misses: &[u64]) -> Option<f64> {
    let saved = |counts: &[u64]| counts[FOUR_MIB].saturating_sub(counts[EIGHT_MIB]) as f64;
    let all = saved(misses);
    (all > 0.0).then(|| saved(&sweep.l2d) / all)
}

fn source(workload: &str, tx: &'static str, rx: &'static str) -> &'static str {
    if workload.starts_with("tx") { tx } else { rx }
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

/// Figures 14 and 16: TLB misses by entries.
pub fn tlbs_by_entries(named: &WorkloadRecording, title: &'static str) -> Section {
    let WorkloadRecording { workload, recording } = named;
    let sweep = measure::sweep_of_all(recording);
    let real = Policy::Real as usize;
    let (data, code) = (&sweep.dtlb[real], &sweep.itlb[real]);
    let last = TLB_ENTRIES.len() - 1;
    let source = source(workload, "Figure 14, §4.2", "Figure 16, §4.2");
    let statement = |says, number, unit| Statement { source, says, number, unit };
    let [more_data, more_code] =
        [data, code].map(|counts| saved(counts[PAPERS_TLB], counts[ENTRIES_128]));
    let past = saved(data[ENTRIES_128], data[last]);
    let knee = measure::knee(data).map(|place| f64::from(TLB_ENTRIES[place]));
    let at_128 = f64::from(TLB_ENTRIES[ENTRIES_128]);
    let beside = more_code.zip(more_data).map(|(code, data)| code / data);
    let floor = "The misses that stay are those after flushes, which no entry of any size survives. Separate TLBs for \
                 2 MiB pages have half as many entries; the paper does not give the size of its own.";
    let claims = vec![
        statement("the DTLB's misses decrease up to 128 entries", Some(at_128), Unit::Entries)
            .compare(workload, "the DTLB's knee", knee, Rule::Doubling(at_128)),
        statement("a sharp decrease of the DTLB's from 64 to 128 entries", None, Unit::Share)
            .compare(
                workload,
                "share of the DTLB misses with 64 entries that 128 save",
                more_data,
                GAINS,
            ),
        statement("nearly constant for larger sizes", None, Unit::Share)
            .compare(
                workload,
                "share of the DTLB misses with 128 entries that 1024 save",
                past,
                NO_GAIN,
            )
            .differs(floor),
        statement("the ITLB's decrease slightly, the DTLB's more sharply", None, Unit::Times)
            .compare(
                workload,
                "share of misses saved from 64 to 128 entries, ITLB ÷ DTLB",
                beside,
                Rule::AtMost(0.5, 1.0),
            )
            .differs(format!(
                "The ITLB saves {}.",
                more_code.map_or("an unknown share".to_owned(), |saved| Unit::Share.show(saved))
            )),
    ];
    let sizes = || TLB_ENTRIES.iter().map(ToString::to_string);
    let misses = Plot::new("TLB misses", "entries", "per frame")
        .steps(sizes())
        .values("ITLB", per_frame(recording, code))
        .values("DTLB", per_frame(recording, data));
    let by_doubling =
        savings("TLB misses saved by the doubling to", sizes(), &[("ITLB", code), ("DTLB", data)]);
    Section::new(title, claims, vec![misses, by_doubling])
}

/// Figure 17: misses with and without global pages.
pub fn global_pages(named: &WorkloadRecording) -> Section {
    let WorkloadRecording { workload, recording } = named;
    let sweep = measure::sweep_of_all(recording);
    let misses = |policy| measure::tlb(&sweep, policy, PAPERS_TLB);
    let none = misses(Policy::NoGlobal);
    let saves = |policy: Policy| {
        let with = misses(policy);
        [saved(none.0, with.0), saved(none.1, with.1)]
    };
    let by_bit = saves(Policy::GlobalHypervisor);
    let today = saves(Policy::Real);
    let show = |saved: Option<f64>| {
        saved.map_or("an unknown share".to_owned(), |saved| Unit::Share.show(saved))
    };
    let source = "Figure 17, §4.2";
    let claims: Vec<Claim> = vec![
        Statement { source, says: "a global bit for the hypervisor's pages cuts DTLB misses substantially", number: None, unit: Unit::Share }
            .compare(workload, "share of no-global's DTLB misses that global-hypervisor saves", by_bit[0], GAINS)
            .differs(format!(
                "An upper bound: no switch of domains or processes flushes the hypervisor's pages. The recorded Xen marks its \
                 pages global and flushes them at such switches: real saves {} of no-global's DTLB misses, and {} of its ITLB \
                 misses.",
                show(today[0]),
                show(today[1])
            )),
        Statement { source, says: "and ITLB misses to a lesser extent", number: None, unit: Unit::Times }
            .compare(
                workload,
                "share of misses saved, ITLB ÷ DTLB",
                by_bit[1].zip(by_bit[0]).map(|(code, data)| code / data),
                Rule::AtMost(0.9, 1.1),
            )
            .differs(format!("The ITLB saves {}.", show(by_bit[1]))),
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
    let by_size =
        POLICIES.iter().filter(|policy| policies.contains(policy)).fold(by_size, |plot, policy| {
            plot.values(policy.name(), per_frame(recording, &sweep.dtlb[*policy as usize]))
        });
    Section::new(
        "Figure 17: a global bit for the hypervisor, transmit",
        claims,
        vec![bars, by_size],
    )
}

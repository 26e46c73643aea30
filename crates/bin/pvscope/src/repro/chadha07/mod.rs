//! Chadha, Figueiredo, Illikkal, Iyer, Moses, Newell: "I/O Processing in a Virtualized Platform: A
//! Simulation-Driven Approach", VEE 2007. Xen 3.0.2 under SoftSDV: caches and TLBs are models there as well.
//!
//! The text has no values of the figures' curves: what it says of their shapes is compared.

mod events;
mod sizes;

use scope_result::EventKind;

use super::measure::GAIN;
use super::plot::Document;
use super::recordings::Named;

pub use events::FLOW;

/// What is recorded for it.
pub const WORKLOADS: [&str; 2] = ["tx-stock", "rx-stock"];

/// Everything.
pub fn document(recordings: &[Named]) -> Document {
    let first = &recordings[0];
    let mut sections = vec![
        events::switches(first),
        events::after_switch(first),
        events::after_unmap(first),
        events::caches_after_switch(first),
    ];
    let titles = [
        ("Figure 13: transmit, L2 by size", "Figure 14: transmit, TLBs by entries"),
        ("Figure 15: receive, L2 by size", "Figure 16: receive, TLBs by entries"),
    ];
    for (named, (l2_title, tlb_title)) in recordings.iter().zip(titles) {
        sections.push(sizes::l2(named, l2_title));
        sections.push(sizes::tlbs(named, tlb_title));
    }
    sections.push(sizes::global(first));
    Document {
        paper: "Chadha and others 2007, run again",
        notes: notes(recordings),
        recordings: recordings.iter().map(Named::used).collect(),
        sections,
    }
}

fn notes(recordings: &[Named]) -> Vec<String> {
    let mut notes = vec![format!(
        "A doubling is a gain here if it saves at least {:.0} % of the misses that were left; the knee is where the \
         last one that does so ends. What counts as a surge, and what as constant, is said with each claim.",
        100.0 * GAIN
    )];
    for Named { workload, recording } in recordings {
        let count = |is: fn(EventKind) -> bool| {
            recording.events.iter().filter(|event| is(event.kind)).count()
        };
        notes.push(format!(
            "{workload}: {} switches, {} writes of CR3, {} of CR4, {} single pages taken out of the TLBs for {} frames.",
            count(|kind| matches!(kind, EventKind::Switch(_))),
            count(|kind| kind == EventKind::Cr3),
            count(|kind| kind == EventKind::Cr4),
            count(|kind| kind == EventKind::Invalidate),
            recording.work.frames
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use scope_model::{POLICIES, Policy, Sweep};
    use scope_result::{Domain, Mode, Owner, Recording, Work};

    use super::super::measure::tests::two_switches;
    use super::super::plot::Section;
    use super::*;
    use report::Verdict;

    /// A recording whose curves are as the paper tells.
    fn as_in_the_paper() -> Recording {
        let mut sweep = Sweep { l2d: [900, 600, 400, 300, 100, 90, 88], ..Sweep::default() };
        for policy in POLICIES {
            let much = if policy == Policy::NoGlobal { 2 } else { 1 };
            sweep.dtlb[policy as usize] =
                [500, 400, 300, 100, 95, 95, 95].map(|count| much * count);
            sweep.itlb[policy as usize] = [100, 90, 80, 78, 77, 77, 77];
        }
        Recording {
            sweeps: vec![(Owner { domain: 0, mode: Mode::Kernel }, sweep)],
            domains: vec![Domain::Xen(0)],
            work: Work { frames: 10, bytes: 1000, what: String::new() },
            ..two_switches()
        }
    }

    fn sections(recording: &Recording) -> Vec<Section> {
        let named = |workload: &&'static str| Named { workload, recording: recording.clone() };
        document(&WORKLOADS.iter().map(named).collect::<Vec<_>>()).sections
    }

    #[test]
    fn the_papers_shapes_hold() {
        for section in sections(&as_in_the_paper()).iter().skip(4) {
            for claim in &section.claims {
                assert_eq!(claim.verdict, Verdict::Holds, "{}: {}", section.title, claim.what);
            }
        }
    }

    #[test]
    fn a_knee_elsewhere_does_not() {
        let mut recording = as_in_the_paper();
        recording.sweeps[0].1.l2d = [900, 600, 590, 580, 570, 560, 100];
        let sections = sections(&recording);
        let knee = &sections[4].claims[0];
        assert_eq!((knee.here, knee.verdict), (Some(f64::from(16 << 20)), Verdict::DoesNotHold));
    }

    #[test]
    fn few_switches_tell_nothing_of_surges() {
        let sections = sections(&as_in_the_paper());
        assert_eq!(sections[1].claims[0].verdict, Verdict::CannotBeTold);
        assert_eq!(sections[0].plots.len(), 2);
    }
}

//! Chadha, Figueiredo, Illikkal, Iyer, Moses, Newell: "I/O Processing in a Virtualized Platform: A
//! Simulation-Driven Approach", VEE 2007. Xen 3.0.2 under SoftSDV: caches and TLBs are models there as well.
//!
//! The paper's text gives no values for the curves of its figures, so the claims are about their shapes.

mod events;
mod sizes;

use scope_result::EventKind;

use super::measure::GAIN;
use super::plot::Document;
use super::recordings::WorkloadRecording;

pub use events::FLOW;

/// The workloads whose recordings it needs.
pub const WORKLOADS: [&str; 2] = ["tx-stock", "rx-stock"];

/// All sections, from the recordings of [`WORKLOADS`].
pub fn document(recordings: &[WorkloadRecording]) -> Document {
    let first = &recordings[0];
    let mut sections = vec![
        events::tlb_misses_and_switches(first),
        events::tlb_misses_after_switch(first),
        events::tlb_misses_after_unmap(first),
        events::l2_misses_after_switch(first),
    ];
    let titles = [
        ("Figure 13: transmit, L2 by size", "Figure 14: transmit, TLBs by entries"),
        ("Figure 15: receive, L2 by size", "Figure 16: receive, TLBs by entries"),
    ];
    for (named, (l2_title, tlb_title)) in recordings.iter().zip(titles) {
        sections.push(sizes::l2_by_size(named, l2_title));
        sections.push(sizes::tlbs_by_entries(named, tlb_title));
    }
    sections.push(sizes::global_pages(first));
    Document {
        paper: "Chadha and others 2007, run again",
        notes: notes(recordings),
        recordings: recordings.iter().map(WorkloadRecording::summary).collect(),
        sections,
    }
}

fn notes(recordings: &[WorkloadRecording]) -> Vec<String> {
    let mut notes = vec![format!(
        "A doubling counts as a gain if it saves at least {:.0} % of the misses that were left. The knee is the size \
         that the last such doubling reaches. Each claim states its own rule for a surge and for a constant.",
        100.0 * GAIN
    )];
    for WorkloadRecording { workload, recording } in recordings {
        let count = |is: fn(EventKind) -> bool| {
            recording.events.iter().filter(|event| is(event.kind)).count()
        };
        notes.push(format!(
            "{workload}: {} switches, {} writes of CR3, {} of CR4, {} invalidations of single pages, for {} frames.",
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

    /// A recording whose curves have the shapes that the paper describes.
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
            work: Work { frames: 10, bytes: 1000, ..Work::default() },
            ..two_switches()
        }
    }

    fn sections(recording: &Recording) -> Vec<Section> {
        let named =
            |workload: &&'static str| WorkloadRecording { workload, recording: recording.clone() };
        document(&WORKLOADS.iter().map(named).collect::<Vec<_>>()).sections
    }

    #[test]
    fn curves_with_the_papers_shapes_hold() {
        for section in sections(&as_in_the_paper()).iter().skip(4) {
            for claim in &section.claims {
                assert_eq!(claim.verdict, Verdict::Holds, "{}: {}", section.title, claim.what);
            }
        }
    }

    #[test]
    fn a_knee_elsewhere_does_not_hold() {
        let mut recording = as_in_the_paper();
        recording.sweeps[0].1.l2d = [900, 600, 590, 580, 570, 560, 100];
        let sections = sections(&recording);
        let knee = &sections[4].claims[0];
        assert_eq!((knee.here, knee.verdict), (Some(f64::from(16 << 20)), Verdict::DoesNotHold));
    }

    #[test]
    fn too_few_switches_give_no_verdict_on_surges() {
        let sections = sections(&as_in_the_paper());
        assert_eq!(sections[1].claims[0].verdict, Verdict::CannotBeTold);
        assert_eq!(sections[0].plots.len(), 2);
    }
}

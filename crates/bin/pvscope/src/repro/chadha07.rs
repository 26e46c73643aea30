//! Chadha, Figueiredo, Illikkal, Iyer, Moses, Newell: "I/O Processing in a Virtualized Platform: A
//! Simulation-Driven Approach", VEE 2007. Xen 3.0.2 under SoftSDV: caches and TLBs are models there as well.
//!
//! The paper's text gives no values for the curves of its figures, so the claims are about their shapes.

mod events;
mod paths;
mod sizes;

use report::Unit;
use scope_result::{EventKind, Recording};

use super::measure::WorkloadRecording;
use super::plot::Document;
use crate::probes::{self, Probed};

pub use events::FLOW;

/// The workloads whose recordings it needs. Each rule names the one that it judges; the others are shown beside it.
pub const WORKLOADS: [&str; 4] = ["tx-udp", "tx-stock-basic", "rx-stock-basic", "tx-stock"];

/// All sections, from the recordings of [`WORKLOADS`].
pub fn document(recordings: &[WorkloadRecording]) -> Document {
    let [udp, others @ ..] = recordings else { unreachable!("a recording for each of WORKLOADS") };
    let [tcp, receive, _] = others else { unreachable!("a recording for each of WORKLOADS") };
    let sections = vec![
        paths::life_of_a_packet(tcp, udp),
        events::tlb_misses_and_switches(udp, others),
        events::tlb_misses_after_switch(udp, others),
        events::tlb_misses_after_unmap(udp, others),
        events::l2_misses_after_switch(udp, others),
        sizes::l2_by_size(udp, others, "Figure 13: transmit, L2 by size", sizes::TX_L2),
        sizes::tlbs_by_entries(udp, others, "Figure 14: transmit, TLBs by entries", sizes::TX_TLB),
        sizes::l2_by_size(receive, &[], "Figure 15: receive, L2 by size", sizes::RX_L2),
        sizes::tlbs_by_entries(receive, &[], "Figure 16: receive, TLBs by entries", sizes::RX_TLB),
        sizes::global_pages(udp, others),
    ];
    Document {
        paper: "Chadha and others 2007, run again",
        notes: notes(recordings),
        recordings: recordings.iter().map(WorkloadRecording::summary).collect(),
        sections,
    }
}

fn notes(recordings: &[WorkloadRecording]) -> Vec<String> {
    let mut notes = vec![
        "The rules were committed before these recordings (crates/bin/pvscope/src/repro/rules). Numbers of other workloads \
         stand beside those that are judged, and have no verdict."
            .to_owned(),
    ];
    for WorkloadRecording { workload, recording } in recordings {
        let count = |is: fn(EventKind) -> bool| {
            recording.events.iter().filter(|event| is(event.kind)).count()
        };
        notes.push(format!(
            "{workload}: {} switches, {} writes of CR3, {} of CR4, {} invalidations of single pages, {} explicit flushes, {} \
             interrupts, {} system calls, for {} frames.",
            count(|kind| matches!(kind, EventKind::Switch(_))),
            count(|kind| kind == EventKind::Cr3),
            count(|kind| kind == EventKind::Cr4),
            count(|kind| kind == EventKind::Invalidate),
            count(|kind| probes::is(kind, Probed::TlbFlush)),
            count(|kind| probes::is(kind, Probed::Interrupt)),
            count(|kind| probes::is(kind, Probed::SystemCall)),
            recording.work.frames
        ));
    }
    notes
}

/// A sentence with the same number of other workloads.
pub fn also(
    others: &[WorkloadRecording],
    unit: Unit,
    of: impl Fn(&Recording) -> Option<f64>,
) -> String {
    let numbers = others.iter().filter_map(|named| {
        of(&named.recording).map(|number| format!("{} {}", named.workload, unit.show(number)))
    });
    let numbers: Vec<String> = numbers.collect();
    if numbers.is_empty() { String::new() } else { format!(" Others: {}.", numbers.join(", ")) }
}

#[cfg(test)]
mod tests {
    use scope_model::{Policy, Sweep};
    use scope_result::{Domain, Mode, Owner, Recording, Work};

    use super::super::measure::tests::two_switches;
    use super::super::plot::Section;
    use super::*;
    use report::Verdict;

    /// A recording whose curves have the shapes that the paper describes.
    fn as_in_the_paper() -> Recording {
        let mut sweep = Sweep { l2d: [900, 600, 400, 300, 100, 90, 88], ..Sweep::default() };
        for policy in Policy::ALL {
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
        for section in sections(&as_in_the_paper()).iter().skip(5) {
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
        let verdicts: Vec<_> = sections[5].claims.iter().map(|claim| claim.verdict).collect();
        assert_eq!(verdicts, [Verdict::DoesNotHold; 3]);
    }

    #[test]
    fn too_few_switches_give_no_verdict_on_surges() {
        let sections = sections(&as_in_the_paper());
        assert_eq!(sections[2].claims[0].verdict, Verdict::CannotBeTold);
        assert_eq!(sections[1].plots.len(), 3);
    }
}

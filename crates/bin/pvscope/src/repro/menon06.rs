//! Menon, Cox, Zwaenepoel: "Optimizing Network Virtualization in Xen", USENIX 2006. Here are its figures of cycles and TLB
//! misses by domain: 6, 8, 9 and 12. `pvnet-lab repro menon06` has the figures of throughput.

mod tlb;

use report::{Claim, Unit};
use scope_model::{Costs, Counters};

use super::measure::{WorkloadRecording, saved_of};
use super::plot::{Document, Plot, Section};
use super::rules::{PaperClaim, menon06 as rules};
use crate::summary::{Summary, Who};

/// The workloads whose recordings it needs.
pub const WORKLOADS: [&str; 9] = [
    "tx-udp",
    "rx-stock-basic",
    "tx-sendfile-basic",
    "tx-sendfile",
    "tx-frontend-remap",
    "tx-frontend-header",
    "tx-frontend",
    "virtio-dom0",
    "virtio",
];

/// All sections, from the recordings of [`WORKLOADS`].
pub fn document(recordings: &[WorkloadRecording], costs: Costs) -> Document {
    let spent: Vec<DomainCycles> =
        recordings.iter().map(|named| DomainCycles::of(named, costs)).collect();
    let (
        [udp, receive, basic, sendfile, remap, header, reuse, ..],
        [_, _, _, of_sendfile, .., driver, native],
    ) = (&spent[..], recordings)
    else {
        unreachable!("a recording for each of WORKLOADS")
    };
    Document {
        paper: "Menon, Cox, Zwaenepoel 2006, under pvscope",
        notes: notes(of_sendfile),
        recordings: recordings.iter().map(WorkloadRecording::summary).collect(),
        sections: vec![
            cost_by_domain(udp, receive, &spent),
            offload_savings(basic, sendfile),
            header_channel(remap, header, reuse),
            tlb::transmit_misses(of_sendfile),
            tlb::driver_domain_misses(driver, native),
        ],
    }
}

fn notes(tx: &WorkloadRecording) -> Vec<String> {
    vec![
        "The rules were committed before these recordings (crates/bin/pvscope/src/repro/rules).".to_owned(),
        "Cycles are model cycles; --costs changes their costs. The program at the other end of a TCP stream runs in dom0, so \
         its cycles count as dom0's. In the paper it runs on another machine. In tx-udp nobody receives."
            .to_owned(),
        format!(
            "TLB misses are for TLBs of {} entries each for code and data, and half as many for 2 MiB pages.",
            scope_model::TLB_ENTRIES[tx.recording.config.tlb]
        ),
        "virtio-dom0 and virtio are one system that sends to itself, with two network cards on one wire, each in its own \
         namespace: dom0 of a Xen host without a guest, and Linux alone. Both send and receive."
            .to_owned(),
    ]
}

/// Whether a function only copies: Xen's `memcpy`, Linux's `memcpy_orig` and `copy_user_generic_…`.
fn copies(function: &str) -> bool {
    function.starts_with("memcpy") || function.starts_with("copy_user_")
}

/// The cycles of a recording by domain.
#[derive(Clone, Debug, Default)]
struct DomainCycles {
    workload: &'static str,
    guest: f64,
    driver: f64,
    hypervisor: f64,
    /// The hypervisor's cycles for copying, a part of `hypervisor`.
    copying: f64,
    /// The driver domain's cycles for copying, a part of `driver`.
    driver_copying: f64,
    /// Instructions of the guest, of the driver domain and of the hypervisor.
    instructions: [f64; 3],
    /// Bytes of payload.
    bytes: f64,
}

impl DomainCycles {
    fn of(named: &WorkloadRecording, costs: Costs) -> Self {
        let summary = Summary::new(&named.recording, costs);
        let mut spent = Self { workload: named.workload, ..Self::default() };
        spent.bytes = named.recording.work.payload as f64;
        let by = summary.by(|part| (part.who.clone(), copies(&part.function.name)));
        for ((who, copies), counters) in by {
            spent.add(&who, copies, &counters, costs);
        }
        spent
    }

    fn add(&mut self, who: &Who, copies: bool, counters: &Counters, costs: Costs) {
        let cycles = costs.cycles(counters);
        let instructions = counters.instructions as f64;
        match who {
            Who::Xen => {
                self.hypervisor += cycles;
                self.instructions[2] += instructions;
                self.copying += if copies { cycles } else { 0.0 };
            }
            Who::Domain(name) if name == "dom0" => {
                self.driver += cycles;
                self.instructions[1] += instructions;
                self.driver_copying += if copies { cycles } else { 0.0 };
            }
            Who::Domain(_) => {
                self.guest += cycles;
                self.instructions[0] += instructions;
            }
            Who::Idle => {}
        }
    }

    fn share(&self, part: f64) -> Option<f64> {
        let all = self.guest + self.driver + self.hypervisor;
        (all > 0.0).then(|| part / all)
    }

    fn per_byte(&self, cycles: f64) -> Option<f64> {
        (self.bytes > 0.0).then(|| cycles / self.bytes)
    }

    fn by_domain(&self) -> [f64; 3] {
        [self.guest, self.driver, self.hypervisor]
    }

    fn parts(&self) -> [f64; 5] {
        let driver = self.driver - self.driver_copying;
        let hypervisor = self.hypervisor - self.copying;
        [self.guest, driver, self.driver_copying, hypervisor, self.copying]
    }
}

/// §2: the cost of a byte, by domain.
fn cost_by_domain(udp: &DomainCycles, receive: &DomainCycles, all: &[DomainCycles]) -> Section {
    let claims = [
        (rules::TX_XEN, udp, udp.hypervisor),
        (rules::TX_DRIVER, udp, udp.driver),
        (rules::RX_XEN, receive, receive.hypervisor),
        (rules::RX_DRIVER, receive, receive.driver),
    ];
    let claims = claims.map(|(rule, spent, part)| {
        rule.judge(spent.share(part)).differs(format!(
            "{} of all cycles are the guest's, {} Xen's copying, {} copying in dom0.",
            show(spent.share(spent.guest)),
            show(spent.share(spent.copying)),
            show(spent.share(spent.driver_copying))
        ))
    });
    let steps = [
        "guest",
        "dom0, other than copying",
        "dom0, copying",
        "Xen, other than copying",
        "Xen, copying",
    ];
    let plot = Plot::new("Cycles per byte of payload, by domain", "who", "cycles");
    let plot = plot.steps(steps.map(str::to_owned)).bars();
    let plot = all.iter().fold(plot, |plot, spent| {
        let bytes = spent.bytes.max(1.0);
        plot.values(spent.workload, spent.parts().map(|part| part / bytes))
    });
    Section::new("§2: cost by domain", claims.into(), vec![plot])
}

fn show(share: Option<f64>) -> String {
    share.map_or("an unknown share".to_owned(), |share| Unit::Share.show(share))
}

/// Figure 6: what offloads save each domain.
fn offload_savings(without: &DomainCycles, with: &DomainCycles) -> Section {
    let ratio = |one: f64, other: f64| {
        let other = with.per_byte(other).filter(|other| *other > 0.0)?;
        Some(without.per_byte(one)? / other)
    };
    let [without_cycles, with_cycles] = [without, with].map(DomainCycles::by_domain);
    let rules: [(PaperClaim, usize); 3] =
        [(rules::OFFLOADS_GUEST, 0), (rules::OFFLOADS_DRIVER, 1), (rules::OFFLOADS_XEN, 2)];
    let claims = rules.map(|(rule, n)| {
        let instructions = ratio(without.instructions[n], with.instructions[n]);
        let copying = [0.0, without.driver_copying, without.copying][n];
        let other_copying = [0.0, with.driver_copying, with.copying][n];
        rule.judge(ratio(without_cycles[n], with_cycles[n])).differs(format!(
            "Its instructions per byte are divided by {}, its cycles other than copying by {}. {}",
            times(instructions),
            times(ratio(without_cycles[n] - copying, with_cycles[n] - other_copying)),
            DIFFERENT[n],
        ))
    });
    let whose = ["the guest", "dom0", "Xen"];
    let plot = Plot::new(
        "Cycles per byte of payload, by domain and the guest's interface",
        "who",
        "cycles",
    );
    let plot = plot
        .steps(whose.map(str::to_owned))
        .bars()
        .values("without offloads", without_cycles.map(|part| part / without.bytes.max(1.0)))
        .values("with offloads", with_cycles.map(|part| part / with.bytes.max(1.0)));
    Section::new("Figure 6: what offloads save", claims.into(), vec![plot])
}

fn times(ratio: Option<f64>) -> String {
    ratio.map_or("an unknown factor".to_owned(), |ratio| format!("{ratio:.2}"))
}

/// Differences from the paper, for the guest, dom0 and Xen.
const DIFFERENT: [&str; 3] = [
    "Both guests send with sendfile().",
    "dom0 is also the receiver: its stack and its program copy each byte.",
    "Xen works once per grant and per event, and frames without offloads need more of both for the same bytes.",
];

/// Figure 8: the header channel, and grants that are used again.
fn header_channel(remap: &DomainCycles, header: &DomainCycles, reuse: &DomainCycles) -> Section {
    let per_byte = |spent: &DomainCycles, cycles: f64| spent.per_byte(cycles);
    let saves = |after: &DomainCycles, of: fn(&DomainCycles) -> f64| {
        saved_of(per_byte(remap, of(remap))?, per_byte(after, of(after))?)
    };
    let claim: Claim = rules::HEADER_CHANNEL.judge(saves(header, |spent| spent.hypervisor)).differs(format!(
        "Without Xen's copying of bytes it saves {}: the paper's card fetches the body, here Xen copies it to dom0, which \
         is the receiver. Grants that are used again (tx-frontend) save {}, and {} without copying.",
        show(saves(header, |spent| spent.hypervisor - spent.copying)),
        show(saves(reuse, |spent| spent.hypervisor)),
        show(saves(reuse, |spent| spent.hypervisor - spent.copying)),
    ));
    let steps = ["guest", "dom0", "Xen, other than copying", "Xen, copying"];
    let plot =
        Plot::new("Cycles per byte of payload, by the way of a frame's body", "who", "cycles");
    let plot = plot.steps(steps.map(str::to_owned)).bars();
    let plot = [remap, header, reuse].into_iter().fold(plot, |plot, spent| {
        let parts = [spent.guest, spent.driver, spent.hypervisor - spent.copying, spent.copying];
        plot.values(spent.workload, parts.map(|part| part / spent.bytes.max(1.0)))
    });
    Section::new("Figure 8: the header channel", vec![claim], vec![plot])
}

#[cfg(test)]
mod tests {
    use scope_model::{Policy, Sweep};
    use scope_result::{Block, Domain, Function, Mode, Owner, Recording, Work};

    use super::*;
    use report::Verdict;

    /// Costs of half a cycle per instruction.
    fn costs() -> Costs {
        Costs { instruction: 0.5, ..Costs::default() }
    }

    /// Cycles of the guest, of dom0, of Xen and of its copying.
    fn recording(cycles: [u64; 4]) -> Recording {
        let block = |address, domain, function, cycles: u64| Block {
            function,
            counters: vec![(domain, Counters { instructions: 2 * cycles, ..Counters::default() })],
            ..Block::at(address)
        };
        let (xen, kernel) = (0xffff_82d0_4000_0000, 0xffff_ffff_8100_0000);
        let mut sweep = Sweep::default();
        for (policy, misses) in [
            (Policy::Real, 380),
            (Policy::NoGlobal, 380),
            (Policy::Superpages, 370),
            (Policy::GroupedSuperpages, 100),
            (Policy::GuestGlobal, 375),
            (Policy::GuestGlobalSuperpages, 100),
        ] {
            sweep.dtlb[policy as usize] = [misses; 7];
            sweep.itlb[policy as usize] = [10; 7];
        }
        Recording {
            domains: vec![Domain::Xen(0), Domain::Xen(1)],
            functions: vec![Function::default(), Function::new("xen", "memcpy")],
            blocks: vec![
                block(kernel, 1, 0, cycles[0]),
                block(kernel, 0, 0, cycles[1]),
                block(xen, 0, 0, cycles[2]),
                block(xen, 1, 1, cycles[3]),
            ],
            sweeps: vec![(Owner { domain: 0, mode: Mode::Kernel }, sweep)],
            work: Work { frames: 1, payload: 1000, ..Work::default() },
            ..Recording::default()
        }
    }

    fn verdicts(section: &Section) -> Vec<Verdict> {
        section.claims.iter().map(|claim| claim.verdict).collect()
    }

    #[test]
    fn counts_with_the_papers_shares_hold() {
        let splits = [
            [40, 30, 30, 0],
            [30, 30, 30, 10],
            [400, 210, 190, 0],
            [100, 100, 100, 0],
            [50, 50, 100, 0],
            [50, 50, 52, 10],
            [50, 50, 10, 0],
            [0, 100, 0, 0],
            [0, 100, 0, 0],
        ];
        let named = WORKLOADS.iter().zip(splits);
        let mut named: Vec<WorkloadRecording> = named
            .map(|(workload, cycles)| WorkloadRecording { workload, recording: recording(cycles) })
            .collect();
        // As many misses for 18 times the bytes.
        named[8].recording.work.payload = 18_000;
        let document = document(&named, costs());
        use Verdict::{DoesNotHold, Holds};
        let found: Vec<Vec<Verdict>> = document.sections.iter().map(verdicts).collect();
        let [by_domain, offloads, header, transmit, driver] = &found[..] else { panic!() };
        assert_eq!(by_domain[..], [Holds; 4]);
        assert_eq!(offloads[..], [Holds; 3]);
        assert_eq!(header[..], [Holds]);
        assert_eq!(transmit[..], [Holds, Holds, Verdict::CannotBeTold]);
        // Superpages save 74 %, global pages 1 %.
        assert_eq!(driver[..], [Holds, DoesNotHold, Holds, DoesNotHold]);
        assert!((document.sections[3].claims[0].here.unwrap() - 3.8).abs() < 1e-9);
        let saved = document.sections[2].claims[0].here.unwrap();
        assert!((saved - 0.38).abs() < 1e-9, "{saved}");
    }
}

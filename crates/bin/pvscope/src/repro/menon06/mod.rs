//! Menon, Cox, Zwaenepoel: "Optimizing Network Virtualization in Xen", USENIX 2006. Here are its figures of cycles and TLB
//! misses by domain: 6, 8, 9 and 12. `pvnet repro menon06` has the figures of throughput.

mod tlb;

use report::{Claim, Rule, Statement, Unit};
use scope_model::{Costs, Counters};
use scope_result::Recording;

use super::measure::{self, divisor, saved, share_saved};
use super::plot::{Document, Plot, Section};
use super::recordings::WorkloadRecording;
use crate::summary::{Summary, Who};

/// The workloads whose recordings it needs.
pub const WORKLOADS: [&str; 5] = ["tx-stock", "rx-stock", "tx-pvnet", "tx-stock-basic", "virtio"];

/// All sections, from the recordings of [`WORKLOADS`].
pub fn document(recordings: &[WorkloadRecording], costs: Costs) -> Document {
    let [tx, rx, pvnet, basic, native] = recordings else {
        unreachable!("a recording for each of WORKLOADS")
    };
    let of_xen = [tx, rx, pvnet, basic];
    let spent = of_xen.map(|named| DomainCycles::of(named, costs));
    let [tx_spent, rx_spent, pvnet_spent, basic_spent] = &spent;
    Document {
        paper: "Menon, Cox, Zwaenepoel 2006, under pvscope",
        notes: notes(tx),
        recordings: recordings.iter().map(WorkloadRecording::summary).collect(),
        sections: vec![
            cost_by_domain([(basic, basic_spent), (tx, tx_spent), (rx, rx_spent)], &spent),
            offload_savings([basic, tx], [basic_spent, tx_spent]),
            mapping_cost(pvnet, tx_spent, pvnet_spent),
            tlb::transmit_misses(tx),
            tlb::driver_domain_misses(tx, basic, native),
        ],
    }
}

fn notes(tx: &WorkloadRecording) -> Vec<String> {
    vec![
        "Cycles are model cycles; --costs changes their costs. The program \
         at the other end of the stream runs in dom0, so its cycles count as dom0's. In the paper it runs on another \
         machine."
            .to_owned(),
        format!(
            "TLB misses are for TLBs of {} entries each for code and data, and half as many for 2 MiB pages.",
            scope_model::TLB_ENTRIES[tx.recording.config.tlb]
        ),
        "Native Linux is the workload virtio: one system that sends to itself, with two network cards on one wire, each \
         in its own namespace. Its counts include the sender's, so they are too high rather than too low."
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
    bytes: f64,
}

impl DomainCycles {
    fn of(named: &WorkloadRecording, costs: Costs) -> Self {
        let summary = Summary::new(&named.recording, costs);
        let mut spent = Self { workload: named.workload, ..Self::default() };
        spent.bytes = named.recording.work.bytes as f64;
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

/// Shares of a packet's cost in the paper, §2: of the driver domain and Xen together, of Xen, and of the driver domain.
const TX_SPLIT: (f64, f64, f64) = (0.6, 0.3, 0.3);
const RX_SPLIT: (f64, f64, f64) = (0.7, 0.4, 0.3);
/// The differences from a share in the paper up to which a claim holds, and holds weakly.
const NEAR: f64 = 0.1;
const FAR: f64 = 0.2;

/// §2: the cost of a byte, by domain.
fn cost_by_domain(of: [(&WorkloadRecording, &DomainCycles); 3], all: &[DomainCycles]) -> Section {
    let splits = [TX_SPLIT, TX_SPLIT, RX_SPLIT];
    let claims =
        of.iter().zip(splits).flat_map(|((named, spent), split)| split_claims(named, spent, split));
    let claims = claims.collect();
    let steps = [
        "guest",
        "dom0, other than copying",
        "dom0, copying",
        "Xen, other than copying",
        "Xen, copying",
    ];
    let plot = Plot::new("Cycles per byte, by domain", "who", "cycles");
    let plot = plot.steps(steps.map(str::to_owned)).bars();
    let plot = all.iter().fold(plot, |plot, spent| {
        let bytes = spent.bytes.max(1.0);
        plot.values(spent.workload, spent.parts().map(|part| part / bytes))
    });
    Section::new("§2: cost by domain", claims, vec![plot])
}

/// The factors by which the high-level interface divides the cost of the guest, the driver domain and Xen (§6.3.1).
const OFFLOADS_DIVIDE: [f64; 3] = [4.0, 2.1, 1.9];

/// Figure 6: what offloads save each domain.
fn offload_savings(
    [basic, tx]: [&WorkloadRecording; 2],
    [without, with]: [&DomainCycles; 2],
) -> Section {
    let larger_l2 = larger_l2_saves(&tx.recording);
    let whose = ["the guest", "dom0", "Xen"];
    let says = [
        "the high-level interface divides the guest's cost by almost 4",
        "and the driver domain's by 2.1",
        "and Xen's by 1.9",
    ];
    let [without_cycles, with_cycles] = [without, with].map(DomainCycles::by_domain);
    let claims = (0..whose.len()).map(|n| {
        let number = OFFLOADS_DIVIDE[n];
        let statement = Statement {
            source: "Figure 6, §6.3.1",
            says: says[n],
            number: Some(number),
            unit: Unit::Times,
        };
        // Half of the paper's saving, and the least that is a change.
        let rule = Rule::AtLeast(divisor(share_saved(number) / 2.0), divisor(0.05));
        let ratio = |one: f64, other: f64| {
            let other = with.per_byte(other).filter(|other| *other > 0.0)?;
            Some(without.per_byte(one)? / other)
        };
        let instructions = ratio(without.instructions[n], with.instructions[n]);
        let what = format!("{}'s cycles per byte without offloads ÷ with them", whose[n]);
        statement
            .compare(basic.workload, what, ratio(without_cycles[n], with_cycles[n]), rule)
            .differs(format!(
                "Its instructions per byte are divided by {}. {}{}",
                instructions.map_or("an unknown factor".to_owned(), |ratio| format!("{ratio:.2}")),
                DIFFERENT[n],
                if n == 1 { &larger_l2 } else { "" }
            ))
    });
    let claims = claims.collect();
    let plot = Plot::new("Cycles per byte, by domain and the guest's interface", "who", "cycles");
    let plot = plot
        .steps(whose.map(str::to_owned))
        .bars()
        .values("without offloads", without_cycles.map(|part| part / without.bytes.max(1.0)))
        .values("with offloads", with_cycles.map(|part| part / with.bytes.max(1.0)));
    Section::new("Figure 6: what offloads save", claims, vec![plot])
}

/// A sentence on what the next size of L2 would save.
fn larger_l2_saves(recording: &Recording) -> String {
    let sweep = measure::sweep_of_all(recording);
    let size = recording.config.l2;
    let misses = |size: usize| Some(sweep.l2i.get(size)? + sweep.l2d.get(size)?);
    let share = misses(size).zip(misses(size + 1)).and_then(|(now, larger)| saved(now, larger));
    share.map_or(String::new(), |share| {
        format!(
            " An L2 of twice the size would save {} of all L2 misses with offloads.",
            Unit::Share.show(share)
        )
    })
}

/// Differences from the paper, for the guest, dom0 and Xen.
const DIFFERENT: [&str; 3] = [
    "The paper's guest sends with sendfile(), which copies nothing if the interface has scatter-gather. iperf3 in this \
     guest copies in both cases.",
    "dom0 copies what a guest sends, and its programs copy it again when they receive it. With large frames, more bytes \
     are in transit than L2 holds, so both copies miss it; with frames of 1500 bytes most bytes are still in L2. The \
     paper's driver domain hands the bytes to a network card and touches none of them.",
    "Xen works once per grant and per event, and frames without offloads need more of both for the same bytes.",
];

fn split_claims(
    named: &WorkloadRecording,
    spent: &DomainCycles,
    split: (f64, f64, f64),
) -> [Claim; 3] {
    let held = |says, number, what, part| {
        let statement = Statement { source: "§2", says, number: Some(number), unit: Unit::Share };
        statement.compare(named.workload, what, spent.share(part), Rule::Near(number, NEAR, FAR))
    };
    let work = &named.recording.work;
    let share = |part| {
        let share = spent.share(part);
        share.map_or("An unknown share".to_owned(), |share| Unit::Share.show(share))
    };
    let (copying, driver_copying) = (share(spent.copying), share(spent.driver_copying));
    [
        held(
            "most of a packet's cost is the driver domain's and Xen's",
            split.0,
            "dom0's and Xen's share of all cycles",
            spent.driver + spent.hypervisor,
        )
        .differs("Here dom0 is also the other end of the stream, so its part includes a stack and a program."),
        held("Xen's share of a packet's cost", split.1, "Xen's share", spent.hypervisor).differs(format!(
            "{copying} of all cycles are Xen's copying (grant copy). Frames have {:.0} bytes on average; the paper's \
             unoptimised guest sent a frame per packet.",
            work.bytes as f64 / work.frames.max(1) as f64
        )),
        held("the driver domain's share of a packet's cost", split.2, "dom0's share", spent.driver)
            .differs(format!("{driver_copying} of all cycles are copying in dom0, including the reads and writes of its program.")),
    ]
}

/// The share of Xen's cost that the header channel saves (§6.3.2).
const CHANNEL_SAVES: f64 = 0.38;

/// Figure 8: what mapping costs Xen.
fn mapping_cost(pvnet: &WorkloadRecording, stock: &DomainCycles, other: &DomainCycles) -> Section {
    let statement = Statement {
        source: "Figure 8, §6.3.2",
        says: "an I/O channel that maps a page only if it must saves 38 % of Xen's cost",
        number: Some(1.0 - CHANNEL_SAVES),
        unit: Unit::Times,
    };
    let ratio = |before: f64, after: f64| {
        let before = stock.per_byte(before).filter(|before| *before > 0.0)?;
        Some(other.per_byte(after)? / before)
    };
    // Two thirds of the paper's saving, and a third.
    let rule = Rule::AtMost(1.0 - CHANNEL_SAVES * 2.0 / 3.0, 1.0 - CHANNEL_SAVES / 3.0);
    let all = statement
        .compare(
            pvnet.workload,
            "Xen's cycles per byte through pvnet ÷ through netback",
            ratio(stock.hypervisor, other.hypervisor),
            rule,
        )
        .differs(
            "This is not the paper's header channel: there the driver domain never touches the payload, here dom0 \
             reads it. pvnet lets Xen copy what netback maps, so a copy moves from dom0 to Xen.",
        );
    let rest = statement
        .compare(
            pvnet.workload,
            "the same, without Xen's copying of bytes",
            ratio(stock.hypervisor - stock.copying, other.hypervisor - other.copying),
            rule,
        )
        .differs(format!(
            "Frames through pvnet had {:.0} bytes on average, which share Xen's cost per frame. netback unmaps in \
             batches, so mapping costs it less than it cost the paper's driver domain.",
            pvnet.recording.work.bytes as f64 / pvnet.recording.work.frames.max(1) as f64
        ));
    Section::new("Figure 8: what mapping costs the hypervisor", vec![all, rest], Vec::new())
}

#[cfg(test)]
mod tests {
    use scope_model::{Policy, Sweep};
    use scope_result::{Block, Domain, Function, Mode, Owner, Work};

    use super::*;
    use report::Verdict;

    /// Costs of half a cycle per instruction.
    fn costs() -> Costs {
        Costs { instruction: 0.5, ..Costs::default() }
    }

    /// Cycles of the guest, of dom0, of Xen and of its copying.
    fn recording(cycles: [u64; 4]) -> Recording {
        let block = |address, domain, function, cycles: u64| Block {
            address,
            bytes: 8,
            instructions: 1,
            mode: Mode::of(address, None),
            space: 0,
            domain: 0,
            function,
            counters: vec![(domain, Counters { instructions: 2 * cycles, ..Counters::default() })],
        };
        let (xen, kernel) = (0xffff_82d0_4000_0000, 0xffff_ffff_8100_0000);
        let function = |name: &str| Function { module: "xen".to_owned(), name: name.to_owned() };
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
            functions: vec![Function::default(), function("memcpy")],
            blocks: vec![
                block(kernel, 1, 0, cycles[0]),
                block(kernel, 0, 0, cycles[1]),
                block(xen, 0, 0, cycles[2]),
                block(xen, 1, 1, cycles[3]),
            ],
            sweeps: vec![(Owner { domain: 0, mode: Mode::Kernel }, sweep)],
            work: Work { frames: 1, bytes: 1000, ..Work::default() },
            ..Recording::default()
        }
    }

    fn verdicts(section: &Section) -> Vec<Verdict> {
        section.claims.iter().map(|claim| claim.verdict).collect()
    }

    #[test]
    fn counts_with_the_papers_shares_hold() {
        let splits =
            [[40, 30, 30, 0], [30, 30, 40, 0], [40, 60, 18, 12], [160, 30, 45, 0], [40, 0, 0, 0]];
        let named = WORKLOADS.iter().zip(splits);
        let mut named: Vec<WorkloadRecording> = named
            .map(|(workload, cycles)| WorkloadRecording { workload, recording: recording(cycles) })
            .collect();
        // As many misses for 20 times the bytes.
        named[4].recording.work.bytes = 20_000;
        let document = document(&named, costs());
        let [by_domain, offloads, mapping, transmit, driver] = &document.sections[..] else {
            panic!()
        };
        assert_eq!(verdicts(by_domain)[3..], [Verdict::Holds; 6]);
        assert_eq!(verdicts(mapping), [Verdict::DoesNotHold, Verdict::Holds]);
        assert!((mapping.claims[1].here.unwrap() - 0.6).abs() < 1e-9);
        use Verdict::{DoesNotHold, Holds};
        assert_eq!(verdicts(transmit), [Holds, DoesNotHold, Holds, Verdict::CannotBeTold]);
        assert!((transmit.claims[0].here.unwrap() - tlb::TX_SUPERPAGES).abs() < 1e-9);
        assert_eq!(verdicts(offloads), [Holds, DoesNotHold, Holds]);
        assert!((offloads.claims[0].here.unwrap() - OFFLOADS_DIVIDE[0]).abs() < 1e-9);
        assert_eq!(verdicts(driver), [Holds, DoesNotHold, Holds, DoesNotHold, Holds]);
        assert!((driver.claims[0].here.unwrap() - 20.0).abs() < 1e-9);
    }

    #[test]
    fn a_divisor_and_its_share_saved_are_inverse() {
        assert!((divisor(share_saved(tlb::TX_SUPERPAGES)) - tlb::TX_SUPERPAGES).abs() < 1e-12);
        assert!((divisor(0.05) - 1.0526).abs() < 1e-4);
    }
}

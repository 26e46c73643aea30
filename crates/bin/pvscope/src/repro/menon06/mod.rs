//! Menon, Cox, Zwaenepoel: "Optimizing Network Virtualization in Xen", USENIX 2006: its Figures 6, 8, 9 and 12,
//! which are of cycles and TLB misses, by domain. `pvnet repro menon06` has those of throughput.

mod tlb;

use report::{Claim, Rule, Statement, Unit};
use scope_model::{Costs, Counters};
use scope_result::Recording;

use super::measure::{self, divisor, saved, share_saved};
use super::plot::{Document, Plot, Section};
use super::recordings::Named;
use crate::summary::{Summary, Who};

/// What is recorded for it.
pub const WORKLOADS: [&str; 5] = ["tx-stock", "rx-stock", "tx-pvnet", "tx-stock-basic", "virtio"];

/// Everything.
pub fn document(recordings: &[Named], costs: Costs) -> Document {
    let [tx, rx, pvnet, basic, native] = recordings else {
        unreachable!("a recording for each of WORKLOADS")
    };
    let of_xen = [tx, rx, pvnet, basic];
    let spent = of_xen.map(|named| Spent::of(named, costs));
    let [tx_spent, rx_spent, pvnet_spent, basic_spent] = &spent;
    Document {
        paper: "Menon, Cox, Zwaenepoel 2006, under pvscope",
        notes: notes(tx),
        recordings: recordings.iter().map(Named::used).collect(),
        sections: vec![
            two([(basic, basic_spent), (tx, tx_spent), (rx, rx_spent)], &spent),
            six([basic, tx], [basic_spent, tx_spent]),
            eight(pvnet, tx_spent, pvnet_spent),
            tlb::nine(tx),
            tlb::twelve(tx, basic, native),
        ],
    }
}

fn notes(tx: &Named) -> Vec<String> {
    vec![
        "Cycles are a model's: what instructions, cache misses and page walks cost can be told by --costs. The program \
         at the other end of the stream runs in dom0, and its part is dom0's; in the paper it is on another machine."
            .to_owned(),
        format!(
            "TLB misses are those of TLBs of {} entries, code and data each, and half as many for 2 MiB pages.",
            scope_model::TLB_ENTRIES[tx.recording.config.tlb]
        ),
        "Native Linux is the workload virtio: one system with two network cards on one wire, in a namespace each, that \
         sends and receives alike. What the sender costs is among its counts, so native Linux's are too high, not too low."
            .to_owned(),
    ]
}

/// Whether a function does nothing but copy: Xen's `memcpy`, Linux's `memcpy_orig` and `copy_user_generic_…`.
fn copies(function: &str) -> bool {
    function.starts_with("memcpy") || function.starts_with("copy_user_")
}

/// Where cycles go.
#[derive(Clone, Debug, Default)]
struct Spent {
    workload: &'static str,
    guest: f64,
    driver: f64,
    hypervisor: f64,
    /// What of the hypervisor's is copying.
    copying: f64,
    /// What of the driver domain's is.
    driver_copying: f64,
    /// Instructions of the guest, of the driver domain and of the hypervisor.
    instructions: [f64; 3],
    bytes: f64,
}

impl Spent {
    fn of(named: &Named, costs: Costs) -> Self {
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

/// Where it goes in the paper, §2: of what a packet costs, what is the driver domain's and Xen's together, and
/// what of it Xen's and the driver domain's.
const TX_SPLIT: (f64, f64, f64) = (0.6, 0.3, 0.3);
const RX_SPLIT: (f64, f64, f64) = (0.7, 0.4, 0.3);
/// What is near a share of the paper's, and what is still near.
const NEAR: f64 = 0.1;
const FAR: f64 = 0.2;

fn two(of: [(&Named, &Spent); 3], all: &[Spent]) -> Section {
    let splits = [TX_SPLIT, TX_SPLIT, RX_SPLIT];
    let claims =
        of.iter().zip(splits).flat_map(|((named, spent), split)| split_claims(named, spent, split));
    let claims = claims.collect();
    let steps =
        ["guest", "dom0, but for copying", "dom0, copying", "Xen, but for copying", "Xen, copying"];
    let plot = Plot::new("Cycles a byte, by domain", "who", "cycles");
    let plot = plot.steps(steps.map(str::to_owned)).bars();
    let plot = all.iter().fold(plot, |plot, spent| {
        let bytes = spent.bytes.max(1.0);
        plot.values(spent.workload, spent.parts().map(|part| part / bytes))
    });
    Section::new("§2: cost by domain", claims, vec![plot])
}

/// What the high-level interface divides the cost of the guest, of the driver domain and of Xen by (§6.3.1).
const OFFLOADS_DIVIDE: [f64; 3] = [4.0, 2.1, 1.9];

fn six([basic, tx]: [&Named; 2], [without, with]: [&Spent; 2]) -> Section {
    let larger_l2 = larger_l2_saves(&tx.recording);
    let whose = ["the guest", "dom0", "Xen"];
    let says = [
        "the high-level interface divides the guest's cost by almost 4",
        "and the driver domain's by 2.1",
        "and Xen's by 1.9",
    ];
    let [without_cycles, with_cycles] = [without, with].map(Spent::by_domain);
    let claims = (0..whose.len()).map(|n| {
        let number = OFFLOADS_DIVIDE[n];
        let statement = Statement {
            source: "Figure 6, §6.3.1",
            says: says[n],
            number: Some(number),
            unit: Unit::Times,
        };
        // Half of what the paper's saved, and what is just a change.
        let rule = Rule::AtLeast(divisor(share_saved(number) / 2.0), divisor(0.05));
        let ratio = |one: f64, other: f64| {
            let other = with.per_byte(other).filter(|other| *other > 0.0)?;
            Some(without.per_byte(one)? / other)
        };
        let instructions = ratio(without.instructions[n], with.instructions[n]);
        let what = format!("{}'s cycles a byte without offloads ÷ with them", whose[n]);
        statement
            .compare(basic.workload, what, ratio(without_cycles[n], with_cycles[n]), rule)
            .differs(format!(
                "Its instructions a byte are divided by {}. {}{}",
                instructions.map_or("nobody knows what".to_owned(), |ratio| format!("{ratio:.2}")),
                DIFFERENT[n],
                if n == 1 { &larger_l2 } else { "" }
            ))
    });
    let claims = claims.collect();
    let plot = Plot::new("Cycles a byte, by domain, by the guest's interface", "who", "cycles");
    let plot = plot
        .steps(whose.map(str::to_owned))
        .bars()
        .values("without offloads", without_cycles.map(|part| part / without.bytes.max(1.0)))
        .values("with offloads", with_cycles.map(|part| part / with.bytes.max(1.0)));
    Section::new("Figure 6: what offloads save", claims, vec![plot])
}

/// What the next size of L2 would save, in a sentence.
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

/// What differs from the paper, for the guest, dom0 and Xen.
const DIFFERENT: [&str; 3] = [
    "The paper's guest sends with sendfile(), which copies nothing where there is scatter-gather; this one's iperf3 copies \
     either way.",
    "dom0 copies what a guest sends before its own programs get it, and they copy it again. Of large frames more bytes \
     are on their way than L2 holds, and both copies miss it; of frames of 1500 most are still there. The paper's driver \
     domain hands the bytes to a network card and touches none of them.",
    "Xen's work is for each grant and each event, of which frames without offloads need more for the same bytes.",
];

fn split_claims(named: &Named, spent: &Spent, split: (f64, f64, f64)) -> [Claim; 3] {
    let held = |says, number, what, part| {
        let statement = Statement { source: "§2", says, number: Some(number), unit: Unit::Share };
        statement.compare(named.workload, what, spent.share(part), Rule::Near(number, NEAR, FAR))
    };
    let work = &named.recording.work;
    let share = |part| {
        let share = spent.share(part);
        share.map_or("Not known how much".to_owned(), |share| Unit::Share.show(share))
    };
    let (copying, driver_copying) = (share(spent.copying), share(spent.driver_copying));
    [
        held(
            "most of a packet's cost is the driver domain's and Xen's",
            split.0,
            "dom0's and Xen's share of all cycles",
            spent.driver + spent.hypervisor,
        )
        .differs("dom0 is the other end of the stream here as well: the stack and the program there are among its part."),
        held("what of it is Xen's", split.1, "Xen's share", spent.hypervisor).differs(format!(
            "{copying} of all cycles are Xen's copying (grant copy); frames are of {:.0} bytes on average, where the \
             paper's unoptimised guest had one for each packet.",
            work.bytes as f64 / work.frames.max(1) as f64
        )),
        held("what of it is the driver domain's", split.2, "dom0's share", spent.driver)
            .differs(format!("{driver_copying} of all cycles are copying in dom0, what its program reads and writes among it.")),
    ]
}

/// What the header channel saves of Xen's cost (§6.3.2).
const CHANNEL_SAVES: f64 = 0.38;

fn eight(pvnet: &Named, stock: &Spent, other: &Spent) -> Section {
    let statement = Statement {
        source: "Figure 8, §6.3.2",
        says: "an I/O channel that maps no page unless it must takes 38 % from Xen's cost",
        number: Some(1.0 - CHANNEL_SAVES),
        unit: Unit::Times,
    };
    let ratio = |before: f64, after: f64| {
        let before = stock.per_byte(before).filter(|before| *before > 0.0)?;
        Some(other.per_byte(after)? / before)
    };
    // Two thirds of what the paper saved, and a third.
    let rule = Rule::AtMost(1.0 - CHANNEL_SAVES * 2.0 / 3.0, 1.0 - CHANNEL_SAVES / 3.0);
    let all = statement
        .compare(
            pvnet.workload,
            "Xen's cycles a byte through pvnet ÷ through netback",
            ratio(stock.hypervisor, other.hypervisor),
            rule,
        )
        .differs(
            "Not the paper's header channel: the driver domain there never touches the payload, here dom0 is where it \
             is read. pvnet has Xen copy it where netback maps it, so a copy that was dom0's is Xen's.",
        );
    let rest = statement
        .compare(
            pvnet.workload,
            "the same, without Xen's copying of bytes",
            ratio(stock.hypervisor - stock.copying, other.hypervisor - other.copying),
            rule,
        )
        .differs(format!(
            "Per byte. Frames were of {:.0} bytes on average through pvnet: what Xen does for each is spread over \
             those. netback unmaps in batches, so mapping costs it less than the paper's did.",
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

    /// Cycles (half of the instructions) of the guest, of dom0, of Xen and of its copying.
    fn recording(cycles: [u64; 4]) -> Recording {
        let block = |address, domain, function, cycles: u64| Block {
            address,
            bytes: 8,
            instructions: 1,
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
            work: Work { frames: 1, bytes: 1000, what: String::new() },
            ..Recording::default()
        }
    }

    fn verdicts(section: &Section) -> Vec<Verdict> {
        section.claims.iter().map(|claim| claim.verdict).collect()
    }

    #[test]
    fn the_papers_own_split_holds() {
        let splits =
            [[40, 30, 30, 0], [30, 30, 40, 0], [40, 60, 18, 12], [160, 30, 45, 0], [40, 0, 0, 0]];
        let named = WORKLOADS.iter().zip(splits);
        let mut named: Vec<Named> = named
            .map(|(workload, cycles)| Named { workload, recording: recording(cycles) })
            .collect();
        // As many misses for 20 times the bytes.
        named[4].recording.work.bytes = 20_000;
        let document = document(&named, Costs::default());
        let [two, six, eight, nine, twelve] = &document.sections[..] else { panic!() };
        assert_eq!(verdicts(two)[3..], [Verdict::Holds; 6]);
        assert_eq!(verdicts(eight), [Verdict::DoesNotHold, Verdict::Holds]);
        assert!((eight.claims[1].here.unwrap() - 0.6).abs() < 1e-9);
        use Verdict::{DoesNotHold, Holds};
        assert_eq!(verdicts(nine), [Holds, DoesNotHold, Holds, Verdict::CannotBeTold]);
        assert!((nine.claims[0].here.unwrap() - tlb::TX_SUPERPAGES).abs() < 1e-9);
        assert_eq!(verdicts(six), [Holds, DoesNotHold, Holds]);
        assert!((six.claims[0].here.unwrap() - OFFLOADS_DIVIDE[0]).abs() < 1e-9);
        assert_eq!(verdicts(twelve), [Holds, DoesNotHold, Holds, DoesNotHold, Holds]);
        assert!((twelve.claims[0].here.unwrap() - 20.0).abs() < 1e-9);
    }

    #[test]
    fn shares_and_divisors_are_each_others() {
        assert!((divisor(share_saved(tlb::TX_SUPERPAGES)) - tlb::TX_SUPERPAGES).abs() < 1e-12);
        assert!((divisor(0.05) - 1.0526).abs() < 1e-4);
    }
}

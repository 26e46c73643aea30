//! Menon, Cox, Zwaenepoel: "Optimizing Network Virtualization in Xen", USENIX 2006: its Figures 6, 8, 9 and 12,
//! which are of cycles and TLB misses, by domain. `pvnet repro menon06` has those of throughput.

use scope_model::{Costs, Counters, Policy, Sweep};
use scope_result::{Domain, Mode, Recording};

use super::Named;
use super::measure::{self, saved};
use super::plot::{Document, Plot, Section};
use super::verdict::{Claim, Rule, Said, Unit};
use crate::summary::{Summary, Who};

/// What is recorded for it.
pub const WORKLOADS: [&str; 3] = ["tx-stock", "rx-stock", "tx-pvnet"];

/// Everything.
pub fn document(recordings: &[Named], costs: Costs) -> Document {
    let [tx, rx, pvnet] = recordings else { unreachable!("a recording for each of WORKLOADS") };
    let spent: Vec<Spent> = recordings.iter().map(|named| Spent::of(named, costs)).collect();
    let [tx_spent, rx_spent, pvnet_spent] = &spent[..] else { unreachable!("one for each") };
    Document {
        paper: "Menon, Cox, Zwaenepoel 2006, under pvscope",
        notes: notes(tx),
        recordings: recordings.iter().map(Named::used).collect(),
        sections: vec![
            six([tx, rx], [tx_spent, rx_spent], &spent),
            eight(pvnet, tx_spent, pvnet_spent),
            nine(tx),
            twelve(tx),
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
        "Not recorded: Figure 6's interface without offloads, and native Linux, whose DTLB misses Figure 12 has as its \
         measure (the driver domain's are 18 times those)."
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
        match who {
            Who::Xen => {
                self.hypervisor += cycles;
                self.copying += if copies { cycles } else { 0.0 };
            }
            Who::Domain(name) if name == "dom0" => {
                self.driver += cycles;
                self.driver_copying += if copies { cycles } else { 0.0 };
            }
            Who::Domain(_) => self.guest += cycles,
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

fn six(named: [&Named; 2], spent: [&Spent; 2], all: &[Spent]) -> Section {
    let mut claims = Vec::new();
    for ((named, spent), split) in named.into_iter().zip(spent).zip([TX_SPLIT, RX_SPLIT]) {
        claims.extend(split_claims(named, spent, split));
    }
    let steps =
        ["guest", "dom0, but for copying", "dom0, copying", "Xen, but for copying", "Xen, copying"];
    let plot = Plot::new("Cycles a byte, by domain", "who", "cycles");
    let plot = plot.steps(steps.map(str::to_owned)).bars();
    let plot = all.iter().fold(plot, |plot, spent| {
        let bytes = spent.bytes.max(1.0);
        plot.values(spent.workload, spent.parts().map(|part| part / bytes))
    });
    Section { title: "§2 and Figure 6: cost by domain", claims, plots: vec![plot] }
}

fn split_claims(named: &Named, spent: &Spent, split: (f64, f64, f64)) -> [Claim; 3] {
    let held = |says, number, what, part| {
        let said = Said { source: "§2", says, number: Some(number), unit: Unit::Share };
        said.held(named.workload, what, spent.share(part), Rule::Near(number, NEAR, FAR))
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
            "{copying} of all cycles are Xen's copying (grant copy); frames are of {:.0} bytes on average (TSO), \
             where the paper's unoptimised guest had one for each packet.",
            work.bytes as f64 / work.frames.max(1) as f64
        )),
        held("what of it is the driver domain's", split.2, "dom0's share", spent.driver)
            .differs(format!("{driver_copying} of all cycles are copying in dom0, what its program reads and writes among it.")),
    ]
}

/// What the header channel saves of Xen's cost (§6.3.2).
const CHANNEL_SAVES: f64 = 0.38;

fn eight(pvnet: &Named, stock: &Spent, other: &Spent) -> Section {
    let said = Said {
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
    let all = said
        .held(
            pvnet.workload,
            "Xen's cycles a byte through pvnet ÷ through netback",
            ratio(stock.hypervisor, other.hypervisor),
            rule,
        )
        .differs(
            "Not the paper's header channel: the driver domain there never touches the payload, here dom0 is where it \
             is read. pvnet has Xen copy it where netback maps it, so a copy that was dom0's is Xen's.",
        );
    let rest = said
        .held(
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
    Section {
        title: "Figure 8: what mapping costs the hypervisor",
        claims: vec![all, rest],
        plots: Vec::new(),
    }
}

/// What superpages divide DTLB misses by in the transmit benchmark (§6.3.3).
const TX_SUPERPAGES: f64 = 3.8;
/// The share of DTLB misses that they save in the driver domain (§6.4.1).
const DRIVER_SUPERPAGES: f64 = 0.86;
/// Less than this change is none.
const INSIGNIFICANT: Rule = Rule::AtMost(0.05, 0.15);

const LINEAR_MAP: &str = "Only the kernels' linear maps can be of 2 MiB pages in the model, and that wherever nothing breaks a \
                          block up: Xen's own map is of 2 MiB pages already, programs and modules are not in it. Misses \
                          that flushes cause stay, whatever the pages' size.";

fn nine(tx: &Named) -> Section {
    let Named { workload, recording } = tx;
    let size = recording.config.tlb;
    let all = measure::sweep_of_all(recording);
    let xen = measure::sweep(recording, |_, mode| mode == Mode::Hypervisor);
    let data = |policy| measure::tlb(&all, policy, size).0;
    let code_of_xen = |policy| measure::tlb(&xen, policy, size).1;
    let superpages = Said {
        source: "Figure 9, §6.3.3",
        says: "superpages divide DTLB misses by 3.8",
        number: Some(TX_SUPERPAGES),
        unit: Unit::Times,
    };
    // Half of the misses that the paper's saved, and what is just a change.
    let rule = Rule::AtLeast(divisor(share_saved(TX_SUPERPAGES) / 2.0), divisor(0.05));
    let over = |policy| (data(policy) > 0).then(|| data(Policy::Real) as f64 / data(policy) as f64);
    let global = |says| Said { source: "Figure 9, §6.3.3", says, number: None, unit: Unit::Share };
    let change = saved(data(Policy::NoGlobal), data(Policy::Real));
    let xen_more =
        saved(code_of_xen(Policy::NoGlobal), code_of_xen(Policy::Real)).map(|saved| -saved);
    let claims = vec![
        superpages
            .held(workload, "real's DTLB misses ÷ grouped-superpages'", over(Policy::GroupedSuperpages), rule)
            .differs(LINEAR_MAP),
        superpages
            .held(workload, "real's DTLB misses ÷ superpages', with what breaks blocks up where it is", over(Policy::Superpages), rule)
            .differs("The paper's special allocator (§5.3.1), which keeps page tables together, is what this one lacks."),
        global("global pages have no significant impact on DTLB misses")
            .held(workload, "change of DTLB misses, no-global to real", change.map(f64::abs), INSIGNIFICANT)
            .differs(format!(
                "real has {} of no-global's DTLB misses. The paper's guests got global pages at the price of a whole \
                 flush at each switch; here they are those that the recorded page tables mark.",
                change.map_or("an unknown part".to_owned(), |saved| Unit::Share.show(1.0 - saved))
            )),
        global("global pages increase Xen's ITLB misses significantly")
            .held(workload, "more ITLB misses in Xen, no-global to real", xen_more, Rule::AtLeast(0.15, 0.05))
            .differs(
                "The paper's Xen had global pages of its own without the change, and lost them at each switch with it. \
                 Here no-global takes them from Xen as well.",
            ),
    ];
    let title = "Figure 9: TLB misses, transmit";
    Section { title, claims, plots: vec![nine_plot(recording, &all, &xen)] }
}

/// The figure's three groups.
fn nine_plot(recording: &Recording, all: &Sweep, xen: &Sweep) -> Plot {
    let policies = [Policy::NoGlobal, Policy::Real, Policy::Superpages, Policy::GroupedSuperpages];
    let size = recording.config.tlb;
    let frames = recording.work.frames.max(1) as f64;
    let plot = Plot::new("TLB misses a frame", "policy", "misses");
    let plot = plot.steps(policies.map(|policy| policy.name().to_owned())).bars();
    let line = |of: fn((u64, u64), (u64, u64)) -> u64| {
        policies.map(|policy| {
            let misses = of(measure::tlb(all, policy, size), measure::tlb(xen, policy, size));
            misses as f64 / frames
        })
    };
    plot.values("D-TLB", line(|all, _| all.0))
        .values("guest OS I-TLB", line(|all, xen| all.1 - xen.1))
        .values("Xen I-TLB", line(|_, xen| xen.1))
}

/// What is saved where misses are divided.
fn share_saved(divided_by: f64) -> f64 {
    1.0 - 1.0 / divided_by
}

/// What misses are divided by where a share is saved.
fn divisor(saved: f64) -> f64 {
    1.0 / (1.0 - saved)
}

fn twelve(tx: &Named) -> Section {
    let Named { workload, recording } = tx;
    let size = recording.config.tlb;
    let dom0 = measure::sweep(recording, |domain, mode| {
        domain == Some(Domain::Xen(0)) && mode != Mode::Hypervisor
    });
    let data = |policy| measure::tlb(&dom0, policy, size).0;
    let source = "Figure 12, §6.4.1";
    let superpages = Said {
        source,
        says: "superpages take 86 % of the driver domain's DTLB misses",
        number: Some(DRIVER_SUPERPAGES),
        unit: Unit::Share,
    };
    let rule = Rule::AtLeast(DRIVER_SUPERPAGES / 2.0, 0.05);
    let claims = vec![
        superpages
            .held(
                workload,
                "dom0's DTLB misses that grouped-superpages save of real's",
                saved(data(Policy::Real), data(Policy::GroupedSuperpages)),
                rule,
            )
            .differs(
                "dom0 receives what the guest sends; the paper's driver domain received by itself, with no guest and \
                 few switches. Misses that flushes cause stay, whatever the pages' size.",
            ),
        superpages.held(
            workload,
            "the same, superpages without grouping",
            saved(data(Policy::Real), data(Policy::Superpages)),
            rule,
        ),
        Said { source, says: "global pages by themselves improve it only little", number: None, unit: Unit::Share }.held(
            workload,
            "dom0's DTLB misses that real saves of no-global's",
            saved(data(Policy::NoGlobal), data(Policy::Real)),
            INSIGNIFICANT,
        ),
    ];
    let policies = [
        Policy::NoGlobal,
        Policy::Real,
        Policy::Superpages,
        Policy::GroupedSuperpages,
        Policy::Tagged,
    ];
    let frames = recording.work.frames.max(1) as f64;
    let plot = Plot::new("DTLB misses of dom0 a frame", "policy", "misses")
        .steps(policies.map(|policy| policy.name().to_owned()))
        .bars()
        .values("dom0", policies.map(|policy| data(policy) as f64 / frames));
    Section { title: "Figure 12: DTLB misses of the driver domain", claims, plots: vec![plot] }
}

#[cfg(test)]
mod tests {
    use scope_result::{Block, Function, Owner, Work};

    use super::super::verdict::Verdict;
    use super::*;

    /// Cycles (half of the instructions) of the guest, of dom0, of Xen and of its copying.
    fn recording(cycles: [u64; 4]) -> Recording {
        let block = |address, domain, function, cycles: u64| Block {
            address,
            bytes: 8,
            instructions: 1,
            space: 0,
            home: 0,
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
        let splits = [[40, 30, 30, 0], [30, 30, 40, 0], [40, 60, 18, 12]];
        let named = WORKLOADS.iter().zip(splits);
        let named =
            named.map(|(workload, cycles)| Named { workload, recording: recording(cycles) });
        let document = document(&named.collect::<Vec<_>>(), Costs::default());
        let [six, eight, nine, twelve] = &document.sections[..] else { panic!() };
        assert_eq!(verdicts(six), [Verdict::Holds; 6]);
        assert_eq!(verdicts(eight), [Verdict::DoesNotHold, Verdict::Holds]);
        assert!((eight.claims[1].here.unwrap() - 0.6).abs() < 1e-9);
        use Verdict::{DoesNotHold, Holds};
        assert_eq!(verdicts(nine), [Holds, DoesNotHold, Holds, Verdict::CannotBeTold]);
        assert!((nine.claims[0].here.unwrap() - TX_SUPERPAGES).abs() < 1e-9);
        assert_eq!(verdicts(twelve), [Holds, DoesNotHold, Holds]);
    }

    #[test]
    fn shares_and_divisors_are_each_others() {
        assert!((divisor(share_saved(TX_SUPERPAGES)) - TX_SUPERPAGES).abs() < 1e-12);
        assert!((divisor(0.05) - 1.0526).abs() < 1e-4);
    }
}

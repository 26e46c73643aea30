//! TLB misses: Figures 9 and 12.

use report::{Claim, Rule, Statement, Unit};
use scope_model::{Policy, Sweep};
use scope_result::{Domain, Mode, Recording};

use crate::repro::measure::{self, divisor, saved, share_saved};
use crate::repro::plot::{Plot, Section};
use crate::repro::recordings::WorkloadRecording;

/// The factor by which superpages divide DTLB misses in the transmit benchmark (§6.3.3).
pub const TX_SUPERPAGES: f64 = 3.8;
/// The share of DTLB misses that superpages save in the driver domain (§6.4.1).
const DRIVER_SUPERPAGES: f64 = 0.86;
/// A smaller change counts as none.
const INSIGNIFICANT: Rule = Rule::AtMost(0.05, 0.15);

const LINEAR_MAP: &str = "The model puts 2 MiB pages into the kernels' linear maps only, wherever nothing breaks a block up. \
                          Xen's own map has 2 MiB pages already; programs and modules are not in it. Pages of any size \
                          miss after a flush.";

/// Figure 9: TLB misses on transmit.
pub fn transmit_misses(tx: &WorkloadRecording) -> Section {
    let WorkloadRecording { workload, recording } = tx;
    let size = recording.config.tlb;
    let all = measure::sweep_of_all(recording);
    let xen = measure::sweep(recording, |_, mode| mode == Mode::Hypervisor);
    let data = |policy| measure::tlb(&all, policy, size).0;
    let code_of_xen = |policy| measure::tlb(&xen, policy, size).1;
    let superpages = Statement {
        source: "Figure 9, §6.3.3",
        says: "superpages divide DTLB misses by 3.8",
        number: Some(TX_SUPERPAGES),
        unit: Unit::Times,
    };
    // Half of the paper's saving, and the least that is a change.
    let rule = Rule::AtLeast(divisor(share_saved(TX_SUPERPAGES) / 2.0), divisor(0.05));
    let over = |policy| (data(policy) > 0).then(|| data(Policy::Real) as f64 / data(policy) as f64);
    let global =
        |says| Statement { source: "Figure 9, §6.3.3", says, number: None, unit: Unit::Share };
    // The paper's SP and SP-GP.
    let (sp, sp_gp) = (Policy::GroupedSuperpages, Policy::GuestGlobalSuperpages);
    let change = saved(data(sp), data(sp_gp));
    let xen_more = saved(code_of_xen(sp), code_of_xen(sp_gp)).map(|saved| -saved);
    let claims = vec![
        superpages
            .compare(workload, "real's DTLB misses ÷ grouped-superpages'", over(Policy::GroupedSuperpages), rule)
            .differs(LINEAR_MAP),
        superpages
            .compare(workload, "real's DTLB misses ÷ superpages', without grouping", over(Policy::Superpages), rule)
            .differs("This policy lacks the paper's special allocator (§5.3.1), which keeps page tables together."),
        global("global pages have no significant impact on DTLB misses")
            .compare(
                workload,
                "change of DTLB misses, grouped-superpages to guest-global-superpages",
                change.map(f64::abs),
                INSIGNIFICANT,
            )
            .differs(format!(
                "guest-global-superpages has {} of grouped-superpages' DTLB misses. It is an upper bound: every page of a \
                 kernel is global.",
                change.map_or("an unknown share".to_owned(), |saved| Unit::Share.show(1.0 - saved))
            )),
        global("global pages increase Xen's ITLB misses significantly")
            .compare(
                workload,
                "more ITLB misses in Xen, grouped-superpages to guest-global-superpages",
                xen_more,
                Rule::AtLeast(0.15, 0.05),
            )
            .differs(
                "Xen 4.17 flushes its own pages at each switch of address spaces already, so there is less to lose.",
            ),
    ];
    let title = "Figure 9: TLB misses, transmit";
    Section::new(title, claims, vec![transmit_plot(recording, &all, &xen)])
}

/// The figure's three groups of misses.
fn transmit_plot(recording: &Recording, all: &Sweep, xen: &Sweep) -> Plot {
    let policies = [
        Policy::Real,
        Policy::Superpages,
        Policy::GroupedSuperpages,
        Policy::GuestGlobalSuperpages,
    ];
    let size = recording.config.tlb;
    let frames = recording.work.frames.max(1) as f64;
    let plot = Plot::new("TLB misses per frame", "policy", "misses");
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

/// The place in the paper.
const FIGURE_12: &str = "Figure 12, §6.4.1";

/// Figure 12: DTLB misses of the driver domain.
pub fn driver_domain_misses(
    tx: &WorkloadRecording,
    basic: &WorkloadRecording,
    native: &WorkloadRecording,
) -> Section {
    let WorkloadRecording { workload, recording } = tx;
    let data = |policy| dom0_data(recording, policy);
    let source = FIGURE_12;
    let superpages = Statement {
        source,
        says: "superpages save 86 % of the driver domain's DTLB misses",
        number: Some(DRIVER_SUPERPAGES),
        unit: Unit::Share,
    };
    let rule = Rule::AtLeast(DRIVER_SUPERPAGES / 2.0, 0.05);
    let mut claims = Vec::from(beside_native(basic, native));
    claims.extend([
        superpages
            .compare(
                workload,
                "share of real's DTLB misses of dom0 that grouped-superpages saves",
                saved(data(Policy::Real), data(Policy::GroupedSuperpages)),
                rule,
            )
            .differs(
                "dom0 receives what the guest sends. The paper's driver domain received alone, without a guest and \
                 with few switches. Pages of any size miss after a flush.",
            ),
        superpages.compare(
            workload,
            "the same, superpages without grouping",
            saved(data(Policy::Real), data(Policy::Superpages)),
            rule,
        ),
        Statement { source, says: "global pages by themselves improve it only little", number: None, unit: Unit::Share }.compare(
            workload,
            "dom0's DTLB misses that guest-global saves of real's",
            saved(data(Policy::Real), data(Policy::GuestGlobal)),
            INSIGNIFICANT,
        ),
    ]);
    let policies = [
        Policy::NoGlobal,
        Policy::Real,
        Policy::Superpages,
        Policy::GroupedSuperpages,
        Policy::GuestGlobal,
        Policy::GuestGlobalSuperpages,
        Policy::Tagged,
    ];
    let frames = recording.work.frames.max(1) as f64;
    let plot = Plot::new("DTLB misses of dom0 per frame", "policy", "misses")
        .steps(policies.map(|policy| policy.name().to_owned()))
        .bars()
        .values("dom0", policies.map(|policy| data(policy) as f64 / frames));
    let plots = vec![plot, native_plot(tx, basic, native)];
    Section::new("Figure 12: DTLB misses of the driver domain", claims, plots)
}

/// DTLB misses of dom0's kernel and programs.
fn dom0_data(recording: &Recording, policy: Policy) -> u64 {
    let dom0 = measure::sweep(recording, |domain, mode| {
        domain == Some(Domain::Xen(0)) && mode != Mode::Hypervisor
    });
    measure::tlb(&dom0, policy, recording.config.tlb).0
}

/// DTLB misses of the whole machine.
fn native_data(recording: &Recording) -> u64 {
    measure::tlb(&measure::sweep_of_all(recording), Policy::Real, recording.config.tlb).0
}

fn per_megabyte(recording: &Recording, misses: u64) -> Option<f64> {
    let bytes = recording.work.bytes;
    (bytes > 0).then(|| misses as f64 * 1e6 / bytes as f64)
}

/// The driver domain's DTLB misses over native Linux's: unoptimised, and with superpages and global pages.
const OF_NATIVE: f64 = 18.0;
const OF_NATIVE_AFTER: f64 = 1.26;

fn beside_native(basic: &WorkloadRecording, native: &WorkloadRecording) -> [Claim; 2] {
    let of_native = |policy| {
        let misses = native_data(&native.recording);
        let native = per_megabyte(&native.recording, misses).filter(|native| *native > 0.0)?;
        Some(per_megabyte(&basic.recording, dom0_data(&basic.recording, policy))? / native)
    };
    let bytes = |named: &WorkloadRecording| {
        let work = &named.recording.work;
        work.bytes as f64 / work.frames.max(1) as f64
    };
    let statement = |says, number| Statement {
        source: FIGURE_12,
        says,
        number: Some(number),
        unit: Unit::Times,
    };
    [
        statement("the driver domain has 18 times the DTLB misses of native Linux", OF_NATIVE)
            .compare(
                basic.workload,
                "dom0's DTLB misses per byte ÷ native Linux's (virtio)",
                of_native(Policy::Real),
                Rule::AtLeast(10.0, 2.0),
            )
            .differs(format!(
                "Frames have similar sizes: {:.0} bytes on average here, {:.0} in virtio. dom0 receives from a guest, \
                 with switches; the paper's driver domain receives from a network card, without a guest. virtio also \
                 sends, so native Linux's misses are too many rather than too few.",
                bytes(basic),
                bytes(native)
            )),
        statement("with superpages and global pages it comes within 26 % of native Linux", OF_NATIVE_AFTER)
            .compare(
                basic.workload,
                "the same with grouped-superpages",
                of_native(Policy::GroupedSuperpages),
                Rule::AtMost(1.0 + 2.0 * (OF_NATIVE_AFTER - 1.0), 2.0 * OF_NATIVE_AFTER),
            )
            .differs("Pages of any size miss after a flush; without a guest there are few flushes."),
    ]
}

fn native_plot(
    tx: &WorkloadRecording,
    basic: &WorkloadRecording,
    native: &WorkloadRecording,
) -> Plot {
    let misses = |named: &WorkloadRecording, policy| {
        per_megabyte(&named.recording, dom0_data(&named.recording, policy)).unwrap_or(0.0)
    };
    let of_native = per_megabyte(&native.recording, native_data(&native.recording)).unwrap_or(0.0);
    let bars = [
        ("dom0, tx-stock", misses(tx, Policy::Real)),
        ("with grouped superpages", misses(tx, Policy::GroupedSuperpages)),
        ("dom0, tx-stock-basic", misses(basic, Policy::Real)),
        ("with grouped superpages", misses(basic, Policy::GroupedSuperpages)),
        ("native Linux, virtio", of_native),
    ];
    Plot::new("DTLB misses per 10⁶ bytes", "who", "misses")
        .steps(bars.map(|(name, _)| name.to_owned()))
        .bars()
        .values("DTLB", bars.map(|(_, misses)| misses))
}

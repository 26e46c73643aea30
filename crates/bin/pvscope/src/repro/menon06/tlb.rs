//! TLB misses: Figures 9 and 12.

use report::{Unit, human};
use scope_model::{Policy, Sweep};
use scope_result::{Domain, Mode, Recording};

use crate::repro::measure::{self, WorkloadRecording, saved};
use crate::repro::plot::{Plot, Section};
use crate::repro::rules::menon06 as rules;

const LINEAR_MAP: &str = "The model puts 2 MiB pages into the kernels' linear maps only, wherever nothing breaks a block up; the \
                          paper's cover the kernel's whole range, as with --kernel-superpages. Pages of any size miss after a flush.";
/// The paper's SP and SP-GP.
const SP: Policy = Policy::GroupedSuperpages;
const SP_GP: Policy = Policy::GuestGlobalSuperpages;

/// Figure 9: TLB misses on transmit.
pub fn transmit_misses(tx: &WorkloadRecording) -> Section {
    let recording = &tx.recording;
    let size = recording.config.tlb;
    let all = measure::sweep_of_all(recording);
    let xen = measure::sweep(recording, |_, mode| mode == Mode::Hypervisor);
    let data = |policy| measure::tlb(&all, policy, size).0;
    let code_of_xen = |policy| measure::tlb(&xen, policy, size).1;
    let over = |policy, size: usize| {
        let [real, other] = [Policy::Real, policy].map(|policy| measure::tlb(&all, policy, size).0);
        (other > 0).then(|| real as f64 / other as f64)
    };
    let show =
        |ratio: Option<f64>| ratio.map_or("unknown".to_owned(), |ratio| Unit::Times.show(ratio));
    let change = saved(data(SP), data(SP_GP));
    let xen_more = saved(code_of_xen(SP), code_of_xen(SP_GP)).map(|saved| -saved);
    let largest = scope_model::TLB_ENTRIES.len() - 1;
    let of = |code: Mode| {
        let part = measure::tlb(&measure::sweep(recording, |_, mode| mode == code), SP, size).0;
        Unit::Share.show(part as f64 / data(SP).max(1) as f64)
    };
    let claims = vec![
        rules::SUPERPAGES.judge(over(SP, size)).differs(format!(
            "{LINEAR_MAP} Of the misses that are left Xen has {}, kernels have {}, programs {}. Without the allocator that groups page tables (§5.3.1): {}. With 1024 entries, where nearly all \
             misses come from flushes: {}.",
            of(Mode::Hypervisor),
            of(Mode::Kernel),
            of(Mode::User),
            show(over(Policy::Superpages, size)),
            show(over(SP, largest))
        )),
        rules::GLOBAL_DTLB.judge(change.map(f64::abs)).differs(format!(
            "guest-global-superpages has {} of grouped-superpages' DTLB misses. It is an upper bound: every page of a kernel \
             is global.",
            change.map_or("an unknown share".to_owned(), |saved| Unit::Share.show(1.0 - saved))
        )),
        rules::GLOBAL_XEN_ITLB.judge(xen_more).differs(
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

/// Figure 12: DTLB misses of the driver domain.
pub fn driver_domain_misses(driver: &WorkloadRecording, native: &WorkloadRecording) -> Section {
    let recording = &driver.recording;
    let data = |policy| dom0_data(recording, policy);
    let of_native = |policy| {
        let misses = native_data(&native.recording);
        let native = per_megabyte(&native.recording, misses).filter(|native| *native > 0.0)?;
        Some(per_megabyte(recording, data(policy))? / native)
    };
    let bytes = |named: &WorkloadRecording| {
        let work = &named.recording.work;
        work.bytes as f64 / work.frames.max(1) as f64
    };
    let claims = vec![
        rules::DRIVER_MISSES.judge(of_native(Policy::Real)).differs(format!(
            "Frames have {:.0} bytes on average here, {:.0} in virtio.",
            bytes(driver),
            bytes(native)
        )),
        rules::DRIVER_SUPERPAGES.judge(saved(data(Policy::Real), data(SP))).differs(LINEAR_MAP),
        rules::DRIVER_GLOBAL.judge(saved(data(Policy::Real), data(Policy::GuestGlobal))),
        rules::DRIVER_BOTH
            .judge(of_native(SP_GP))
            .differs(format!("{LINEAR_MAP} {}", by_code(recording, &native.recording))),
    ];
    let policies = [
        Policy::NoGlobal,
        Policy::Real,
        Policy::Superpages,
        Policy::GroupedSuperpages,
        Policy::GuestGlobal,
        Policy::GuestGlobalSuperpages,
        Policy::Tagged,
    ];
    let misses = policies.map(|policy| per_megabyte(recording, data(policy)).unwrap_or(0.0));
    let linux = per_megabyte(&native.recording, native_data(&native.recording)).unwrap_or(0.0);
    let steps = policies.iter().map(|policy| policy.name().to_owned());
    let plot = Plot::new("DTLB misses per 10⁶ bytes of payload", "policy", "misses")
        .steps(steps.chain(["native Linux".to_owned()]))
        .bars()
        .values("DTLB", misses.into_iter().chain([linux]));
    Section::new("Figure 12: DTLB misses of the driver domain", claims, vec![plot])
}

/// Whose misses are left with the paper's SP-GP beside native Linux's, and how many of them flushes cause.
fn by_code(driver: &Recording, native: &Recording) -> String {
    let largest = scope_model::TLB_ENTRIES.len() - 1;
    let show = |recording: &Recording, policy, mode, size| {
        let of_code = |domain, own| domain != Some(Domain::Idle) && own == mode;
        let misses = measure::tlb(&measure::sweep(recording, of_code), policy, size).0;
        per_megabyte(recording, misses).map_or("unknown".to_owned(), human)
    };
    let part = |whose: &str, mode| {
        let [here, most] = [driver.config.tlb, largest].map(|size| show(driver, SP_GP, mode, size));
        let linux = show(native, Policy::Real, mode, native.config.tlb);
        format!("dom0's {whose}: {here}, with 1024 entries {most}; native Linux's: {linux}")
    };
    format!(
        "Misses per 10⁶ bytes that are left with global pages and superpages, {}; {}.",
        part("kernel", Mode::Kernel),
        part("programs", Mode::User)
    )
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
    let bytes = recording.work.payload;
    (bytes > 0).then(|| misses as f64 * 1e6 / bytes as f64)
}

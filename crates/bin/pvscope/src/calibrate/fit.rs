//! Costs of a host from what its kernels take.

use scope_model::Costs;

use super::kernel::Kernel;
use super::predict::Predictions;

/// What no kernel measures.
pub const UNMEASURED: [&str; 7] =
    ["cr3", "cr4", "invlpg", "iret", "hypercall", "fpu_state", "vm_switch"];

/// How one cost follows from a kernel: which cost.
type Cost = fn(&mut Costs) -> &mut f64;

/// The kernels that tell one cost each when those before are known, and what they take without it: the kernel whose data is
/// in L1, whose instructions a processor overlaps as much.
const STEPS: [(Kernel, Kernel, Cost); 10] = [
    (Kernel::List(512 << 10), Kernel::List(16 << 10), |costs| &mut costs.l2_hit),
    (Kernel::Pages(256), Kernel::List(16 << 10), |costs| &mut costs.tlb2_hit),
    (Kernel::Pages(16 << 10), Kernel::List(16 << 10), |costs| &mut costs.page_walk),
    (Kernel::List(8 << 20), Kernel::List(16 << 10), |costs| &mut costs.l3_hit),
    (Kernel::List(256 << 20), Kernel::List(16 << 10), |costs| &mut costs.memory),
    (Kernel::Read(512 << 10), Kernel::Read(16 << 10), |costs| &mut costs.l2_sequential),
    (Kernel::Read(8 << 20), Kernel::Read(16 << 10), |costs| &mut costs.l3_sequential),
    (Kernel::Read(128 << 20), Kernel::Read(16 << 10), |costs| &mut costs.memory_sequential),
    (Kernel::Locked, Kernel::Locked, |costs| &mut costs.event.locked),
    (Kernel::SystemCall, Kernel::SystemCall, |costs| &mut costs.event.syscall),
];

/// Rounds: a kernel's cost may depend on one that is fitted after it.
const ROUNDS: usize = 20;

/// The costs with which the kernels' cycles above those of their bases are the measured ones. Costs that a kernel does not have
/// on this processor stay as they are, and none becomes negative.
pub fn fit(measured: &[f64; Kernel::COUNT], predictions: &Predictions, mut costs: Costs) -> Costs {
    for _ in 0..ROUNDS {
        for (kernel, base, cost) in STEPS {
            let model = predictions.cycles(&costs);
            let above = |cycles: &[f64; Kernel::COUNT]| {
                let base = if base == kernel { 0.0 } else { cycles[base.number()] };
                cycles[kernel.number()] - base
            };
            let rate = rate(predictions, kernel, cost, &costs);
            if rate > RARE {
                let cost = cost(&mut costs);
                *cost = (*cost + (above(measured) - above(&model)) / rate).max(0.0);
            }
        }
    }
    costs
}

/// A cost that a unit has less often than this is not fitted to its kernel.
const RARE: f64 = 0.2;

/// How often a kernel's unit has a cost: the change of its cycles with the cost.
fn rate(predictions: &Predictions, kernel: Kernel, cost: Cost, costs: &Costs) -> f64 {
    let mut more = *costs;
    *cost(&mut more) += 1.0;
    let cycles = |costs| predictions.cycles(costs)[kernel.number()];
    cycles(&more) - cycles(costs)
}

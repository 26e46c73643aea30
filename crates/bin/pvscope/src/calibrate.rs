//! `pvscope calibrate`: compares model cycles with those of this host.
//!
//! ```text
//!  Kernel ──► host: nanoseconds, cycles ──┐
//!     └─────► predict: model cycles ──────┴─► errors ──► fit: costs of this host ──► TOML for --costs
//! ```

mod host;
mod kernel;
mod predict;

use std::path::PathBuf;

use clap::Args;
use document::Document;
use kernel::Kernel;
use predict::Predictions;
use report::{Table, human};
use schemars::JsonSchema;
use scope_model::{Config, Costs};
use serde::Serialize;

use crate::error::Result;
use crate::model_args::{CostArgs, ModelArgs};
use crate::report::{json, show};
use crate::report_data::Model;

/// Arguments of `pvscope calibrate`.
#[derive(Args)]
pub struct CalibrateArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    costs: CostArgs,
    /// Write the costs of this host to FILE, for --costs.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print a JSON document instead.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &CalibrateArgs) -> Result<()> {
    let config = args.model.config()?;
    let costs = args.costs.read(&config)?;
    let cycle = host::cycle();
    let measured = Kernel::all().map(|kernel| host::nanoseconds(&kernel) / cycle);
    let predictions = Predictions::new(config);
    let calibration = Calibration::new(&predictions, costs, 1.0 / cycle, measured);
    show(&if args.json { json(&CalibrateData::new(&calibration))? } else { calibration.text() })?;
    if let Some(path) = &args.out {
        ::report::write_atomic(path, calibration.toml().as_bytes())?;
        if !args.json {
            show(&format!("Costs of this host: {}\n", path.display()))?;
        }
    }
    Ok(())
}

/// The kernels' cycles on a host and in a model.
struct Calibration {
    config: Config,
    gigahertz: f64,
    measured: [f64; Kernel::COUNT],
    model: [f64; Kernel::COUNT],
    fitted: [f64; Kernel::COUNT],
    costs: Costs,
    fitted_costs: Costs,
}

impl Calibration {
    fn new(
        predictions: &Predictions,
        costs: Costs,
        gigahertz: f64,
        measured: [f64; Kernel::COUNT],
    ) -> Self {
        let fitted_costs = fit(&measured, predictions, costs);
        Self {
            config: predictions.config,
            gigahertz,
            measured,
            model: predictions.cycles(&costs),
            fitted: predictions.cycles(&fitted_costs),
            costs,
            fitted_costs,
        }
    }

    /// The mean of the errors' magnitudes over the kernels that no cost was fitted to.
    fn error(&self, model: &[f64; Kernel::COUNT]) -> f64 {
        let both = Kernel::all().into_iter().zip(self.measured.iter().zip(model));
        let errors = both.filter(|(kernel, _)| kernel.is_check());
        let errors: Vec<f64> =
            errors.map(|(_, (host, model))| (model / host - 1.0).abs()).collect();
        errors.iter().sum::<f64>() / errors.len().max(1) as f64
    }

    fn text(&self) -> String {
        let table = Table::new()
            .left("kernel")
            .left("for each")
            .right("host cycles")
            .right("model cycles")
            .right("error")
            .right("fitted")
            .right("error");
        let rows = Kernel::all().into_iter().enumerate();
        let table = rows.fold(table, |mut table, (number, kernel)| {
            let host = self.measured[number];
            let cells =
                |cycles: f64| [human(cycles), format!("{:+.0} %", 100.0 * (cycles / host - 1.0))];
            let mark = if kernel.is_check() { "* " } else { "" };
            let name = format!("{mark}{}", kernel.name());
            let names = [name, kernel.unit().to_owned(), human(host)];
            let [model, fitted] = [self.model, self.fitted].map(|model| cells(model[number]));
            table.row(names.into_iter().chain(model).chain(fitted));
            table
        });
        format!(
            "This host: {:.2} GHz, by a chain of multiplications. Model {}: {}; pages of 4 KiB.\n\n\
             {}\nError of the kernels marked *, to which no cost is fitted: {:.0} % with these costs, {:.0} % with the fitted \
             ones. An instruction's cost is not fitted, and neither are {}: no program of a user can execute them alone.\n\
             Fitted: {}.\n",
            self.gigahertz,
            self.config.preset.name(),
            self.config,
            table.render(false),
            100.0 * self.error(&self.model),
            100.0 * self.error(&self.fitted),
            UNMEASURED.join(", "),
            self.fitted_costs
        )
    }

    fn toml(&self) -> String {
        let costs = toml::to_string(&self.fitted_costs).unwrap_or_default();
        let gigahertz = self.gigahertz;
        format!(
            "# `pvscope calibrate` at {gigahertz:.2} GHz. Error of kernels to which no cost is fitted: {:.0} %.\n\
             # Not measured: instruction, {}.\n{costs}",
            100.0 * self.error(&self.fitted),
            UNMEASURED.join(", ")
        )
    }
}

/// What no kernel measures.
const UNMEASURED: [&str; 7] =
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

/// How far model cycles are from those of a host.
#[derive(JsonSchema, Serialize)]
pub struct CalibrateData {
    /// The host's clock rate in 10⁹ cycles per second, by a chain of multiplications.
    gigahertz: f64,
    /// The modelled processor.
    model: Model,
    /// The costs that are compared with the host.
    costs: Costs,
    /// Small programs whose accesses are known.
    kernels: Vec<KernelRow>,
    /// The mean error of the kernels that check costs, 0 for none, with `costs`.
    error: f64,
    /// The same with `fitted_costs`.
    fitted_error: f64,
    /// The costs with which the other kernels take as many cycles as on the host.
    fitted_costs: Costs,
    /// The costs in `fitted_costs` that no program of a user can measure alone: they are those of `costs`.
    not_fitted: Vec<String>,
}

/// A small program.
#[derive(JsonSchema, Serialize)]
struct KernelRow {
    /// What it does.
    name: String,
    /// The unit of its cycles: `line` or `call`.
    unit: &'static str,
    /// Whether it checks costs, rather than that costs are fitted to it.
    is_check: bool,
    /// Cycles per unit on the host.
    host_cycles: f64,
    /// Model cycles per unit, with `costs`.
    model_cycles: f64,
    /// The same with `fitted_costs`.
    fitted_cycles: f64,
}

impl Document for CalibrateData {
    const SCHEMA: &'static str = "pvscope-calibrate/1";
}

impl CalibrateData {
    fn new(calibration: &Calibration) -> Self {
        let row = |(number, kernel): (usize, Kernel)| KernelRow {
            name: kernel.name(),
            unit: kernel.unit(),
            is_check: kernel.is_check(),
            host_cycles: calibration.measured[number],
            model_cycles: calibration.model[number],
            fitted_cycles: calibration.fitted[number],
        };
        let events = UNMEASURED.map(|event| format!("event.{event}"));
        Self {
            gigahertz: calibration.gigahertz,
            model: Model::new(&calibration.config),
            costs: calibration.costs,
            kernels: Kernel::all().into_iter().enumerate().map(row).collect(),
            error: calibration.error(&calibration.model),
            fitted_error: calibration.error(&calibration.fitted),
            fitted_costs: calibration.fitted_costs,
            not_fitted: ["instruction".to_owned()].into_iter().chain(events).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use scope_model::Preset;

    use super::*;

    /// A host that is a model with other costs: fitting finds these costs, and the error of all kernels falls.
    #[test]
    fn fitting_finds_the_costs_of_a_host_that_is_a_model() {
        let (config, preset) = (Preset::Server.config(), Preset::Server.costs());
        let mut truth = preset;
        (truth.l2_hit, truth.l3_hit, truth.memory) = (20.0, 90.0, 500.0);
        (truth.l2_sequential, truth.l3_sequential, truth.memory_sequential) = (6.0, 18.0, 60.0);
        (truth.tlb2_hit, truth.page_walk) = (12.0, 70.0);
        (truth.event.locked, truth.event.syscall) = (30.0, 250.0);
        let predictions = Predictions::new(config);
        let measured = predictions.cycles(&truth);
        let calibration = Calibration::new(&predictions, preset, 3.0, measured);
        let near = |one: f64, other: f64| (one / other - 1.0).abs() < 0.02;
        for (fitted, truth) in [
            (calibration.fitted_costs.l2_hit, truth.l2_hit),
            (calibration.fitted_costs.l3_hit, truth.l3_hit),
            (calibration.fitted_costs.memory, truth.memory),
            (calibration.fitted_costs.l2_sequential, truth.l2_sequential),
            (calibration.fitted_costs.l3_sequential, truth.l3_sequential),
            (calibration.fitted_costs.memory_sequential, truth.memory_sequential),
            (calibration.fitted_costs.tlb2_hit, truth.tlb2_hit),
            (calibration.fitted_costs.page_walk, truth.page_walk),
            (calibration.fitted_costs.event.locked, truth.event.locked),
            (calibration.fitted_costs.event.syscall, truth.event.syscall),
        ] {
            assert!(near(fitted, truth), "{fitted} is not {truth}");
        }
        assert!(calibration.error(&calibration.fitted) < 0.02);
        assert!(calibration.error(&calibration.model) > 0.1);
        let text = calibration.text();
        assert!(text.contains("hypercall") && text.contains('*'), "{text}");
        let costs: Costs = toml::from_str(&calibration.toml()).expect("valid");
        assert!(near(costs.memory, truth.memory));
        let value = document::checked(&CalibrateData::new(&calibration));
        let kernels = value["kernels"].as_array().expect("a list");
        assert_eq!(kernels.len(), Kernel::COUNT);
        let checks = kernels.iter().filter(|kernel| kernel["is_check"] == true);
        assert_eq!(checks.count(), 4);
        let cost = |costs: &str| value[costs]["memory"].as_f64().expect("a number");
        assert!(near(cost("fitted_costs"), truth.memory));
        assert!(near(cost("costs"), preset.memory));
        // Every cost that is not fitted is one.
        for name in value["not_fitted"].as_array().expect("a list") {
            let name = name.as_str().expect("a text").replace('.', "/");
            let place = format!("/fitted_costs/{name}");
            assert!(value.pointer(&place).is_some_and(serde_json::Value::is_number), "{place}");
        }
    }

    /// What the host measures is positive and finite: how long it takes is the host's business.
    #[test]
    fn every_kernel_runs_on_the_host() {
        let cycle = host::cycle();
        assert!(cycle.is_finite() && cycle > 0.0);
        for kernel in Kernel::all() {
            let time = host::nanoseconds(&kernel.smaller());
            assert!(time.is_finite() && time > 0.0, "{}", kernel.name());
        }
    }
}

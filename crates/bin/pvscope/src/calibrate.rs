//! `pvscope calibrate`: compares model cycles with those of this host.
//!
//! ```text
//!  Kernel ──► host: nanoseconds, cycles ──┐
//!     └─────► predict: model cycles ──────┴─► errors ──► fit: costs of this host ──► TOML for --costs
//! ```

mod data;
mod fit;
mod host;
mod kernel;
mod predict;

use std::path::PathBuf;

use ::report::{Table, human};
use clap::Args;
use scope_model::{Config, Costs};

use crate::error::{Error, Result};
use crate::model_args::{CostArgs, ModelArgs};
use crate::report::{json, show};
pub use data::CalibrateData;
use kernel::Kernel;
use predict::Predictions;

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
        ::report::write_atomic(path, calibration.toml().as_bytes())
            .map_err(|error| Error::Usage(error.to_string()))?;
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
        let fitted_costs = fit::fit(&measured, predictions, costs);
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
            fit::UNMEASURED.join(", "),
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
            fit::UNMEASURED.join(", ")
        )
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

//! What `pvscope calibrate` found, for programs.

use document::Document;
use schemars::JsonSchema;
use scope_model::Costs;
use serde::Serialize;

use super::Calibration;
use super::kernel::Kernel;
use crate::calibrate;
use crate::report_data::Model;

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
    pub(super) fn new(calibration: &Calibration) -> Self {
        let row = |(number, kernel): (usize, Kernel)| KernelRow {
            name: kernel.name(),
            unit: kernel.unit(),
            is_check: kernel.is_check(),
            host_cycles: calibration.measured[number],
            model_cycles: calibration.model[number],
            fitted_cycles: calibration.fitted[number],
        };
        let events = calibrate::UNMEASURED.map(|event| format!("event.{event}"));
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

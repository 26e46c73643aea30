//! `pvscope export`: a recording in the formats of other tools.

mod callgrind;
mod firefox;
mod folded;
#[cfg(test)]
pub mod tests;

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::error::{Error, Result};
use crate::filter::FilterArgs;
use crate::model_args::CostArgs;
use crate::report::show;
use crate::summary::Summary;

/// Arguments of `pvscope export`.
#[derive(Args)]
pub struct ExportArgs {
    /// A recording of `pvscope run`.
    file: PathBuf,
    /// The format.
    #[arg(long, value_enum)]
    format: Format,
    /// The file to write [default: standard output].
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    costs: CostArgs,
}

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For KCachegrind: counts by block of code, without calls.
    Callgrind,
    /// A line per function with its model cycles, for tools that draw flame graphs, such as inferno-flamegraph.
    Folded,
    /// For profiler.firefox.com: domains as processes, and the order of the recorded flow as time.
    Firefox,
}

/// Runs the command.
pub fn run(args: &ExportArgs) -> Result<()> {
    let recording = scope_result::read(&args.file)?;
    let summary = Summary::new(&recording, args.costs.read(&recording.config)?);
    let summary = summary.only(|part| args.filter.selects(part));
    if args.format == Format::Firefox && !args.filter.is_empty() {
        let what = "the flow of --format firefox has an order: it cannot be filtered";
        return Err(Error::Usage(what.to_owned()));
    }
    let text = match args.format {
        Format::Callgrind => callgrind::text(&summary, &args.filter),
        Format::Folded => folded::text(&summary),
        Format::Firefox => firefox::json(&recording)?,
    };
    match &args.out {
        Some(path) => ::report::write_atomic(path, text.as_bytes())
            .map_err(|error| Error::Usage(error.to_string())),
        None => show(&text),
    }
}

//! `xenlab domains`: what operators do with their guests, on pvnet.

use std::path::{Path, PathBuf};

use clap::Args;
use lab::Progress;
use report::{Machine, Table, write_atomic};
use serde::Serialize;
use xenlab::scenario::{self, Step};
use xenlab::{Error, Host, Result};

use crate::{BootArgs, PvnetArgs};

/// What can be told to it.
#[derive(Args)]
pub struct DomainsArgs {
    #[command(flatten)]
    pvnet: PvnetArgs,
    /// Where to write the results for programs.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    boot: BootArgs,
}

/// The results for programs.
#[derive(Serialize)]
struct Document<'a> {
    bench: &'static str,
    machine: Machine,
    steps: &'a [Step],
}

/// Runs it; returns whether all was as it should be.
pub fn run(args: &DomainsArgs) -> Result<bool> {
    let mut options = args.boot.options()?;
    options.outside = true;
    options.files.push(args.pvnet.file()?);
    let images = args.boot.build.images()?;
    let progress = Progress::new(scenario::STEPS + 1, args.boot.build.quiet);
    progress.step("boot Xen and dom0");
    let host = Host::boot(&images, &options)?;
    let steps = scenario::domains(&host, &progress)?;
    progress.finish();
    tell("xen domains", &steps, args.json.as_deref())
}

/// Prints what was seen, and writes it to a file; returns whether all was as it should be.
pub fn tell(bench: &'static str, steps: &[Step], json: Option<&Path>) -> Result<bool> {
    let table = Table::new().left("what").left("seen").left("");
    let table = steps.iter().fold(table, |mut table, step| {
        let verdict = if step.sound { "" } else { "WRONG" };
        table.row([step.what.clone(), step.seen.clone(), verdict.to_owned()]);
        table
    });
    let print = table.print();
    print.map_err(|cause| Error::Path { path: "standard output".into(), cause })?;
    if let Some(file) = json {
        let document = Document { bench, machine: Machine::detect(), steps };
        let text = serde_json::to_string(&document).map_err(report::Error::from)?;
        write_atomic(file, (text + "\n").as_bytes())?;
    }
    Ok(steps.iter().all(|step| step.sound))
}

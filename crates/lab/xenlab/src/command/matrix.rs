//! `pvnet-lab xen matrix`: connects every frontend with every backend.

use crate::scenario::{self, Cell, Pair};
use crate::{Host, Options, Result};
use clap::Args;
use document::Document;
use report::{Machine, Table, human};
use schemars::JsonSchema;
use serde::Serialize;

use super::args::LabArgs;

/// Its arguments.
#[derive(Args)]
pub struct MatrixArgs {
    /// Test only this pair, FRONTEND-BACKEND; repeatable [default: all].
    #[arg(long, value_name = "PAIR")]
    only: Vec<Pair>,
    /// Duration of the TCP measurement in each direction, in seconds.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    #[command(flatten)]
    lab: LabArgs,
}

/// Progress steps per pair: those of [`scenario::cell`], and the boot.
const STEPS: usize = 7;

/// The JSON document.
#[derive(JsonSchema, Serialize)]
pub struct MatrixDocument<'a> {
    bench: &'static str,
    machine: Machine,
    cells: &'a [Cell],
}

impl<'a> MatrixDocument<'a> {
    fn new(cells: &'a [Cell]) -> Self {
        Self { bench: "xen", machine: Machine::detect(), cells }
    }
}

impl Document for MatrixDocument<'_> {
    const SCHEMA: &'static str = "lab-matrix/1";
}

/// Runs the chosen pairs, each on its own host. Returns whether all passed.
pub fn run(args: &MatrixArgs) -> Result<bool> {
    let pairs = if args.only.is_empty() { Pair::ALL.to_vec() } else { args.only.clone() };
    let options = options(args, &pairs)?;
    let images = args.lab.boot.build.images()?;
    let progress = args.lab.progress(STEPS * pairs.len());
    let (mut cells, mut failures) = (Vec::new(), Vec::new());
    for pair in &pairs {
        progress.step(format!("{pair}: boot Xen and dom0"));
        let host = Host::boot(&images, &options);
        match host.and_then(|host| scenario::cell(&host, *pair, args.seconds, &progress)) {
            Ok(cell) => cells.push(cell),
            Err(error) if error.is_interrupt() => return Err(error),
            Err(error) => {
                progress.done("failed");
                failures.push((pair, error));
            }
        }
    }
    progress.finish();
    scenario::print(&table(&cells))?;
    for cell in &cells {
        for left in &cell.left {
            println!("{}-{}: {left}", cell.frontend, cell.backend);
        }
    }
    for (pair, error) in &failures {
        eprintln!("\n{pair} failed: {error}");
    }
    scenario::write_json(args.lab.json.as_deref(), &MatrixDocument::new(&cells))?;
    Ok(failures.is_empty() && cells.iter().all(Cell::passed))
}

fn options(args: &MatrixArgs, pairs: &[Pair]) -> Result<Options> {
    let mut options = args.lab.boot.options()?;
    if pairs.iter().any(|pair| pair.needs_pvnet()) {
        options.files.push(args.lab.pvnet()?);
    }
    Ok(options)
}

fn table(cells: &[Cell]) -> Table {
    let table = Table::new().left("frontend").left("backend").right("ping");
    let table = table.right("tx Mb/s").right("rx Mb/s").left("file");
    let table = table.left("detached").left("offloads in the guest");
    cells.iter().fold(table, |mut table, cell| {
        let [received, sent] = cell.ping;
        table.row([
            cell.frontend.to_owned(),
            cell.backend.to_owned(),
            format!("{received}/{sent}"),
            human(cell.rates.tx_mbps),
            human(cell.rates.rx_mbps),
            if cell.sha256_ok { "the same" } else { "CORRUPTED" }.to_owned(),
            if cell.left.is_empty() { "clean" } else { "NOT CLEAN" }.to_owned(),
            offloads(&cell.features.offloads),
        ]);
        table
    })
}

/// The usual short names of the offloads that a vif negotiated.
fn offloads(on: &[String]) -> String {
    let short = [
        ("scatter-gather", "sg"),
        ("tx-checksumming", "tx-csum"),
        ("rx-checksumming", "rx-csum"),
        ("tcp-segmentation-offload", "tso"),
    ];
    let named = short.iter().filter(|(name, _)| on.iter().any(|other| other == name));
    let named: Vec<&str> = named.map(|(_, short)| *short).collect();
    named.join(" ")
}

#[cfg(test)]
mod tests {
    use crate::scenario::{Features, Rates};

    use super::*;

    #[test]
    fn the_document_is_as_its_schema_says() {
        let some = [("feature-sg".to_owned(), "1".to_owned())];
        let cell = Cell {
            frontend: "stock",
            backend: "pvnet",
            ping: [9, 10],
            rates: Rates { tx_mbps: 1.5, rx_mbps: 2.0 },
            sha256_ok: true,
            features: Features {
                frontend: some.clone().into(),
                backend: some.into(),
                offloads: Vec::new(),
            },
            left: vec!["a node".to_owned()],
        };
        document::checked(&MatrixDocument::new(&[cell]));
    }

    #[test]
    fn offloads_have_short_names() {
        let on = ["tx-checksumming", "generic-receive-offload", "scatter-gather"];
        assert_eq!(offloads(&on.map(str::to_owned)), "sg tx-csum");
        assert_eq!(offloads(&[]), "");
    }
}

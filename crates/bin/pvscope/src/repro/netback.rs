//! pvnet beside what Xen hosts run without it, the kernel's netback and a bridge: pairs of recordings, and their ratios.
//!
//! ```text
//!  PAIRS ──► recordings ──► Cost: of a byte, packet or round ──┬──► NetbackData ──► terminal, page, JSON, Markdown
//!  docs/xen-baseline.txt ──► Baseline ─────────────────────────┴──► differences
//! ```

mod baseline;
mod cost;
mod document;
mod groups;
mod markdown;
mod pairs;

use std::collections::BTreeSet;
use std::path::PathBuf;

use baseline::Baseline;
use clap::Args;
use cost::Cost;
use document::PairData;
use pairs::Pair;
use scope_model::Costs;
use scope_result::{Provenance, Recording};

use super::{ReproArgs, usage};
use crate::check::{BaselineFile as _, BaselineProvenance};
use crate::error::Result;
use crate::report::show;
use crate::workload::{Variation, Workload};

pub use document::NetbackData;
pub use pairs::length;

/// Options of the comparison with netback.
#[derive(Args)]
#[command(next_help_heading = "For netback")]
pub struct NetbackArgs {
    /// Only the pairs with these workloads [default: all].
    #[arg(long, value_name = "WORKLOAD,…", value_delimiter = ',')]
    pairs: Vec<String>,
    /// Compare pvnet's side with this baseline, and take netback's from it instead of recording it; a difference gives exit status 3.
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Record both sides, and write the baseline instead of comparing; with --pairs, only their workloads in it. Commit it with the
    /// change that explains it.
    #[arg(long, requires = "baseline")]
    update: bool,
    /// Write the table of ratios of all pairs to this page, between two comments there.
    #[arg(long, value_name = "FILE", conflicts_with = "pairs")]
    page: Option<PathBuf>,
    /// Write the tables of all counts to this page, the same way.
    #[arg(long, value_name = "FILE", conflicts_with = "pairs")]
    tables: Option<PathBuf>,
}

impl NetbackArgs {
    /// Whether any option is given.
    pub fn is_given(&self) -> bool {
        !self.pairs.is_empty()
            || self.baseline.is_some()
            || self.page.is_some()
            || self.tables.is_some()
    }
}

/// Runs the command. Returns whether costs are as in the baseline, if there is one.
pub fn run(args: &ReproArgs) -> Result<bool> {
    let own = &args.netback;
    let pairs = pairs::chosen(&own.pairs).map_err(usage)?;
    let known = match &own.baseline {
        Some(file) if !own.update => Some(Baseline::read(file)?),
        _ => None,
    };
    let mut names: Vec<&'static str> = Vec::new();
    for pair in &pairs {
        let sides = [(known.is_none()).then_some(pair.netback), Some(pair.pvnet)];
        for name in sides.into_iter().flatten() {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let mut provenance = None;
    let mut costs = Vec::new();
    let files = args.files(&names)?;
    for name in names {
        let unit = pairs.iter().find(|pair| pair.netback == name || pair.pvnet == name);
        let Some(unit) = unit.map(|pair| pair.unit) else { continue };
        let recording = scope_result::read(&files.of(name))?;
        let model = args.costs.read(&recording.config)?;
        // A recording of pvnet's side says what pvnet was built by, too.
        if provenance.is_none() && pairs.iter().any(|pair| pair.pvnet == name) {
            let of = provenance_of(&recording, model);
            known.as_ref().map_or(Ok(()), |known| known.provenance.check(&of)).map_err(usage)?;
            provenance = Some(of);
        }
        let cost = Cost::new(&recording, Workload::named(name)?, unit, model);
        if cost.units < unit.least() {
            let (units, unit) = (cost.units, unit.name());
            return Err(usage(format!("{name}: the traffic did not flow: {units} {unit}s")));
        }
        costs.push(cost);
    }
    let provenance = provenance.unwrap_or_default();
    let data = data(&pairs, known.as_ref(), &costs, &provenance)?;
    show(&data.text())?;
    args.write(|| data.page(), &data)?;
    if let Some(page) = &own.page {
        crate::check::write_between(page, &data.summary())?;
    }
    if let Some(page) = &own.tables {
        crate::check::write_between(page, &data.tables())?;
    }
    let Some(known) = known else {
        if let Some(file) = &own.baseline {
            let now = Baseline { provenance, costs };
            let now = if own.pairs.is_empty() { now } else { Baseline::read(file)?.with(now)? };
            now.write(file)?;
            show(&format!("{}\n", file.display()))?;
        }
        return Ok(true);
    };
    let differences: Vec<String> = costs
        .iter()
        .filter_map(|now| Some(baseline::differences(known.of(&now.workload)?, now)))
        .flatten()
        .collect();
    show(&match differences.len() {
        0 => format!("\n{} workloads: as in the baseline.\n", costs.len()),
        count => format!(
            "\n{}\n{count} differences. If they are meant, run this with --update and commit the baseline with the reason.\n",
            differences.join("\n")
        ),
    })?;
    Ok(differences.is_empty())
}

/// The pairs' data: pvnet's side as recorded, netback's from the baseline if there is one.
fn data(
    pairs: &[Pair],
    known: Option<&Baseline>,
    costs: &[Cost],
    provenance: &BaselineProvenance,
) -> Result<NetbackData> {
    let of = |name: &str| {
        let recorded = costs.iter().find(|cost| cost.workload == name);
        let cost = recorded.or_else(|| known.and_then(|known| known.of(name)));
        cost.cloned().ok_or_else(|| usage(format!("the baseline has no workload {name:?}")))
    };
    let pairs =
        pairs.iter().map(|pair| Ok(PairData::new(*pair, of(pair.netback)?, of(pair.pvnet)?)));
    Ok(NetbackData { provenance: provenance.lines(), pairs: pairs.collect::<Result<_>>()? })
}

/// What numbers depend on besides pvnet's source.
fn provenance_of(recording: &Recording, costs: Costs) -> BaselineProvenance {
    let made = &recording.provenance;
    let image = |name: &str| {
        let image = made.images.iter().find(|image| image.name == name);
        image.map(|image| image.digest.clone()).unwrap_or_default()
    };
    let compiler = made.programs.iter().map(|program| program.built_by.clone()).next();
    let mut values = vec![
        ("qemu", made.qemu.clone()),
        ("kernel", image("kernel")),
        ("dom0", image("dom0")),
        ("domU", image("domU")),
        ("xen", image("xen")),
        ("model", format!("{}; {costs}", recording.config.preset.name())),
        ("milliseconds", milliseconds(made)),
        ("scripts", scripts()),
    ];
    values.extend(compiler.map(|compiler| ("pvnet", compiler)));
    BaselineProvenance::new(values)
}

/// The length of a recording that is no longer than others.
fn milliseconds(made: &Provenance) -> String {
    let words = made.options.iter().find_map(|option| option.strip_prefix("--milliseconds "));
    let length: Option<u32> = words.and_then(|words| words.parse().ok());
    length.map_or_else(String::new, |length| (length / pairs::length(&made.workload)).to_string())
}

/// A digest of what the workloads execute besides the images and pvnet.
fn scripts() -> String {
    let names: BTreeSet<&str> =
        pairs::PAIRS.iter().flat_map(|pair| [pair.netback, pair.pvnet]).collect();
    let batches = names.into_iter().map(|name| {
        let batch = Workload::named(name)
            .ok()?
            .batch(pairs::length(name), None, &Variation::default())
            .ok()?;
        Some(format!("{name} {batch:?}"))
    });
    crate::provenance::of_bytes(
        batches.map(Option::unwrap_or_default).collect::<String>().as_bytes(),
    )
}

/// The options of a recording besides its length: one model, no flow. Most machines are used once, so there is no snapshot.
pub const OPTIONS: [&str; 4] = ["--single", "--flow", "0", "--no-snapshot"];

//! `pvscope repro`: repeats a paper's figures with recordings of today's system, and compares pvnet with the kernel's netback.
//!
//! ```text
//!  recordings ──┬──► measure ──► chadha07, menon06 ──► plot::Document ──┬──► terminal, page, JSON
//!               │                 report::Claim ──┘                     │
//!               └──► netback ───────────────────────► NetbackData ──────┘
//! ```

mod chadha07;
mod listing;
mod measure;
mod menon06;
mod netback;
mod plot;
mod rules;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, ValueEnum};
use lab::TempDir;
use measure::WorkloadRecording;
use report::html::Report;
use scope_model::{Costs, Preset};

use crate::check::DIFFERS;
use crate::error::{Error, Result};
use crate::model_args::CostArgs;
use crate::report::{json, show};
use crate::run::{self, RunArgs};

pub use netback::NetbackData;
pub use plot::Document;

/// The default length of recordings.
const MILLISECONDS: u32 = 200;

/// Arguments of `pvscope repro`.
#[derive(Args)]
pub struct ReproArgs {
    /// The paper, or netback.
    paper: Paper,
    /// Read the recordings from this folder instead of making them, which takes some six minutes for chadha07. Each is named after its
    /// workload: tx-stock.pvs.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["keep", "milliseconds"])]
    from: Option<PathBuf>,
    /// With --from: read this file in place of a workload's recording, for an experiment. May be repeated.
    #[arg(long, value_name = "WORKLOAD=FILE", requires = "from", value_parser = replacement)]
    instead: Vec<(String, PathBuf)>,
    /// Keep the recordings in this folder.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// The length of each recording, in milliseconds of the machine's own time: a million instructions each. Netback's pairs between
    /// guests are five times as long.
    #[arg(long, value_name = "N", default_value_t = MILLISECONDS, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    milliseconds: u32,
    /// The number of recordings at a time. Each takes a processor and 2 GB of memory; steps are shown with one only.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    jobs: u8,
    /// Write a page with plots to FILE.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the numbers to FILE as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Show no progress on standard error.
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    costs: CostArgs,
    #[command(flatten)]
    netback: netback::NetbackArgs,
}

/// The papers that can be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Paper {
    /// Chadha and others, "I/O Processing in a Virtualized Platform", VEE 2007: Figures 11 to 17.
    Chadha07,
    /// Menon and others, "Optimizing Network Virtualization in Xen", USENIX 2006: Figures 6, 8, 9 and 12.
    Menon06,
    /// No paper: pvnet beside the kernel's netback and a bridge, the same traffic of stock guests by both.
    Netback,
}

impl Paper {
    /// The workloads whose recordings a paper needs.
    fn workloads(self) -> &'static [&'static str] {
        match self {
            Self::Chadha07 => &chadha07::WORKLOADS,
            Self::Menon06 => &menon06::WORKLOADS,
            Self::Netback => &[],
        }
    }

    /// How many times longer than the others a workload's recording is.
    fn length(self, workload: &str) -> u32 {
        if self == Self::Netback { netback::length(workload) } else { 1 }
    }

    /// The options of its recordings, besides their length.
    fn options(self) -> Vec<String> {
        let words: &[&str] = match self {
            Self::Chadha07 => &["--preset", "2007", "--flow", chadha07::FLOW],
            Self::Menon06 => &["--preset", "2007", "--flow", "0"],
            Self::Netback => &netback::OPTIONS,
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }
}

fn replacement(pair: &str) -> std::result::Result<(String, PathBuf), String> {
    let (workload, file) = pair.split_once('=').ok_or("expected WORKLOAD=FILE")?;
    Ok((workload.to_owned(), file.into()))
}

/// Runs the command. Returns the exit status.
pub fn run(args: &ReproArgs) -> Result<ExitCode> {
    if args.paper == Paper::Netback {
        let is_as_known = netback::run(args)?;
        return Ok(if is_as_known { ExitCode::SUCCESS } else { ExitCode::from(DIFFERS) });
    }
    if args.netback.is_given() {
        return Err(usage("--pairs, --baseline and --page are for `pvscope repro netback`"));
    }
    let recordings = recordings(args)?;
    let config = recordings.first().map_or(Preset::Of2007.config(), |first| first.recording.config);
    let costs = args.costs.read(&config)?;
    let document = document(args.paper, &recordings, costs);
    print(&document)?;
    args.write(|| document.page(), &document)?;
    Ok(ExitCode::SUCCESS)
}

fn document(paper: Paper, recordings: &[WorkloadRecording], costs: Costs) -> Document {
    if paper == Paper::Chadha07 {
        chadha07::document(recordings)
    } else {
        menon06::document(recordings, costs)
    }
}

fn usage(error: impl std::fmt::Display) -> Error {
    Error::Usage(error.to_string())
}

fn recordings(args: &ReproArgs) -> Result<Vec<WorkloadRecording>> {
    read_all(&args.files(args.paper.workloads())?, args.paper)
}

impl ReproArgs {
    /// Writes the page and the numbers, as far as they are wanted.
    fn write(
        &self,
        page: impl FnOnce() -> Report,
        document: &impl document::Document,
    ) -> Result<()> {
        if let Some(path) = &self.html {
            page().write(path)?;
            show(&format!("Report with plots: {}\n", path.display()))?;
        }
        if let Some(path) = &self.json {
            report::write_atomic(path, json(document)?.as_bytes())?;
            show(&format!("Numbers: {}\n", path.display()))?;
        }
        Ok(())
    }

    /// The files of recordings of these workloads, which are made unless there is a folder with them.
    fn files(&self, workloads: &[&str]) -> Result<Files<'_>> {
        if let Some(folder) = &self.from {
            let files = Files { folder: folder.clone(), instead: &self.instead, _temporary: None };
            return files.require(workloads, self.paper).map(|()| files);
        }
        let (folder, temporary) = match &self.keep {
            Some(folder) => (folder.clone(), None),
            None => {
                let folder = TempDir::new()?;
                (folder.path().to_owned(), Some(folder))
            }
        };
        let files = Files { folder, instead: &self.instead, _temporary: temporary };
        run::each(workloads, self.jobs, self.quiet, |workload| {
            run::record(&run_args(self, workload, &files.of(workload))?).map(drop)
        })?;
        Ok(files)
    }
}

/// The files of recordings: in a folder, but some elsewhere.
struct Files<'a> {
    folder: PathBuf,
    instead: &'a [(String, PathBuf)],
    _temporary: Option<TempDir>,
}

impl Files<'_> {
    /// The file of a workload's recording.
    fn of(&self, workload: &str) -> PathBuf {
        let other = self.instead.iter().find(|(name, _)| name == workload);
        other.map_or_else(|| file(&self.folder, workload), |(_, path)| path.clone())
    }

    /// Checks that there are those of these workloads.
    ///
    /// # Errors
    /// With the commands that make those that are missing.
    fn require(&self, workloads: &[&str], paper: Paper) -> Result<()> {
        if let Some((name, _)) = self.instead.iter().find(|(name, _)| !workloads.contains(&&**name))
        {
            return Err(Error::Usage(format!("--instead: no recording of {name:?} is needed")));
        }
        let missing = workloads.iter().filter(|workload| !self.of(workload).is_file());
        let options = paper.options().join(" ");
        let command = |workload: &&str| {
            let length = match paper.length(workload) {
                1 => String::new(),
                times => format!(" --milliseconds {}", MILLISECONDS * times),
            };
            let path = self.of(workload);
            format!("\n  pvscope run {workload} {options}{length} --out {}", path.display())
        };
        let missing: String = missing.map(command).collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(Error::Usage(format!(
            "{}: recordings are missing. Record them, or leave out --from:{missing}",
            self.folder.display()
        )))
    }
}

/// The arguments of `pvscope run` for a recording. Options that are not set here keep their defaults.
fn run_args(args: &ReproArgs, workload: &str, out: &Path) -> Result<RunArgs> {
    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: RunArgs,
    }
    let words = ["run".as_ref(), workload.as_ref(), "--out".as_ref(), out.as_os_str()];
    let milliseconds = args.milliseconds * args.paper.length(workload);
    let length = ["--milliseconds".to_owned(), milliseconds.to_string()];
    let more: Vec<String> = length.into_iter().chain(args.paper.options()).collect();
    let quiet = (args.quiet || args.jobs > 1).then_some("--quiet".as_ref());
    let line = words.into_iter().chain(more.iter().map(OsStr::new)).chain(quiet);
    Ok(Line::try_parse_from(line).map_err(usage)?.args)
}

fn file(folder: &Path, workload: &str) -> PathBuf {
    folder.join(format!("{workload}.pvs"))
}

fn read_all(files: &Files<'_>, paper: Paper) -> Result<Vec<WorkloadRecording>> {
    paper.workloads().iter().map(|workload| read_one(&files.of(workload), workload)).collect()
}

fn read_one(path: &Path, workload: &'static str) -> Result<WorkloadRecording> {
    let recording = scope_result::read(path)?;
    if recording.config.single {
        let path = path.display();
        return Err(Error::Usage(format!(
            "{path} has one size and one policy only. Record it again without --single"
        )));
    }
    Ok(WorkloadRecording { workload, recording })
}

fn print(document: &Document) -> Result<()> {
    let mut text = format!("{}\n\n{}", document.paper, document.recorded());
    for section in &document.sections {
        text += &format!("\n{}\n\n", section.title);
        for plot in &section.plots {
            if let Some(table) = plot.table() {
                text += &format!("{} ({}):\n{table}\n", plot.title, plot.unit);
            }
        }
        for listing in &section.listings {
            text += &format!("{}:\n{}\n", listing.title, listing.table());
        }
        section
            .claims
            .iter()
            .for_each(|claim| text += &format!("{} {}\n", claim.result(), claim.grounds()));
    }
    text += &format!("\nVerdicts:\n{}", document.verdicts());
    document.notes.iter().for_each(|note| text += &format!("{note}\n"));
    show(&text)
}

#[cfg(test)]
mod tests {
    use scope_result::Recording;

    use super::*;

    fn in_folder(folder: &Path) -> Files<'_> {
        Files { folder: folder.to_owned(), instead: &[], _temporary: None }
    }

    #[test]
    fn a_recording_of_an_experiment_is_read_in_place_of_a_workloads() {
        let instead = [("tx-udp".to_owned(), PathBuf::from("/other/single.pvs"))];
        let files = Files { instead: &instead, ..in_folder(Path::new("/all")) };
        assert_eq!(files.of("tx-udp"), Path::new("/other/single.pvs"));
        assert_eq!(files.of("tx-stock"), Path::new("/all/tx-stock.pvs"));
        let wrong = [("loopback".to_owned(), PathBuf::from("x"))];
        let files = Files { instead: &wrong, ..in_folder(Path::new("/all")) };
        let error = files.require(Paper::Chadha07.workloads(), Paper::Chadha07);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("loopback"), "{error}");
    }

    #[test]
    fn an_error_names_missing_recordings_and_how_to_make_them() {
        let folder = TempDir::new().unwrap();
        scope_result::write(&file(folder.path(), "tx-udp"), &Recording::default()).unwrap();
        let files = in_folder(folder.path());
        let error = files.require(Paper::Chadha07.workloads(), Paper::Chadha07);
        let error = error.unwrap_err().to_string();
        let wanted = format!(
            "pvscope run rx-stock-basic --preset 2007 --flow 4000000 --out {}",
            file(folder.path(), "rx-stock-basic").display()
        );
        assert!(error.contains(&wanted), "{error}");
        assert!(!error.contains("tx-udp"), "{error}");
    }

    #[test]
    fn a_recording_of_one_size_is_refused() {
        let folder = TempDir::new().unwrap();
        let mut recording = Recording::default();
        recording.config.single = true;
        for workload in Paper::Chadha07.workloads() {
            scope_result::write(&file(folder.path(), workload), &recording).unwrap();
        }
        let error = read_all(&in_folder(folder.path()), Paper::Chadha07);
        let error = error.err().unwrap().to_string();
        assert!(error.contains("--single"), "{error}");
    }

    #[test]
    fn the_arguments_of_a_recording_are_valid() {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            args: ReproArgs,
        }
        for paper in ["chadha07", "menon06", "netback"] {
            let line = Line::try_parse_from(["repro", paper, "--quiet", "--milliseconds", "50"]);
            let args = line.unwrap().args;
            assert!(run_args(&args, "tx-stock", Path::new("/a folder/tx.pvs")).is_ok());
        }
        assert!(Line::try_parse_from(["repro", "menon06", "--from", "a", "--keep", "b"]).is_err());
    }

    #[test]
    fn every_workload_of_a_paper_exists() {
        for paper in [Paper::Chadha07, Paper::Menon06] {
            for workload in paper.workloads() {
                assert!(crate::workload::Workload::named(workload).is_ok(), "{workload}");
            }
        }
    }

    #[test]
    fn empty_recordings_give_claims_without_a_verdict() {
        for paper in [Paper::Chadha07, Paper::Menon06] {
            let named = |workload: &&'static str| WorkloadRecording {
                workload,
                recording: Recording::default(),
            };
            let recordings: Vec<WorkloadRecording> = paper.workloads().iter().map(named).collect();
            let document = document(paper, &recordings, Costs::default());
            let claims = document.sections.iter().flat_map(|section| &section.claims);
            assert!(claims.clone().count() > 5);
            assert!(claims.clone().all(|claim| claim.here.is_none()), "{document:?}");
            assert!(document.page().to_html().contains("cannot be told"));
            ::document::checked(&document);
        }
    }
}

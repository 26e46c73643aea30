//! `pvnet doctor`: what a machine lacks for each feature. Every check does what the feature does, and undoes it.

mod devices;
mod machine;
mod xen;

use std::path::Path;
use std::process::ExitCode;

use clap::ValueEnum;
use document::Document;
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::DaemonArgs;

/// Options of `pvnet doctor`.
#[derive(clap::Args)]
pub struct DoctorArgs {
    /// The features that the exit code is about, also `all` of them.
    #[arg(value_name = "FEATURE", default_values = ["daemon", "guests", "uplinks"])]
    features: Vec<Wanted>,
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// A feature on the command line.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Wanted {
    /// `pvnet run`, which is also all that virtual machines over vhost-user need.
    Daemon,
    /// Guests in network namespaces.
    Guests,
    /// Tap uplinks.
    Uplinks,
    /// Uplinks over a NIC.
    Nics,
    /// What the daemon gives up.
    Sandbox,
    /// A Xen host.
    Xen,
    /// Tests, benchmarks and labs.
    Labs,
    /// All of them.
    All,
}

/// What this machine lacks for each feature.
#[derive(Serialize, JsonSchema)]
pub struct DoctorDocument {
    features: Vec<Feature>,
}

impl Document for DoctorDocument {
    const SCHEMA: &str = "pvnet-doctor/1";
}

/// A feature, and what it needs.
#[derive(Serialize, JsonSchema)]
struct Feature {
    /// Its name on the command line.
    name: &'static str,
    /// What it is.
    what: &'static str,
    /// Whether nothing that it needs is missing.
    ready: bool,
    /// What was tried.
    checks: Vec<Check>,
}

impl Feature {
    fn new(name: &'static str, what: &'static str, checks: Vec<Check>) -> Self {
        let ready = checks.iter().all(|check| check.result != Verdict::Missing);
        Self { name, what, ready, checks }
    }
}

/// Tries everything, prints what was found, and returns 0 if the named features can be used.
pub fn run(args: &DoctorArgs) -> Result<ExitCode, String> {
    let found = DoctorDocument { features: examine(&args.daemon.directory) };
    if args.json {
        print!("{}", document::pretty(&found).map_err(text)?);
    } else {
        found.features.iter().for_each(print);
    }
    let is_wanted = |feature: &Feature| {
        args.features.iter().any(|wanted| {
            *wanted == Wanted::All || Wanted::from_str(feature.name, false).as_ref() == Ok(wanted)
        })
    };
    let ready =
        found.features.iter().filter(|feature| is_wanted(feature)).all(|feature| feature.ready);
    Ok(if ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn examine(directory: &Path) -> Vec<Feature> {
    vec![
        Feature::new(
            "daemon",
            "pvnet run; virtual machines over vhost-user need no more",
            machine::daemon(directory),
        ),
        Feature::new("guests", "guests in network namespaces: pvnet guest", devices::guests()),
        Feature::new("uplinks", "uplinks with a tap", devices::uplinks()),
        Feature::new("nics", "uplinks over a NIC: macvtap, af-packet, af-xdp", devices::nics()),
        Feature::new("sandbox", "what the daemon gives up when it has started", machine::sandbox()),
        Feature::new("xen", "guests of a Xen host", xen::checks()),
        Feature::new("labs", "demo, tests, benchmarks and labs", machine::checks()),
    ]
}

fn print(feature: &Feature) {
    let ready = if feature.ready { "ready" } else { "not ready" };
    println!("{} ({}): {ready}", feature.name, feature.what);
    for Check { what, result, found, next } in &feature.checks {
        let mark = match result {
            Verdict::Works => "ok     ",
            Verdict::Reduced => "reduced",
            Verdict::Missing => "MISSING",
        };
        println!("  {mark}  {what}: {found}");
        if let Some(next) = next {
            println!("           → {next}");
        }
    }
}

/// One thing that was tried.
#[derive(Debug, Serialize, JsonSchema)]
struct Check {
    /// What it is about.
    what: &'static str,
    /// How it ended.
    result: Verdict,
    /// What was found, or why it failed.
    found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// How a trial ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    /// It works.
    Works,
    /// It does not, and the feature does without, slower or with less.
    Reduced,
    /// It does not, and the feature needs it.
    Missing,
}

impl Check {
    /// What the feature needs.
    fn needed(what: &'static str, tried: Result<String, String>, next: impl Into<String>) -> Self {
        Self::new(what, tried, Verdict::Missing, next.into())
    }

    /// What the feature can do without.
    fn wished(what: &'static str, tried: Result<String, String>, next: impl Into<String>) -> Self {
        Self::new(what, tried, Verdict::Reduced, next.into())
    }

    fn new(
        what: &'static str,
        tried: Result<String, String>,
        otherwise: Verdict,
        next: String,
    ) -> Self {
        match tried {
            Ok(found) => Self { what, result: Verdict::Works, found, next: None },
            Err(found) => Self { what, result: otherwise, found, next: Some(next) },
        }
    }
}

/// An error as text, on one line.
fn text(error: impl std::fmt::Display) -> String {
    error.to_string().trim_end().replace('\n', "; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_is_ready_without_what_it_can_do_without() {
        let failed = || Err("no".to_owned());
        let wished = Check::wished("a", failed(), "do this");
        let works = Check::needed("b", Ok("yes".to_owned()), "nothing");
        assert!(Feature::new("x", "", vec![wished, works]).ready);
        let needed = Check::needed("a", failed(), "do this");
        assert_eq!(needed.next.as_deref(), Some("do this"));
        assert!(!Feature::new("x", "", vec![needed]).ready);
    }

    #[test]
    fn everything_is_tried_and_nothing_is_left_behind() {
        let folder = host::TempDir::new().unwrap();
        let features = examine(folder.path());
        for feature in &features {
            assert!(Wanted::from_str(feature.name, false).is_ok(), "{}", feature.name);
            for check in &feature.checks {
                assert_eq!(check.next.is_none(), check.result == Verdict::Works, "{check:?}");
                assert!(!check.found.contains('\n'), "{check:?}");
            }
        }
        let daemon = &features[0];
        assert!(daemon.ready, "this test runs on a machine that can run the daemon");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(!sandboxed(), "the trial of a sandbox is in a thread that has ended");
    }

    fn sandboxed() -> bool {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        !status.lines().any(|line| line == "Seccomp:\t0") || std::fs::read_dir("/").is_err()
    }
}

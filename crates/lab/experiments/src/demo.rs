//! `pvnet-lab demo`: shows in steps what pvnet does. Each step is a sentence and a figure; a page with plots has them all.
//!
//! ```text
//!  talk ── mechanisms ── kill ── attack ── ports ── idle ── cost
//! ```

mod cost;
mod kill;
mod links;
mod page;
mod rivals;
mod show;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use accounting::Measured;
use clap::{Args, ValueEnum};
use lab::{Interrupt, Ping, Progress, Throughput};
use links::Links;
use report::{Samples, human};

use crate::bench::idle::Idle;
use crate::bench::isolation::{Beside, Class, beside};
use crate::error::{Error, Result};
use crate::output;
use crate::repro::menon06::{Gain, MECHANISMS, gains};
use crate::testbed::{CONGESTION, Case, Setup, Subject as _, Testbed, measure, round_trips};

/// Options of the demo.
#[derive(Args)]
pub struct DemoArgs {
    /// Half the time: shorter transfers, a smaller file, and only the paper's mechanisms for sending.
    #[arg(long)]
    quick: bool,
    /// The steps to show [default: all].
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    step: Vec<Step>,
    /// Seconds of each transfer [default: 2; with --quick: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// Install by apt-get those programs that people use in pvnet's place and that are missing: pasta, VDE's switch, QEMU.
    ///
    /// Without it, only the installed ones are shown.
    #[arg(long)]
    rivals: bool,
    /// Write the report to FILE, a page with plots for any browser.
    #[arg(long, value_name = "FILE", default_value = "out/demo.html")]
    report: PathBuf,
    /// Write the results to FILE as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Show no progress on standard error.
    #[arg(long, short)]
    quiet: bool,
}

/// A step of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Step {
    /// Two guests talk.
    Talk,
    /// A paper's mechanisms, each off and on.
    Mechanisms,
    /// The daemon is killed in the middle of a file.
    Kill,
    /// A hostile guest beside good ones.
    Attack,
    /// A virtual machine's port and a card's context.
    Ports,
    /// CPU and memory while nobody sends.
    Idle,
    /// What isolation costs, beside the kernel's bridge and other programs.
    Cost,
}

/// The extent of the measurements.
#[derive(Clone, Copy, Debug)]
struct Extent {
    seconds: u32,
    /// Bytes of the file.
    file: u64,
    /// The number of the paper's mechanisms.
    mechanisms: usize,
    /// How long nobody sends.
    idle: Duration,
}

impl Extent {
    fn of(args: &DemoArgs) -> Self {
        let all = Self {
            seconds: 2,
            file: 1 << 30,
            mechanisms: MECHANISMS.len(),
            idle: Duration::from_secs(2),
        };
        let quick =
            Self { seconds: 1, file: 256 << 20, mechanisms: 4, idle: Duration::from_secs(1) };
        let extent = if args.quick { quick } else { all };
        Self { seconds: args.seconds.unwrap_or(extent.seconds), ..extent }
    }
}

/// The results of all steps that were asked for.
#[derive(Default)]
struct Findings {
    talk: Option<Talk>,
    gains: Vec<Gain>,
    kill: Option<kill::Kill>,
    attack: Option<Beside>,
    ports: Option<links::Ports>,
    idle: Option<Idle>,
    cost: Option<cost::Cost>,
}

/// The pause after a transfer, for its last frames.
const SETTLE: Duration = Duration::from_millis(500);

/// Runs the demo.
pub fn run(args: &DemoArgs) -> Result<()> {
    Interrupt::install()?;
    lab::preflight(&["iperf3", "ping", "ethtool"])?;
    for file in [Some(&args.report), args.json.as_ref()].into_iter().flatten() {
        output::prepare(file)?;
    }
    if args.rivals {
        rivals::install(args.quiet)?;
    }
    let is_chosen = |step: &&Step| args.step.is_empty() || args.step.contains(step);
    let steps: Vec<Step> = Step::value_variants().iter().filter(is_chosen).copied().collect();
    let progress = Progress::erased(steps.len(), args.quiet);
    let mut demo = Demo { extent: Extent::of(args), progress, testbed: None };
    let mut findings = Findings::default();
    output::print(&show::wrapped(show::INTRODUCTION))?;
    for (number, step) in (1..).zip(steps) {
        output::print(&format!("\n{number}. {}\n", show::title(step)))?;
        demo.progress.step(show::title(step));
        demo.run(step, &mut findings)?;
        demo.progress.done("");
        output::print(&show::findings(step, &findings))?;
    }
    page::page(&findings).write(&args.report)?;
    output::print(&format!("\nThe page with plots: {}\n", args.report.display()))?;
    if let Some(file) = &args.json {
        show::benchmark(&findings).write(file)?;
    }
    Ok(())
}

/// The state that steps share.
struct Demo {
    extent: Extent,
    progress: Progress,
    /// A daemon with two guests, for the steps that need no other. It stays until the end.
    testbed: Option<Testbed>,
}

impl Demo {
    fn run(&mut self, step: Step, findings: &mut Findings) -> Result<()> {
        let Extent { seconds, file, mechanisms, idle } = self.extent;
        match step {
            Step::Talk => {
                let (testbed, progress) = self.testbed()?;
                findings.talk = Some(talk(testbed, seconds, |what| progress.detail(what))?);
            }
            Step::Mechanisms => {
                let progress = &self.progress;
                let step = |config: &str| progress.detail(format!("configuration {config}"));
                let done = |mbps| progress.detail(format!("{} Mb/s", human(mbps)));
                // There are many configurations, and their factors are large: half the time is enough.
                let seconds = seconds.div_ceil(2);
                findings.gains = gains(&MECHANISMS[..mechanisms], seconds, step, done)?;
            }
            Step::Kill => {
                let (testbed, progress) = self.testbed()?;
                findings.kill = Some(kill::kill(testbed, file, |what| progress.detail(what))?);
            }
            Step::Attack => {
                let say = |what: &str| self.progress.detail(what);
                findings.attack = Some(beside(Class::VirtioBrokenRings, seconds, say)?);
            }
            Step::Ports => {
                findings.ports = Some(links::ports(seconds, |what| self.progress.detail(what))?);
            }
            Step::Idle => {
                let (testbed, _) = self.testbed()?;
                Interrupt::sleep(SETTLE)?;
                findings.idle = Some(Idle::measure(testbed, idle)?);
            }
            Step::Cost => {
                let (testbed, progress) = self.testbed()?;
                findings.cost = Some(cost::cost(testbed, seconds, |what| progress.detail(what))?);
            }
        }
        Ok(())
    }

    /// The two guests, started if this is the first step that needs them.
    fn testbed(&mut self) -> Result<(&mut Testbed, &Progress)> {
        if self.testbed.is_none() {
            self.progress.detail("start pvnet with two guests");
            self.testbed = Some(Testbed::start(&Setup { rejoin: true, ..Setup::default() })?);
        }
        let none = || crate::Error::Failed("no guests".to_owned());
        Ok((self.testbed.as_mut().ok_or_else(none)?, &self.progress))
    }
}

/// Echo requests for each address family.
const PINGS: u32 = 5;
const PING_INTERVAL: Duration = Duration::from_millis(50);
/// Round trips of a datagram.
const ROUND_TRIPS: u32 = 2000;

/// How two guests talk.
pub(crate) struct Talk {
    /// The links of both guests. None leads out of its namespace.
    pub links: [Links; 2],
    /// Echoes with IPv4 and IPv6.
    pub pings: [Ping; 2],
    /// Round trips in microseconds.
    pub rtt: Samples,
    /// A TCP stream.
    pub tcp: Measured<Throughput>,
}

/// Lets the guests talk.
pub(crate) fn talk(testbed: &Testbed, seconds: u32, step: impl Fn(&str)) -> Result<Talk> {
    let (from, to) = (testbed.left(), testbed.right());
    let links = [Links::of(&from.namespace, from.device)?, Links::of(&to.namespace, to.device)?];
    step("ping with IPv4 and IPv6");
    let ping = |address: IpAddr| -> Result<Ping> {
        let ping = lab::ping(&from.namespace, address, PINGS, PING_INTERVAL)?;
        let no_reply = || Error::Failed(format!("{address} did not answer over pvnet"));
        (ping.received > 0).then_some(ping).ok_or_else(no_reply)
    };
    let pings = [ping(to.ipv4.into())?, ping(to.ipv6.into())?];
    step("round trips of a datagram");
    let rtt = round_trips(testbed, ROUND_TRIPS)?;
    step("a TCP stream");
    let tcp = measure(testbed, || Case::TCP.run(testbed, seconds, 0, Some(CONGESTION)))?;
    let (carried, arrived) = (tcp.carried.bytes, tcp.result.bytes);
    if carried < arrived {
        let text = format!("{arrived} bytes arrived, but pvnet carried only {carried}");
        return Err(Error::Failed(text));
    }
    Ok(Talk { links, pings, rtt, tcp })
}

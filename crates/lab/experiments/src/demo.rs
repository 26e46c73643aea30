//! `pvnet-lab demo`: two guests talk through pvnet, and then through the kernel's own bridge.

mod isolation;
mod page;
mod show;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use accounting::{Carried, Measured};
use clap::Args;
use isolation::Links;
use lab::{Interrupt, Offloads, Ping, Progress, Throughput, Transfer, VethBridge};
use report::{Samples, human};

use crate::error::{Error, Result};
use crate::output;
use crate::testbed::{
    CASES, CONGESTION, Case, Setup, Subject, Testbed, find_pace, measure, round_trips,
};

/// Options of the demo.
#[derive(Args)]
pub struct DemoArgs {
    /// Seconds of each transfer.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
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

/// The size of the file that is sent and compared.
const FILE: u64 = 1 << 30;
/// Echo requests for each address family.
const PINGS: u32 = 10;
const PING_INTERVAL: Duration = Duration::from_millis(100);
/// Round trips of a datagram.
const ROUND_TRIPS: u32 = 5000;

/// Runs the demo.
pub fn run(args: &DemoArgs) -> Result<()> {
    Interrupt::install()?;
    lab::preflight(&["iperf3", "ping", "ethtool"])?;
    for file in [Some(&args.report), args.json.as_ref()].into_iter().flatten() {
        output::prepare(file)?;
    }
    output::print(&format!("{INTRODUCTION}\n\n"))?;
    let findings = Demo::start(args)?.run()?;
    show::print(&findings)?;
    page::page(&findings).write(&args.report)?;
    output::print(&format!("Report with plots: {}\n", args.report.display()))?;
    if let Some(file) = &args.json {
        show::benchmark(&findings).write(file)?;
    }
    Ok(())
}

/// Both subjects and the progress that is shown.
struct Demo {
    progress: Progress,
    seconds: u32,
    offloads: Offloads,
    pvnet: Testbed,
    bridge: VethBridge,
}

impl Demo {
    fn start(args: &DemoArgs) -> Result<Self> {
        // The start, the links, the file; pings, round trips, paces and transfers over both.
        let switches = CASES.windows(2).filter(|pair| pair[0].offloads != pair[1].offloads);
        let steps = 3 + 2 * (3 + CASES.len()) + switches.count();
        let progress = Progress::new(steps, args.quiet);
        progress.step("start pvnet with two guests, and veth + bridge");
        let offloads = Offloads::ALL;
        let pvnet = Testbed::start(&Setup { meter: true, offloads, ..Setup::default() })?;
        let bridge = VethBridge::create("pvnet-veth", offloads)?;
        Ok(Self { progress, seconds: args.seconds, offloads, pvnet, bridge })
    }

    fn subjects(&self) -> [&dyn Subject; 2] {
        [&self.pvnet, &self.bridge]
    }

    fn run(mut self) -> Result<Findings> {
        let links = self.links()?;
        let [pvnet, bridge] = self.subjects();
        let pings = [self.ping(pvnet)?, self.ping(bridge)?];
        let rtt = [self.round_trips(pvnet)?, self.round_trips(bridge)?];
        let (file, file_carried) = self.send_file()?;
        let transfers = self.transfers()?;
        Ok(Findings { links, pings, rtt, file, file_carried, transfers })
    }

    fn links(&self) -> Result<[Links; 2]> {
        self.progress.step("look for links by which the kernel could forward");
        let links = [self.pvnet.left(), self.pvnet.right()];
        let [red, blue] = links.map(|end| Links::of(&end.namespace, end.device));
        self.progress.done("none");
        Ok([red?, blue?])
    }

    fn ping(&self, subject: &dyn Subject) -> Result<Pings> {
        self.progress.step(format!("ping over {}, IPv4 and IPv6", subject.name()));
        let (from, to) = (subject.left(), subject.right());
        let ping = |address: IpAddr| lab::ping(&from.namespace, address, PINGS, PING_INTERVAL);
        let pings = Pings { v4: ping(to.ipv4.into())?, v6: ping(to.ipv6.into())? };
        for (ping, family) in [(&pings.v4, "IPv4"), (&pings.v6, "IPv6")] {
            if ping.received == 0 {
                let name = subject.name();
                return Err(Error::Failed(format!("no reply over {name} with {family}")));
            }
        }
        self.progress.done(&format!("{}; {}", show::ping(&pings.v4), show::ping(&pings.v6)));
        Ok(pings)
    }

    fn round_trips(&self, subject: &dyn Subject) -> Result<Samples> {
        self.progress.step(format!("{ROUND_TRIPS} round trips over {}, UDP", subject.name()));
        let times = round_trips(subject, ROUND_TRIPS)?;
        self.progress.done(&format!("median {} µs", human(times.percentile(50.0).unwrap_or(0.0))));
        Ok(times)
    }

    fn send_file(&self) -> Result<(Transfer, Carried)> {
        self.progress.step("send 1 GiB over pvnet and compare by SHA-256");
        let (from, to) = (self.pvnet.left(), self.pvnet.right());
        let send = || lab::transfer_file(&from.namespace, &to.namespace, to.ipv4, FILE, 1);
        let Measured { result: file, carried, .. } = measure(&self.pvnet, send)?;
        accounted(carried, file.bytes)?;
        self.progress.done("the same");
        Ok((file, carried))
    }

    fn transfers(&mut self) -> Result<Vec<Pair>> {
        let mut paces = [0; 2];
        let mut pairs = Vec::new();
        for case in &CASES {
            if case.offloads != self.offloads {
                self.switch(case)?;
            }
            let [pvnet, bridge] = self.subjects();
            if case.is_udp() {
                paces = [self.pace(pvnet, case)?, self.pace(bridge, case)?];
            }
            let pvnet = self.transfer(case, pvnet, paces[0])?;
            accounted(pvnet.carried, pvnet.result.bytes)?;
            let bridge = self.transfer(case, bridge, paces[1])?;
            pairs.push(Pair { case, pvnet, bridge });
        }
        Ok(pairs)
    }

    /// Gives both subjects the offloads of a case.
    fn switch(&mut self, case: &Case) -> Result<()> {
        self.progress.step(format!("restart the guests for {}", case.label));
        self.offloads = case.offloads;
        self.pvnet.restart_guests(case.offloads)?;
        self.bridge = VethBridge::create("pvnet-veth", case.offloads)?;
        Ok(())
    }

    fn pace(&self, subject: &dyn Subject, udp: &Case) -> Result<u64> {
        self.progress.step(format!("find the pace at which UDP arrives over {}", subject.name()));
        let pace = find_pace(subject, udp)?;
        self.progress.done(&format!("{} Mb/s", human(pace as f64 / 1e6)));
        Ok(pace)
    }

    fn transfer(
        &self,
        case: &Case,
        subject: &dyn Subject,
        pace: u64,
    ) -> Result<Measured<Throughput>> {
        self.progress.step(format!("{}, over {}", case.label, subject.name()));
        let measured =
            measure(subject, || case.run(subject, self.seconds, pace, Some(CONGESTION)))?;
        self.progress.done(&format!("{} Mb/s", human(measured.result.mbps)));
        Ok(measured)
    }
}

/// Fails if bytes arrived that pvnet did not carry.
fn accounted(carried: Carried, bytes: u64) -> Result<()> {
    if carried.bytes >= bytes {
        return Ok(());
    }
    let carried = carried.bytes;
    Err(Error::Failed(format!("{bytes} bytes arrived, but pvnet carried only {carried}")))
}

/// All results.
struct Findings {
    links: [Links; 2],
    /// pvnet's, then the bridge's.
    pings: [Pings; 2],
    /// Round trips in microseconds: pvnet's, then the bridge's.
    rtt: [Samples; 2],
    file: Transfer,
    /// What pvnet carried in that time.
    file_carried: Carried,
    transfers: Vec<Pair>,
}

/// Echoes over both address families.
struct Pings {
    v4: Ping,
    v6: Ping,
}

/// One case over both subjects.
struct Pair {
    case: &'static Case,
    pvnet: Measured<Throughput>,
    bridge: Measured<Throughput>,
}

impl Pair {
    /// pvnet's throughput over the bridge's.
    fn ratio(&self) -> f64 {
        self.pvnet.result.mbps / self.bridge.result.mbps.max(f64::EPSILON)
    }
}

/// What the demo shows, for readers.
const INTRODUCTION: &str = "\
Two guests, each a network namespace with its own Linux TCP/IP stack, talk through pvnet: a driver
domain in user space that carries their frames over Xen's netif rings. For comparison, two
namespaces of the same kind talk through the kernel's own veth and bridge.";

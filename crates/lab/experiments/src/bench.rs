//! `pvnet-lab bench`: numbers to compare between runs, and with the kernel's own bridge.
//!
//! Rounds are interleaved: each measures everything once, pvnet and the bridge in turn and in alternating order. So a
//! machine that is slower for a while affects both.

pub(crate) mod guest;
pub(crate) mod idle;
pub(crate) mod isolation;
mod latency;
mod middleware;
mod nic;
mod pps;
mod queues;
mod restart;
mod reuse;
mod rows;
mod sandbox;
mod scale;
mod show;
mod stream;
mod uplink;
mod vhost;
mod virtio;

use clap::Subcommand;
use rows::Common;
use show::Shown;

use crate::error::Result;
use crate::output;

/// The benchmarks.
#[derive(Subcommand)]
pub enum BenchCommand {
    /// TCP and UDP between two guests, with iperf3, beside the kernel's veth + bridge.
    Stream(stream::StreamArgs),
    /// Frames per second between two generator guests that have no kernel stack.
    Pps(pps::PpsArgs),
    /// Round trips of a datagram between two guests, beside the kernel's veth + bridge.
    Latency(latency::LatencyArgs),
    /// Numbers of workers and queues: TCP and round trips between two guests.
    Queues(queues::QueuesArgs),
    /// Grant reuse: which pages stay mapped, how often they are found, and what that saves per packet.
    Reuse(reuse::ReuseArgs),
    /// The cost of guard, limit and capture, between two generator guests.
    Middleware(middleware::MiddlewareArgs),
    /// Frames per second of a card with contexts alone, and what each protection costs.
    Nic(nic::NicArgs),
    /// The daemon's CPU time and memory while two connected guests are idle.
    Idle(idle::IdleArgs),
    /// What a hostile guest costs two good ones, for each class of attack.
    Isolation(isolation::IsolationArgs),
    /// How long guests' traffic pauses while the daemon is stopped, or killed, and started again.
    Restart(restart::RestartArgs),
    /// What the daemon's filter of system calls costs each frame to an uplink.
    Sandbox(sandbox::SandboxArgs),
    /// What a frame between a guest and a NIC costs, by each kind of uplink.
    Uplink(uplink::UplinkArgs),
    /// Many guests: idle, sending at once, and what each costs.
    Scale(scale::ScaleArgs),
    /// Virtual machines' ports beside DPDK's testpmd: frames per second, round trips, idle CPU.
    Vhost(vhost::VhostArgs),
    /// The hostile guest that `isolation` starts.
    #[command(hide = true)]
    HostileGuest(isolation::HostileArgs),
    /// The front-end program that `vhost` starts.
    #[command(hide = true)]
    VhostFrontEnd(vhost::FrontEndArgs),
    /// The process whose instructions `nic` counts.
    #[command(hide = true)]
    NicCounted(nic::CountedArgs),
}

/// Runs a benchmark and shows and writes its result.
pub fn run(command: &BenchCommand) -> Result<()> {
    use BenchCommand as Bench;
    match command {
        Bench::Stream(args) => bench(&args.common, || stream::run(args).map(Shown::from)),
        Bench::Pps(args) => bench(&args.common, || pps::run(args).map(Shown::from)),
        Bench::Latency(args) => bench(&args.common, || latency::run(args).map(Shown::from)),
        Bench::Queues(args) => bench(&args.common, || queues::run(args).map(Shown::from)),
        Bench::Reuse(args) => bench(&args.common, || reuse::run(args).map(Shown::from)),
        Bench::Middleware(args) => bench(&args.common, || middleware::run(args).map(Shown::from)),
        Bench::Nic(args) => bench(&args.common, || nic::run(args).map(Shown::from)),
        Bench::Idle(args) => bench(&args.common, || idle::run(args).map(Shown::from)),
        Bench::Isolation(args) => bench(&args.common, || isolation::run(args)),
        Bench::Restart(args) => bench(&args.common, || restart::run(args).map(Shown::from)),
        Bench::Sandbox(args) => bench(&args.common, || sandbox::run(args).map(Shown::from)),
        Bench::Uplink(args) => bench(&args.common, || uplink::run(args).map(Shown::from)),
        Bench::Scale(args) => bench(&args.common, || scale::run(args)),
        Bench::Vhost(args) => bench(&args.common, || vhost::run(args)),
        Bench::HostileGuest(args) => isolation::hostile_guest(args),
        Bench::VhostFrontEnd(args) => vhost::front_end(args),
        Bench::NicCounted(args) => nic::run_counted(args),
    }
}

fn bench(common: &Common, measure: impl FnOnce() -> Result<Shown>) -> Result<()> {
    lab::Interrupt::install()?;
    for file in common.json.iter().chain(&common.html) {
        output::prepare(file)?;
    }
    let shown = measure()?;
    shown.print()?;
    if let Some(file) = &common.json {
        shown.benchmark.write(file)?;
    }
    if let Some(file) = &common.html {
        shown.page.write(file)?;
    }
    Ok(())
}

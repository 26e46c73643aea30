//! `client`: a frontend with the habits of real ones other than Linux's. Behind it is Linux's network stack, on a tap.
//!
//! | real frontend | its habit |
//! | --- | --- |
//! | Unikraft | grants a page for each receive buffer, and uses the second half for something else |
//! | iPXE, OpenBSD | post 18 and 32 receive buffers, and never more |
//! | some TSO drivers | announce segmentation without a checksum to complete |
//! | any | may send a packet whose chain has a slot of no bytes |
//!
//! It runs as root, in a guest without xen-netfront where `xen-evtchn`, `xen-gntalloc` (with `limit=4096`) and `tun` are loaded.
//! At SIGTERM it prints its counters as one line of JSON, and ends.

#![forbid(unsafe_code)]

mod receive;
mod transmit;

use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use hypervisor::{EventChannel as _, Guest as _};
use lab::Interrupt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use uplink::tap::{Tap, TapOffload};
use wire::netif::keys;
use xenlab::netif::device::{Outcome, Vif};
use xenlab::scenario::ClientReport;
use xenstore::XenbusState;

use receive::Receiver;
use transmit::Transmitter;

/// The longest wait when nothing happens.
const IDLE: Duration = Duration::from_secs(1);

/// Connects one of this domain's interfaces to a tap.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// The number of the domain's interface.
    #[arg(long, value_name = "N")]
    vif: u32,
    /// The name of the tap.
    #[arg(long, value_name = "NAME")]
    device: String,
    /// How many receive buffers are posted at a time.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=256))]
    buffers: u16,
    /// Post buffers again after this time instead of at once.
    #[arg(long, value_name = "MS")]
    refill_ms: Option<u64>,
    /// Keep data of its own in the second half of each receive buffer.
    #[arg(long)]
    half_pages: bool,
    /// Take unsegmented frames from the stack, and announce them without a checksum to complete.
    #[arg(long)]
    tso_without_csum_blank: bool,
    /// Take unsegmented frames from the stack, and announce them with a checksum to complete, as xen-netfront does.
    #[arg(long, conflicts_with = "tso_without_csum_blank")]
    tso: bool,
    /// Put a slot of no bytes into the chain of each packet.
    #[arg(long)]
    empty_fragments: bool,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("client: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Outcome {
    Interrupt::install()?;
    let tso4 = cli.tso || cli.tso_without_csum_blank;
    let offload = TapOffload { csum: tso4, tso4, ..TapOffload::NONE };
    let tap = Tap::open(&cli.device, 1, offload)?;
    let device = Vif::open(cli.vif)?;
    let (event, port) = device.guest.alloc_unbound(device.domain)?;
    let mut transmitter =
        Transmitter::new(&device, cli.empty_fragments, cli.tso_without_csum_blank)?;
    let mut receiver = Receiver::new(&device, cli.buffers, cli.half_pages)?;
    device.start_over()?;
    for (key, value) in [
        (keys::TX_RING_REF, transmitter.gref().0),
        (keys::RX_RING_REF, receiver.gref().0),
        (keys::EVENT_CHANNEL, port.0),
        (keys::REQUEST_RX_COPY, 1),
        (keys::FEATURE_RX_NOTIFY, 1),
        (keys::FEATURE_NO_CSUM_OFFLOAD, 1),
    ] {
        device.key(key, &value.to_string())?;
    }
    device.enter(XenbusState::Connected)?;
    device.wait_connected()?;
    println!("connected");
    let mut refill = Instant::now();
    let mut report = ClientReport::default();
    while !Interrupt::requested() {
        event.take()?;
        transmitter.take_responses(&mut report);
        receiver.take_responses(tap[0].as_fd(), &mut report)?;
        let pause = cli.refill_ms.map(Duration::from_millis);
        if pause.is_none_or(|pause| refill.elapsed() >= pause) {
            refill = Instant::now();
            receiver.post_all()?;
        }
        transmitter.send_all(tap[0].as_fd(), &mut report)?;
        event.notify()?;
        if transmitter.has_responses() || receiver.has_responses() {
            continue;
        }
        let mut fds = [
            PollFd::from_borrowed_fd(event.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(tap[0].as_fd(), PollFlags::IN),
        ];
        // While the ring is full, only responses matter: the tap is not polled.
        let watched = if transmitter.has_room() { &mut fds[..] } else { &mut fds[..1] };
        match poll(watched, Some(&Timespec::try_from(pause.unwrap_or(IDLE))?)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    println!("{}", serde_json::to_string(&report)?);
    device.close()
}

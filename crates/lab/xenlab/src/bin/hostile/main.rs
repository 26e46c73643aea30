//! `hostile`: a frontend that breaks the rules, one at a time.
//!
//! It runs in a guest without xen-netfront, as root, where `xen-evtchn` and `xen-gntalloc` (with `limit=4096`) are
//! loaded. It speaks with the backend by raw keys, raw ring words and raw slots, and prints what came of it as one
//! line of JSON. Every attack begins with state 1, so that one can follow upon another whatever that has left.

#![forbid(unsafe_code)]

mod control;
mod device;
mod frames;
mod grants;
mod handshake;
mod leaving;
mod link;
mod offloads;
mod races;
mod receive;
mod ring;
mod rings;
mod slots;

use std::error::Error;
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum as _};
use xenlab::scenario::{Class, Report};

use device::Device;

/// How an attack went, as far as the guest can tell.
type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Attacks the backend of one of this domain's interfaces, and tells what came of it.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// What to do.
    #[arg(required_unless_present = "list", hide_possible_values = true)]
    class: Option<Class>,
    /// Show what there is, and do nothing.
    #[arg(long)]
    list: bool,
    /// Which of the domain's interfaces.
    #[arg(long, value_name = "N", default_value_t = 0)]
    vif: u32,
    /// How long that goes on which goes on.
    #[arg(long, value_name = "S", default_value_t = 2)]
    seconds: u64,
    /// How often that is done which is done often.
    #[arg(long, value_name = "N", default_value_t = 100)]
    count: u32,
    /// This guest's own address.
    #[arg(long, value_name = "ADDRESS", default_value = "10.0.0.3")]
    address: Ipv4Addr,
    /// Whoever answers echoes.
    #[arg(long, value_name = "ADDRESS", default_value = "10.0.0.1")]
    peer: Ipv4Addr,
    /// Stay as it is after the report, until killed; otherwise the device is closed.
    #[arg(long)]
    stay: bool,
}

/// An attack that goes on: its means, and what it will tell.
struct Attack<'a> {
    cli: &'a Cli,
    device: &'a Device,
    began: Instant,
    report: Report,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.class {
        None => list(),
        Some(class) => match run(&cli, class) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("hostile: {error}");
                ExitCode::FAILURE
            }
        },
    }
}

fn list() -> ExitCode {
    for class in Class::value_variants() {
        println!("{:<20} {}", class.to_string(), class.help());
    }
    ExitCode::SUCCESS
}

fn run(cli: &Cli, class: Class) -> Outcome {
    let device = Device::open(cli)?;
    let report = Report::new(class);
    let mut attack = Attack { cli, device: &device, began: Instant::now(), report };
    // What it has shared is held until the end: the backend must see no other guest than this.
    let held = attack.run(class);
    if let Err(error) = &held {
        attack.report.failure = Some(error.to_string());
    }
    attack.note_state()?;
    println!("{}", serde_json::to_string(&attack.report)?);
    match class {
        // Not a word more, to anybody.
        Class::Vanishes => std::process::exit(0),
        _ if cli.stay => loop {
            std::thread::park();
        },
        _ => device.close(),
    }
}

impl Attack<'_> {
    /// Does it. What the backend may still use comes back.
    fn run(&mut self, class: Class) -> Outcome<Option<link::Link>> {
        match class {
            Class::ProducerAhead => rings::producer_ahead(self),
            Class::ProducerBack => rings::producer_back(self),
            Class::RxProducerAhead => rings::rx_producer_ahead(self),
            Class::SharedRing => rings::shared_ring(self),
            Class::TooManySlots => slots::too_many(self),
            Class::FatalSlots => slots::fatal(self),
            Class::UnfinishedChain => slots::unfinished(self),
            Class::CrossingPage => slots::crossing_page(self),
            Class::OversizedFragments => slots::oversized(self),
            Class::RuntFrames => slots::runts(self),
            Class::EmptyFragments => slots::empty(self),
            Class::SplitHeaders => slots::split_headers(self),
            Class::UnknownExtra => offloads::unknown_extra(self),
            Class::EmptySegments => offloads::empty_segments(self),
            Class::WrongSegments => offloads::wrong_segments(self),
            Class::NoChecksum => offloads::no_checksum(self),
            Class::TxBadGrants => grants::transmit(self),
            Class::RxBadGrants => grants::receive(self),
            Class::BadRings => grants::rings(self),
            Class::RewrittenSlots => races::rewritten_slots(self),
            Class::EventStorm => races::event_storm(self),
            Class::Flood => races::flood(self),
            Class::ManyAddresses => races::many_addresses(self),
            Class::DoledBuffers => receive::doled_buffers(self),
            Class::StateStorm => handshake::state_storm(self),
            Class::StateJumps => handshake::state_jumps(self),
            Class::QueueCounts => handshake::queue_counts(self),
            Class::BadKeys => handshake::bad_keys(self),
            Class::BadPorts => handshake::bad_ports(self),
            Class::ConnectsTwice => handshake::connects_twice(self),
            Class::ControlNonsense => control::nonsense(self),
            Class::Vanishes => leaving::vanishes(self),
            Class::Killed => leaving::killed(self),
            Class::Cycles => leaving::cycles(self),
        }
    }

    /// Ends an attack that the backend shall have survived with the interface up: an echo comes back.
    fn prove(&mut self, mut link: link::Link) -> Outcome<Option<link::Link>> {
        link.echo(self.device)?;
        self.report.echoes += 1;
        Ok(Some(link))
    }

    /// Says what was done.
    fn did(&mut self, what: impl Into<String>) {
        self.report.did.push(what.into());
    }

    /// How long that goes on which goes on.
    fn span(&self) -> Duration {
        Duration::from_secs(self.cli.seconds)
    }

    fn note_state(&mut self) -> Outcome {
        self.report.backend = self.device.backend_state()?.map(|state| state as u8);
        let elapsed = self.began.elapsed().as_millis();
        self.report.milliseconds = u64::try_from(elapsed).unwrap_or(u64::MAX);
        Ok(())
    }
}

/// How long the backend may take for anything.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until something is so, or fails saying that it is not.
fn wait_until(what: &str, mut so: impl FnMut() -> Outcome<bool>) -> Outcome {
    match so_within(PATIENCE, &mut so)? {
        true => Ok(()),
        false => Err(format!("{what}: not within {} s", PATIENCE.as_secs()).into()),
    }
}

/// Waits until something is so, for a while.
fn so_within(limit: Duration, mut so: impl FnMut() -> Outcome<bool>) -> Outcome<bool> {
    let deadline = Instant::now() + limit;
    loop {
        if so()? {
            return Ok(true);
        }
        if Instant::now() > deadline {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

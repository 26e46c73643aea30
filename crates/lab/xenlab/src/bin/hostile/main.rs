//! `hostile`: a frontend that breaks the rules, one at a time.
//!
//! It runs as root, in a guest without xen-netfront where `xen-evtchn` and `xen-gntalloc` (with `limit=4096`) are
//! loaded. It uses raw store keys, raw ring words and raw slots, and prints its report as one line of JSON. Every
//! attack begins with state 1, so that it can follow any other attack.

#![forbid(unsafe_code)]

mod control;
mod frames;
mod grants;
mod handshake;
mod leaving;
mod link;
mod offloads;
mod races;
mod receive;
mod restart;
mod rings;
mod slots;

use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum as _};
use device::Outcome;
use frames::HostileDevice;
use link::Link;
use xenlab::netif::{device, ring};
use xenlab::scenario::{Class, Report};

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
    let device = HostileDevice::open(cli)?;
    let report = Report::new(class);
    let mut attack = Attack { cli, device: &device, began: Instant::now(), report };
    // The attack's pages stay shared until the end: the backend must not see another connection before the report.
    let held = dispatch(&mut attack, class);
    if let Err(error) = &held {
        attack.report.failure = Some(error.to_string());
    }
    attack.note_state()?;
    println!("{}", serde_json::to_string(&attack.report)?);
    match class {
        // The device stays open.
        Class::Vanishes => std::process::exit(0),
        _ if cli.stay => loop {
            std::thread::park();
        },
        _ => device.close(),
    }
}

/// Runs an attack. Returns the link, whose pages the backend may still use.
fn dispatch(attack: &mut Attack<'_>, class: Class) -> Outcome<Option<Link>> {
    match class {
        Class::ProducerAhead => rings::producer_ahead(attack),
        Class::ProducerBack => rings::producer_back(attack),
        Class::RxProducerAhead => rings::rx_producer_ahead(attack),
        Class::SharedRing => rings::shared_ring(attack),
        Class::TooManySlots => slots::too_many(attack),
        Class::FatalSlots => slots::fatal(attack),
        Class::UnfinishedChain => slots::unfinished(attack),
        Class::CrossingPage => slots::crossing_page(attack),
        Class::OversizedFragments => slots::oversized(attack),
        Class::RuntFrames => slots::runts(attack),
        Class::EmptyFragments => slots::empty(attack),
        Class::SplitHeaders => slots::split_headers(attack),
        Class::UnknownExtra => offloads::unknown_extra(attack),
        Class::EmptySegments => offloads::empty_segments(attack),
        Class::WrongSegments => offloads::wrong_segments(attack),
        Class::NoChecksum => offloads::no_checksum(attack),
        Class::TxBadGrants => grants::transmit(attack),
        Class::RxBadGrants => grants::receive(attack),
        Class::BadRings => grants::rings(attack),
        Class::RewrittenSlots => races::rewritten_slots(attack),
        Class::EventStorm => races::event_storm(attack),
        Class::Flood => races::flood(attack),
        Class::UnknownFlood => races::unknown_flood(attack),
        Class::MulticastFlood => races::multicast_flood(attack),
        Class::MalformedFlood => races::malformed_flood(attack),
        Class::ControlFlood => control::flood(attack),
        Class::ManyAddresses => races::many_addresses(attack),
        Class::DoledBuffers => receive::doled_buffers(attack),
        Class::StoppingReceiver => receive::stopping_receiver(attack),
        Class::StateStorm => handshake::state_storm(attack),
        Class::StateJumps => handshake::state_jumps(attack),
        Class::QueueCounts => handshake::queue_counts(attack),
        Class::BadKeys => handshake::bad_keys(attack),
        Class::BadPorts => handshake::bad_ports(attack),
        Class::ConnectsTwice => handshake::connects_twice(attack),
        Class::ControlNonsense => control::nonsense(attack),
        Class::Vanishes => leaving::vanishes(attack),
        Class::Killed => leaving::killed(attack),
        Class::Cycles => leaving::cycles(attack),
        Class::ForgedProducer => restart::producer(attack),
        Class::ForgedResponses => restart::responses(attack),
        Class::RepeatedResponses => restart::repeated_responses(attack),
        Class::HalfPublished => restart::half_published(attack),
        Class::ForgedSlots => restart::slots(attack),
        Class::RevokedRing => restart::revoked_ring(attack),
        Class::RevokedFrames => restart::revoked_frames(attack),
    }
}

/// A running attack and its report.
struct Attack<'a> {
    cli: &'a Cli,
    device: &'a HostileDevice,
    began: Instant,
    report: Report,
}

impl Attack<'_> {
    /// Checks that the interface is still up after the attack: an echo comes back.
    fn prove(&mut self, mut link: Link) -> Outcome<Option<Link>> {
        link.echo(self.device)?;
        self.report.echoes += 1;
        Ok(Some(link))
    }

    /// Adds a line to the report.
    fn did(&mut self, what: impl Into<String>) {
        self.report.did.push(what.into());
    }

    /// How long an attack that repeats runs.
    fn duration(&self) -> Duration {
        Duration::from_secs(self.cli.seconds)
    }

    fn note_state(&mut self) -> Outcome {
        self.report.backend = self.device.backend_state()?.map(|state| state as u8);
        let elapsed = self.began.elapsed().as_millis();
        self.report.milliseconds = u64::try_from(elapsed).unwrap_or(u64::MAX);
        Ok(())
    }
}

/// Attacks the backend of one of this domain's interfaces, and reports the result.
#[derive(Parser)]
#[command(version)]
pub struct Cli {
    /// The attack.
    #[arg(required_unless_present = "list", hide_possible_values = true)]
    pub class: Option<Class>,
    /// List all attacks and exit.
    #[arg(long)]
    pub list: bool,
    /// The number of the domain's interface.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub vif: u32,
    /// How long an attack that repeats runs.
    #[arg(long, value_name = "S", default_value_t = 2)]
    pub seconds: u64,
    /// How often an attack that counts repeats.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub count: u32,
    /// This guest's address.
    #[arg(long, value_name = "ADDRESS", default_value = "10.0.0.3")]
    pub address: Ipv4Addr,
    /// The address of the host that answers echoes.
    #[arg(long, value_name = "ADDRESS", default_value = "10.0.0.1")]
    pub peer: Ipv4Addr,
    /// Keep the device as it is after the report, until killed; otherwise close it.
    #[arg(long)]
    pub stay: bool,
}

//! Other doors than a paravirtual guest's: the port of a virtual machine, and a context of a card.

use std::net::Ipv4Addr;

use lab::{Children, CpuMeter, Iperf, Throughput};

use crate::error::{Error, Result};
use crate::repro::server::{PEER, address};
use crate::repro::willmann07;
use crate::testbed::{CONGESTION, Case, GuestKind, Setup, Testbed, measure};

/// A stream through each.
pub struct Ports {
    /// Between two guests with virtio devices, whose rings pvnet serves over vhost-user.
    pub machines: Throughput,
    /// From a guest's context of a card to the wire.
    pub card: Throughput,
    /// CPUs that the daemon used meanwhile: guest and card need it only to agree on memory and descriptors.
    pub daemon: f64,
}

/// Measures both.
pub fn ports(seconds: u32, step: impl Fn(&str)) -> Result<Ports> {
    step("start two guests with virtio devices");
    let testbed = Testbed::start(&Setup { kind: GuestKind::Virtio, ..Setup::default() })?;
    step("a TCP stream between virtual machines' ports");
    let machines = measure(&testbed, || Case::TCP.run(&testbed, seconds, 0, Some(CONGESTION)))?;
    drop(testbed);
    step("start a card, and a guest with a context of it");
    let server = willmann07::on_a_card()?;
    step("a TCP stream from the context to the wire");
    let no_daemon = || Error::Failed("the card has no daemon".to_owned());
    let daemon = server.daemon().ok_or_else(no_daemon)?;
    let meter = CpuMeter::start(&[daemon], Children::Ignored)?;
    let to = Ipv4Addr::from(address(0, PEER));
    let card = Iperf::tcp(server.first(), &server.peer, to, seconds);
    let card = card.congestion(Some(CONGESTION)).run()?;
    let usage = meter.read()?;
    // Fails if the context was taken away.
    server.status()?;
    Ok(Ports { machines: machines.result, card, daemon: usage.cpus(usage.of(daemon)) })
}

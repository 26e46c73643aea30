//! Checks that the kernel cannot forward frames between the guests: it has no link between them.

use std::net::Ipv4Addr;

use lab::{Children, CpuMeter, Iperf, Namespace, Throughput};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::repro::server::{PEER, address};
use crate::repro::willmann07;
use crate::testbed::{CONGESTION, Case, GuestKind, Setup, Testbed, measure};

/// The links of one guest's namespace, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Links {
    /// The namespace.
    pub namespace: String,
    /// `lo`, `eth0 (tap)`, and links that are down.
    pub links: Vec<String>,
}

impl Links {
    /// Checks a namespace. Fails if frames could leave it by a link other than `tap`: that one's other end is the guest's process.
    pub fn of(namespace: &Namespace, tap: &str) -> Result<Self> {
        let json = namespace.ip(&["-d", "-j", "link", "show"])?;
        let links = check(&json, tap)
            .map_err(|reason| Error::Failed(format!("{}: {reason}", namespace.name())))?;
        Ok(Self { namespace: namespace.name().to_owned(), links })
    }
}

/// The links in the output of `ip -d -j link show`. An error names the link that should not be there.
fn check(json: &str, tap: &str) -> std::result::Result<Vec<String>, String> {
    let links: Vec<Value> =
        serde_json::from_str(json).map_err(|error| format!("`ip -d -j link show`: {error}"))?;
    let mut seen = Vec::new();
    let mut tap_seen = false;
    for link in &links {
        let name = link["ifname"].as_str().unwrap_or("?");
        let kind = link["linkinfo"]["info_kind"].as_str().unwrap_or_default();
        let up =
            link["flags"].as_array().is_some_and(|flags| flags.iter().any(|flag| flag == "UP"));
        // Each end of a veth names the other one, and a device on top of another names that.
        let joined = !link["link"].is_null() || !link["link_netnsid"].is_null();
        let is_tap = kind == "tun" && link["linkinfo"]["info_data"]["type"] == "tap";
        if link["link_type"] == "loopback" {
            seen.push(name.to_owned());
        } else if name == tap && is_tap && !joined {
            tap_seen = true;
            seen.push(format!("{name} (tap)"));
        } else if !up && !joined {
            // Some kernels put fallback tunnels into every namespace.
            seen.push(format!("{name} (down)"));
        } else {
            return Err(format!("{name} is a link that the kernel can forward by"));
        }
    }
    if tap_seen { Ok(seen) } else { Err(format!("{tap} is not a tap device")) }
}

/// A TCP stream by each kind of port.
pub struct Ports {
    /// Between two guests with virtio devices, whose rings pvnet serves over vhost-user.
    pub machines: Throughput,
    /// From a guest's context of a card to the wire.
    pub card: Throughput,
    /// The CPUs that the daemon used during the card's stream: guest and card need it only to agree on memory and
    /// descriptors.
    pub daemon: f64,
}

/// Measures a stream by each kind of port.
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
    // This fails if the context was taken away.
    server.status()?;
    Ok(Ports { machines: machines.result, card, daemon: usage.cpus(usage.of(daemon)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    // The relevant parts of iproute2 6.1's output.
    const LO: &str = r#"{"ifname":"lo","flags":["LOOPBACK","UP"],"link_type":"loopback"}"#;
    const TAP: &str = r#"{"ifname":"eth0","flags":["UP"],"link_type":"ether",
        "linkinfo":{"info_kind":"tun","info_data":{"type":"tap","pi":false}}}"#;
    const VETH: &str = r#"{"ifname":"eth0","flags":["UP"],"link_type":"ether","link_netnsid":0,
        "link_index":2,"linkinfo":{"info_kind":"veth"}}"#;
    const TUNNEL: &str = r#"{"ifname":"sit0","flags":["NOARP"],"link_type":"sit",
        "linkinfo":{"info_kind":"sit"}}"#;

    fn seen(links: &[&str]) -> std::result::Result<Vec<String>, String> {
        check(&format!("[{}]", links.join(",")), "eth0")
    }

    #[test]
    fn a_guest_has_its_loopback_and_its_tap() {
        assert_eq!(seen(&[LO, TAP]).unwrap(), ["lo", "eth0 (tap)"]);
        assert_eq!(seen(&[LO, TUNNEL, TAP]).unwrap(), ["lo", "sit0 (down)", "eth0 (tap)"]);
    }

    #[test]
    fn any_other_link_out_of_the_namespace_is_an_error() {
        for links in [&[LO][..], &[LO, VETH], &[TAP, VETH], &[TAP, &TUNNEL.replace("NOARP", "UP")]]
        {
            assert!(seen(links).is_err(), "{links:?}");
        }
        assert!(check("", "eth0").is_err());
    }
}

//! The logical network: its switches, routers and ports in the central host's databases.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use lab::Namespace;
use xenlab::Result;

use crate::central::{Central, PHYSICAL};
use crate::guest::reaches;
use crate::plan::Plan;
use crate::programs::until;
use crate::testbed::{A, P12, P21, Testbed};

impl Central {
    /// Makes two logical switches and a router between them.
    pub(crate) fn make_switches(&self) -> Result<()> {
        self.north("lr-add r")?;
        for switch in [1, 2] {
            let mac = format!("0e:00:00:00:0{switch}:01");
            self.north(&format!(
                "-- ls-add s{switch} -- lrp-add r r-s{switch} {mac} 10.{switch}.0.1/24 -- lsp-add s{switch} s{switch}-r \
                 -- lsp-set-type s{switch}-r router -- lsp-set-addresses s{switch}-r router \
                 -- lsp-set-options s{switch}-r router-port=r-s{switch}"
            ))?;
        }
        Ok(())
    }

    /// Adds a guest's logical port.
    pub(crate) fn add_port(&self, plan: &Plan) -> Result<()> {
        let switch = format!("s{}", plan.address.octets()[1]);
        let addresses = format!("{} {}", plan.mac, plan.address);
        let port = plan.port.as_str();
        self.north_words(&["lsp-add", &switch, port])?;
        self.north_words(&["lsp-set-addresses", port, &addresses])?;
        self.north_words(&["lsp-set-port-security", port, &addresses]).map(drop)
    }

    /// Waits until the southbound database has a host.
    pub(crate) fn until_known(&self, name: &str) -> Result<()> {
        until("a host at the central one", || {
            let found = self.south(&format!("--bare --columns=name find chassis name={name}"))?;
            Ok(found.trim() == name)
        })
    }

    /// Removes a host that is gone for good. Otherwise `sync` would wait for it.
    pub(crate) fn forget(&self, name: &str) -> Result<()> {
        self.south(&format!("chassis-del {name}")).map(drop)
    }

    /// Waits until all hosts have applied the northbound database.
    pub(crate) fn sync(&self) -> Result<()> {
        self.north("--wait=hv sync").map(drop)
    }

    /// Waits until a guest's logical port is bound on a host.
    pub(crate) fn until_bound(&self, guest: &Plan, name: &str) -> Result<()> {
        let port = &guest.port;
        self.north(&format!("wait-until logical_switch_port {port} up=true"))?;
        let chassis = format!("--bare --columns=_uuid find chassis name={name}");
        let uuid = self.south(&chassis)?.trim().to_owned();
        until("the port's new host", || {
            let found = format!("--bare --columns=chassis find port_binding logical_port={port}");
            Ok(self.south(&found)?.trim() == uuid)
        })?;
        self.sync()
    }
}

// A network beyond OVN's, and the router's gateway to it.
//
// ```text
//  guest p21 ── host b ══ tunnel ══ host a: the gateway, source NAT ──┐
//  guest p12 ── its own host, which has its address outside ──────────┴── the hosts' network ── outside
// ```

/// The router outside, through which everything else is reached.
const NEXT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The gateway's address, and the source of packets that guests send outside.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// A guest's address outside.
const FLOATING: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 12);
/// A server beyond the next router. It has no route to guests' own addresses.
const SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
/// Bytes of a file.
const FILE: u64 = 4 << 20;

impl Central {
    /// Makes the outside namespace: in the hosts' network, but with other addresses.
    fn make_outside(&self) -> Result<Namespace> {
        let outside = Namespace::create("ovnlab")?;
        let own = outside.name();
        let peer = ["type", "veth", "peer", "name", "eth0", "netns", own];
        self.node.namespace.ip(&[&["link", "add", "uo"][..], &peer].concat())?;
        self.node.namespace.ip(&["link", "set", "uo", "master", "u", "up"])?;
        // Open vSwitch takes no frames with unfinished checksums.
        let mut ethtool = outside.exec("ethtool")?;
        ethtool.args(["-K", "eth0", "tx", "off"]);
        lab::run(ethtool, Duration::from_secs(20))?;
        outside.ip(&["address", "add", &format!("{NEXT}/24"), "dev", "eth0"])?;
        outside.ip(&["address", "add", &format!("{SERVER}/32"), "dev", "lo"])?;
        outside.ip(&["link", "set", "eth0", "up"])?;
        Ok(outside)
    }

    /// Gives the router a gateway on a host, with source NAT for all guests, and gives a guest an outside address on its own host.
    fn make_gateway(&self, host: &str, guest: &Plan) -> Result<()> {
        let (own, port) = (guest.address, &guest.port);
        self.north(&format!(
            "-- ls-add ext -- lsp-add ext ext-net -- lsp-set-type ext-net localnet -- lsp-set-addresses ext-net unknown \
             -- lsp-set-options ext-net network_name={PHYSICAL} \
             -- lrp-add r r-ext 0e:00:00:00:03:01 {GATEWAY}/24 -- lrp-set-gateway-chassis r-ext {host} \
             -- lsp-add ext ext-r -- lsp-set-type ext-r router -- lsp-set-addresses ext-r router \
             -- lsp-set-options ext-r router-port=r-ext nat-addresses=router -- lr-route-add r 0.0.0.0/0 {NEXT} \
             -- lr-nat-add r snat {GATEWAY} 10.0.0.0/8 \
             -- lr-nat-add r dnat_and_snat {FLOATING} {own} {port} 0e:00:00:00:03:12"
        ))?;
        self.sync()
    }
}

/// Files from guests to the outside, and back to one of them. The receivers see the translated addresses.
pub(crate) fn run(testbed: &mut Testbed) -> Result<(String, bool)> {
    let outside = testbed.central.make_outside()?;
    testbed.central.make_gateway(testbed.hosts[A].name, &testbed.guests[P12].plan)?;
    let [one, other] = [P12, P21].map(|guest| &testbed.guests[guest]);
    let pings = reaches(&other.namespace, SERVER, &[])? && reaches(&outside, FLOATING, &[])?;
    let out = lab::transfer_file(&other.namespace, &outside, SERVER, FILE, 8)?;
    let own = lab::transfer_file(&one.namespace, &outside, SERVER, FILE, 9)?;
    let addresses = (IpAddr::from(one.plan.address), IpAddr::from(FLOATING));
    let back = lab::transfer_translated_file(&outside, &one.namespace, addresses, FILE, 10)?;
    testbed.outside = Some(outside);
    let sources = [out.source, own.source, back.source];
    let right = sources == [GATEWAY, FLOATING, NEXT].map(IpAddr::from);
    let seen = format!("files from {} and {}, and one to {FLOATING}", out.source, own.source);
    Ok((seen, pings && right))
}

/// Whether the guest with an outside address is reached at it.
pub(crate) fn reaches_guest(testbed: &Testbed) -> Result<bool> {
    testbed.outside.as_ref().map_or(Ok(false), |outside| reaches(outside, FLOATING, &[]))
}

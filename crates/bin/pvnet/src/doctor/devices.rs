//! Network namespaces, taps, and uplinks over a NIC. Everything is made in a namespace of the doctor's.

use host::Namespace;
use shm::{PageSize, Region};
use uplink::tap::{Tap, TapOffload, TapQueue};
use uplink::{Macvtap, Steering, Xdp, XdpNic, packet};

use super::{Check, text};

const TAP: &str = "pvdoctor0";
const BRIDGE: &str = "pvdoctor3";
const LEFT: &str = "pvdoctor1";
const RIGHT: &str = "pvdoctor2";

const ROOT: &str = "run as root, or in a user namespace: pvnet rootless";
const TUN: &str = "modprobe tun; a container needs /dev/net/tun";

/// Checks for guests in namespaces.
pub(super) fn guests() -> Vec<Check> {
    let namespace = namespace();
    let tap = in_it(&namespace, || open_tap(1));
    vec![
        Check::needed("network namespaces", made(&namespace), ROOT),
        Check::needed("taps with offloads", tap.map(|_| "one was made".to_owned()), TUN),
        Check::wished("iproute2 and setpriv", tools(), "apt-get install iproute2 util-linux"),
    ]
}

/// Checks for uplinks with a tap.
pub(super) fn uplinks() -> Vec<Check> {
    let namespace = namespace();
    let taps = in_it(&namespace, || open_tap(2));
    let steering = in_it(&namespace, || {
        Steering::attach(&open_tap(2)?[0], 1).map_err(text)?;
        Ok("TUNSETSTEERINGEBPF took a program".to_owned())
    });
    let bridge = namespace.as_ref().map_err(Clone::clone).and_then(|namespace| {
        namespace.ip(&["link", "add", BRIDGE, "type", "bridge"]).map_err(text)?;
        namespace.ip(&["link", "set", TAP, "master", BRIDGE]).map_err(text)?;
        Ok("one took the tap".to_owned())
    });
    vec![
        Check::needed("taps with several queues", taps.map(|_| "one was made".to_owned()), TUN),
        Check::wished(
            "steering of a tap",
            steering,
            "queues = \"per-guest\" of a tap needs CAP_BPF, CAP_NET_ADMIN and CONFIG_BPF_SYSCALL",
        ),
        Check::wished(
            "a Linux bridge",
            bridge,
            "bridge = \"br0\" of an uplink, and Xen's vif-bridge: modprobe bridge, or CONFIG_BRIDGE",
        ),
    ]
}

/// Checks for uplinks over a NIC, with a pair of virtual ones.
pub(super) fn nics() -> Vec<Check> {
    let pair = namespace().and_then(|namespace| {
        namespace
            .ip(&["link", "add", LEFT, "type", "veth", "peer", "name", RIGHT])
            .map_err(text)?;
        namespace.ip(&["link", "set", LEFT, "up"]).map_err(text)?;
        namespace.ip(&["link", "set", RIGHT, "up"]).map_err(text)?;
        Ok(namespace)
    });
    let packets = in_it(&pair, || {
        packet::open(LEFT, 1).map_err(text)?;
        Ok("a socket was opened".to_owned())
    });
    let xdp = in_it(&pair, || {
        let xdp = Xdp::attach(LEFT, 1, 1).map_err(text)?;
        let len = 16 * PageSize::Small.bytes();
        let file = shm::create_memfd("doctor", 16, PageSize::Small).map_err(text)?;
        let region = Region::map(&file, 0, len).map_err(text)?;
        xdp.open(0, &region).map_err(text)?;
        Ok("a program and a socket were attached".to_owned())
    });
    let taken = in_it(&pair, || {
        let nic = XdpNic::open(LEFT, false).map_err(text)?;
        Ok(format!("a NIC with {} receive queues was taken over", nic.queues.len()))
    });
    let macvtap = macvtap(&pair);
    let steering = in_it(&pair, || {
        let lower = packet::interface_index(LEFT).map_err(text)?;
        Steering::attach_macvtap(lower, 1, 1).map_err(text)?;
        Ok("tcx took a program".to_owned())
    });
    vec![
        Check::needed("a pair of virtual NICs to try", made(&pair), ROOT),
        Check::wished(
            "AF_PACKET",
            packets,
            "kind = \"af-packet\" needs CONFIG_PACKET and CAP_NET_RAW",
        ),
        Check::wished(
            "macvtap",
            macvtap,
            "kind = \"macvtap\": modprobe macvtap, or CONFIG_MACVTAP",
        ),
        Check::wished(
            "steering of a macvtap",
            steering,
            "queues = \"per-guest\" of a macvtap needs Linux 6.6 (tcx)",
        ),
        Check::wished(
            "AF_XDP",
            taken,
            "kind = \"af-xdp\" needs CONFIG_XDP_SOCKETS, CAP_BPF and CAP_IPC_LOCK",
        ),
        Check::wished(
            "AF_XDP for guests",
            xdp,
            "kind = \"af-xdp\" with queues = \"per-guest\" needs CONFIG_XDP_SOCKETS and CAP_BPF",
        ),
    ]
}

fn macvtap(namespace: &Result<Namespace, String>) -> Result<String, String> {
    let namespace = namespace.as_ref().map_err(Clone::clone)?;
    let macvtap = crate::netns::MacvtapInterface::make(Some(namespace.name()), RIGHT)?;
    crate::netns::inside(Some(namespace.name()), || {
        Macvtap::open(macvtap.name(), 1, TapOffload::ALL).map_err(text)
    })?;
    Ok("one was made over a veth".to_owned())
}

fn namespace() -> Result<Namespace, String> {
    Namespace::create("pvdoctor").map_err(text)
}

fn made(namespace: &Result<Namespace, String>) -> Result<String, String> {
    namespace.as_ref().map(|_| "made and deleted".to_owned()).map_err(Clone::clone)
}

/// Does something in the namespace, if there is one.
fn in_it<T: Send>(
    namespace: &Result<Namespace, String>,
    work: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, String> {
    let namespace = namespace.as_ref().map_err(Clone::clone)?;
    crate::netns::inside(Some(namespace.name()), work)
}

fn open_tap(queues: usize) -> Result<Vec<TapQueue>, String> {
    Tap::open(TAP, queues, TapOffload::ALL).map_err(text)
}

fn tools() -> Result<String, String> {
    ["ip", "setpriv"]
        .into_iter()
        .try_for_each(|tool| host::command(tool).map(drop))
        .map_err(text)?;
    Ok("installed".to_owned())
}

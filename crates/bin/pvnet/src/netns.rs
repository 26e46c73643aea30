//! Interfaces in network namespaces, managed with iproute2.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use host::{LIMIT, Namespace};

use crate::program::text;

/// The namespace of this name, with what to do if there is none.
pub fn open(name: &str) -> Result<Namespace, String> {
    Namespace::open(name).map_err(|error| {
        format!(
            "{error}; if it is a guest's, start it with `pvnet guest {name}`, else make it with `ip netns add {name}`"
        )
    })
}

/// Does something inside a namespace, or where this thread is if there is none.
pub fn inside<T: Send>(
    namespace: Option<&str>,
    work: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, String> {
    let Some(name) = namespace else { return work() };
    // A panic costs one port, not the daemon.
    let work = || catch_unwind(AssertUnwindSafe(work));
    let done = open(name)?.inside(|| Ok(work())).map_err(text)?;
    done.unwrap_or_else(|_| Err(format!("a thread inside namespace {name} panicked")))
}

/// Gives a device its addresses and sets it up, in a namespace or on the host.
pub fn bring_up(namespace: Option<&str>, device: &str, addresses: &[String]) -> Result<(), String> {
    for address in addresses {
        let version = if address.contains(':') { "-6" } else { "-4" };
        // A new link-layer address needs no duplicate detection, which takes a second.
        let nodad: &[&str] = if version == "-6" { &["nodad"] } else { &[] };
        let add = [version, "address", "replace", address, "dev", device];
        ip_in(namespace, &[&add, nodad].concat())?;
    }
    ip_in(namespace, &["link", "set", device, "up"]).map(drop)
}

/// Puts a device into an existing bridge, with the bridge's MTU: the bridge would take a smaller one over.
pub fn join_bridge(namespace: Option<&str>, device: &str, bridge: &str) -> Result<(), String> {
    let place = namespace.map_or_else(String::new, |name| format!(" in namespace {name}"));
    let shown = ip_in(namespace, &["-json", "-details", "link", "show", "dev", bridge]);
    let shown = shown.map_err(|error| {
        format!("there is no bridge {bridge}{place} ({error}); make it first: ip link add {bridge} type bridge && ip link set {bridge} up")
    })?;
    let links: serde_json::Value =
        serde_json::from_str(&shown).map_err(|error| error.to_string())?;
    let kind = links[0]["linkinfo"]["info_kind"].as_str().unwrap_or("of another kind");
    if kind != "bridge" {
        return Err(format!(
            "{bridge}{place} is no Linux bridge ({kind}); into a bridge of Open vSwitch the tap goes by \
             `ovs-vsctl add-port {bridge} {device}`, with persistent = true and no bridge here"
        ));
    }
    if let Some(mtu) = links[0]["mtu"].as_u64() {
        ip_in(namespace, &["link", "set", device, "mtu", &mtu.to_string()])?;
    }
    ip_in(namespace, &["link", "set", device, "master", bridge]).map(drop)
}

/// Whether a device of the daemon's namespace is in no bridge, or in another one. A device that /sys lacks may be in any: after
/// `nsenter --net` /sys has those of another namespace.
pub fn is_outside(device: &str, bridge: &str) -> bool {
    let device = Path::new("/sys/class/net").join(device);
    let master = std::fs::read_link(device.join("master"));
    device.exists() && master.as_deref().ok().and_then(Path::file_name) != Some(bridge.as_ref())
}

/// A macvtap that has all frames of the NIC under it. It is deleted on drop.
pub struct MacvtapInterface {
    namespace: Option<String>,
    name: String,
}

impl MacvtapInterface {
    /// Makes it, and sets the NIC up. One that an earlier process has left behind is replaced.
    pub fn make(namespace: Option<&str>, device: &str) -> Result<Self, String> {
        let start = device.len().saturating_sub(DEVICE_PART);
        let name = format!("mvt-{}", device.get(start..).unwrap_or(device));
        let ip = |arguments: &[&str]| ip_in(namespace, arguments);
        let left = ip(&["-o", "link", "show", "dev", &name, "type", "macvtap"]);
        if left.is_ok_and(|text| !text.is_empty()) {
            ip(&["link", "delete", &name])?;
        }
        ip(&["link", "set", device, "up"])?;
        let add =
            ["link", "add", "link", device, "name", &name, "type", "macvtap", "mode", "passthru"];
        ip(&add).map_err(|error| {
            format!(
                "no macvtap over {device}: {error}; a device in a bridge, or with another macvtap or macvlan, cannot have \
                 one (ip link set {device} nomaster), and the kernel needs the module macvtap"
            )
        })?;
        let this = Self { namespace: namespace.map(ToOwned::to_owned), name };
        // The host's stack sends nothing through it.
        this.ip(&["link", "set", "dev", this.name(), "addrgenmode", "none"])?;
        Ok(this)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets it up, for all groups.
    pub fn bring_up(&self) -> Result<(), String> {
        self.ip(&["link", "set", "dev", self.name(), "allmulticast", "on", "up"]).map(drop)
    }

    fn ip(&self, arguments: &[&str]) -> Result<String, String> {
        ip_in(self.namespace.as_deref(), arguments)
    }
}

/// Runs ethtool in a namespace or on the host. Returns what it printed.
pub fn ethtool(namespace: Option<&str>, arguments: &[&str]) -> Result<String, String> {
    inside(namespace, || {
        let mut command = host::command("ethtool").map_err(text)?;
        command.args(arguments);
        host::run(command, LIMIT).map_err(text)
    })
}

/// Bytes of the NIC's name that a macvtap's name ends in: a name has 15.
const DEVICE_PART: usize = 11;

impl Drop for MacvtapInterface {
    fn drop(&mut self) {
        // It fails if it is gone already, with its NIC or its namespace.
        let _ = self.ip(&["link", "delete", self.name()]);
    }
}

/// Makes the stack, in the calling thread's namespace, answer ARP requests on a device for the device's own addresses
/// only, and ask with those. Two interfaces of a guest may be on one switch. By default Linux answers on each for
/// the addresses of all, so neighbours would send to whichever answered first, and the guard drops what comes back.
pub fn keep_addresses_apart(device: &str) -> Result<(), String> {
    for (key, value) in [("arp_ignore", "1"), ("arp_announce", "2")] {
        let path = format!("/proc/sys/net/ipv4/conf/{device}/{key}");
        std::fs::write(&path, value).map_err(|error| format!("{path}: {error}"))?;
    }
    Ok(())
}

/// Gives a device its link-layer address, in a namespace or on the host.
pub fn set_mac(namespace: Option<&str>, device: &str, mac: &str) -> Result<(), String> {
    ip_in(namespace, &["link", "set", device, "address", mac]).map(drop)
}

/// Sets a device's MTU, in a namespace or on the host.
pub fn set_mtu(namespace: Option<&str>, device: &str, mtu: u16) -> Result<(), String> {
    ip_in(namespace, &["link", "set", device, "mtu", &mtu.to_string()]).map(drop)
}

/// As [`ip`], in a namespace or on the host. `ip -n` would mount a `/sys` of the namespace, which a daemon that has given up
/// files cannot.
fn ip_in(namespace: Option<&str>, arguments: &[&str]) -> Result<String, String> {
    inside(namespace, || ip(arguments))
}

fn ip(arguments: &[&str]) -> Result<String, String> {
    host::ip(arguments).map_err(text)
}

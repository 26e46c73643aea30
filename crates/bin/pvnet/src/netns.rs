//! Network namespaces and their interfaces, managed with iproute2.

use std::path::PathBuf;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A guest's namespace, named after it. It is deleted on drop if this process created it.
pub struct GuestNamespace {
    name: String,
    made: bool,
}

impl GuestNamespace {
    /// Creates the namespace, or uses the existing one.
    pub fn make(name: &str) -> Result<Self, String> {
        lab::preflight(&[]).map_err(|error| error.to_string())?;
        let made = !path(name).exists();
        if made {
            ip(&["netns", "add", name])?;
        }
        let namespace = Self { name: name.to_owned(), made };
        ip(&["-n", name, "link", "set", "lo", "up"])?;
        Ok(namespace)
    }
}

impl Drop for GuestNamespace {
    fn drop(&mut self) {
        if self.made
            && let Err(error) = ip(&["netns", "delete", &self.name])
        {
            eprintln!("pvnet: {error}");
        }
    }
}

fn path(name: &str) -> PathBuf {
    PathBuf::from("/run/netns").join(name)
}

/// Moves the calling thread, and its later children, into a namespace.
pub fn enter(name: &str) -> Result<(), String> {
    let file = std::fs::File::open(path(name)).map_err(|error| {
        format!(
            "no network namespace {name} ({error}); if it is a guest's, start it with \
             `pvnet guest {name}`, else make it with `ip netns add {name}`"
        )
    })?;
    move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), Some(LinkNameSpaceType::Network))
        .map_err(|errno| format!("cannot enter namespace {name}: {errno}; run as root"))
}

/// Does something inside a namespace, or where this thread is if there is none.
pub fn inside<T: Send>(
    namespace: Option<&str>,
    work: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, String> {
    let Some(name) = namespace else { return work() };
    // A thread that enters a namespace stays there, so this is a thread that ends afterwards.
    let inside = || enter(name).and_then(|()| work());
    std::thread::scope(|scope| scope.spawn(inside).join())
        .unwrap_or_else(|_| Err(format!("a thread inside namespace {name} panicked")))
}

/// Gives a device its addresses and sets it up, in a namespace or on the host.
pub fn bring_up(namespace: Option<&str>, device: &str, addresses: &[String]) -> Result<(), String> {
    let inside: Vec<&str> = namespace.map(|name| vec!["-n", name]).unwrap_or_default();
    for address in addresses {
        let version = if address.contains(':') { "-6" } else { "-4" };
        // A new link-layer address needs no duplicate detection, which takes a second.
        let nodad: &[&str] = if version == "-6" { &["nodad"] } else { &[] };
        let add = [version, "address", "replace", address, "dev", device];
        ip(&[&inside[..], &add, nodad].concat())?;
    }
    ip(&[&inside[..], &["link", "set", device, "up"]].concat()).map(drop)
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
    let inside: Vec<&str> = namespace.map(|name| vec!["-n", name]).unwrap_or_default();
    ip(&[&inside[..], &["link", "set", device, "address", mac]].concat()).map(drop)
}

fn ip(arguments: &[&str]) -> Result<String, String> {
    let mut command = lab::command("ip").map_err(|error| error.to_string())?;
    command.args(arguments);
    lab::run(command, std::time::Duration::from_secs(20)).map_err(|error| error.to_string())
}

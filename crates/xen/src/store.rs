//! Finding the store.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect as join};

use crate::device::{Device, OpenError, open_below, refused};

/// Where xenstored listens, in the domain that it runs in.
const SOCKETS: [&str; 2] = ["run/xenstored/socket", "var/run/xenstored/socket"];
/// What says whether this domain controls others (and so may be the store's own).
const CAPABILITIES: &str = "proc/xen/capabilities";
/// Left by whoever started a domain for the store.
const STORE_DOMAIN: &str = "run/xen/xenstored.pid";

/// A connection to the store, for [`XsClient::new`](hypervisor::xs_client::XsClient::new): to
/// xenstored itself where it runs in this domain, else over `/dev/xen/xenbus`.
///
/// # Errors
/// When there is no Xen, nobody serves the store, or this user may not speak to it.
pub fn connect() -> Result<OwnedFd, OpenError> {
    connect_below(Path::new("/"))
}

fn connect_below(root: &Path) -> Result<OwnedFd, OpenError> {
    for path in SOCKETS.map(|path| root.join(path)) {
        match connect_socket(&path) {
            Ok(stream) => return Ok(stream),
            // No socket, or a dead server's.
            Err(Errno::NOENT | Errno::CONNREFUSED) => {}
            Err(error) => return Err(refused(path, error)),
        }
    }
    if awaits_its_own_store(root) {
        return Err(OpenError::NoStore);
    }
    open_below(root, Device::Xenbus)
}

fn connect_socket(path: &Path) -> rustix::io::Result<OwnedFd> {
    let stream = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    join(&stream, &SocketAddrUnix::new(path)?)?;
    Ok(stream)
}

/// Whether this is the control domain and has no store. The kernel's device would be there, and
/// make every request wait until somebody starts one.
fn awaits_its_own_store(root: &Path) -> bool {
    let capabilities = fs::read_to_string(root.join(CAPABILITIES)).unwrap_or_default();
    capabilities.contains("control_d") && !root.join(STORE_DOMAIN).exists()
}

/// Connects by the kernel's device, wherever the store runs.
///
/// # Errors
/// As [`connect`].
pub fn connect_by_device() -> Result<OwnedFd, OpenError> {
    open_below(&PathBuf::from("/"), Device::Xenbus)
}

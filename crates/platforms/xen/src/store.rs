//! Finding the store.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect as join};

use crate::device::{Device, OpenError, open, open_below, refused};

/// Where xenstored listens, in the domain that it runs in.
const SOCKETS: [&str; 2] = ["run/xenstored/socket", "var/run/xenstored/socket"];
/// Says whether this is the control domain, which may run the store itself.
const CAPABILITIES: &str = "proc/xen/capabilities";
/// Exists if the store runs in a separate domain.
const STORE_DOMAIN: &str = "run/xen/xenstored.pid";

/// A connection to the store, for `xenstore::Client::new`: to xenstored's socket if it runs in this
/// domain, else through `/dev/xen/xenbus`.
///
/// # Errors
/// When there is no Xen, no store runs, or this user may not connect to it.
pub fn connect() -> Result<OwnedFd, OpenError> {
    connect_below(Path::new("/"))
}

/// Whether xenstored runs in this domain, so that [`connect`] connects to a socket.
#[must_use]
pub fn has_socket() -> bool {
    SOCKETS.iter().any(|path| Path::new("/").join(path).exists())
}

fn connect_below(root: &Path) -> Result<OwnedFd, OpenError> {
    // Only a socket that exists is tried: without one, the process may not be allowed to connect to sockets.
    for path in SOCKETS.map(|path| root.join(path)).into_iter().filter(|path| path.exists()) {
        match connect_socket(&path) {
            Ok(stream) => return Ok(stream),
            // There is no socket, or its server is dead.
            Err(Errno::NOENT | Errno::CONNREFUSED) => {}
            // The server accepts no connections: another attempt would block.
            Err(Errno::AGAIN) => return Err(OpenError::NoStore),
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
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    join(&stream, &SocketAddrUnix::new(path)?)?;
    rustix::io::ioctl_fionbio(&stream, false)?;
    Ok(stream)
}

/// Whether this is the control domain without a store. The kernel's device exists then, but every
/// request waits until a store starts.
fn awaits_its_own_store(root: &Path) -> bool {
    let capabilities = fs::read_to_string(root.join(CAPABILITIES)).unwrap_or_default();
    capabilities.contains("control_d") && !root.join(STORE_DOMAIN).exists()
}

/// Connects through the kernel's device, wherever the store runs.
pub fn connect_by_device() -> Result<OwnedFd, OpenError> {
    open(Device::Xenbus)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::device::tests::Root;

    #[test]
    fn the_socket_of_xenstored_is_used_if_it_exists() {
        let root = Root::new("store-socket").with_hypervisor("xen");
        fs::create_dir_all(root.path().join("run/xenstored")).unwrap();
        let socket = root.path().join(SOCKETS[0]);
        let server = UnixListener::bind(&socket).unwrap();
        let stream = connect_below(root.path()).unwrap();
        server.accept().unwrap();
        drop((stream, server));
        // A server that died leaves its socket.
        fs::create_dir_all(root.path().join("proc/xen")).unwrap();
        fs::write(root.path().join(CAPABILITIES), "control_d\n").unwrap();
        assert!(matches!(connect_below(root.path()), Err(OpenError::NoStore)));
    }

    #[test]
    fn a_xenstored_that_does_not_accept_fails_at_once() {
        let root = Root::new("store-stopped").with_hypervisor("xen");
        fs::create_dir_all(root.path().join("run/xenstored")).unwrap();
        let server = UnixListener::bind(root.path().join(SOCKETS[0])).unwrap();
        rustix::net::listen(&server, 0).unwrap();
        let _first = connect_below(root.path()).unwrap();
        assert!(matches!(connect_below(root.path()), Err(OpenError::NoStore)));
    }

    #[test]
    fn without_xenstored_the_kernels_device_is_used() {
        let root = Root::new("store-device").with_hypervisor("xen");
        let error = connect_below(root.path()).unwrap_err().to_string();
        assert!(error.contains("dev/xen/xenbus"), "{error}");
        fs::create_dir_all(root.path().join("dev/xen")).unwrap();
        fs::write(root.path().join("dev/xen/xenbus"), "").unwrap();
        assert!(connect_below(root.path()).is_ok());
    }

    #[test]
    fn the_control_domain_does_not_wait_for_a_store_that_is_not_running() {
        let root = Root::new("store-none").with_hypervisor("xen");
        fs::create_dir_all(root.path().join("proc/xen")).unwrap();
        fs::write(root.path().join(CAPABILITIES), "control_d\n").unwrap();
        fs::create_dir_all(root.path().join("dev/xen")).unwrap();
        fs::write(root.path().join("dev/xen/xenbus"), "").unwrap();
        let error = connect_below(root.path()).unwrap_err();
        assert!(error.to_string().contains("systemctl start xenstored"), "{error}");
        // A store in a separate domain has no socket here.
        fs::create_dir_all(root.path().join("run/xen")).unwrap();
        fs::write(root.path().join(STORE_DOMAIN), "domid:1\n").unwrap();
        assert!(connect_below(root.path()).is_ok());
    }
}

//! Opening Linux's Xen devices, and what to do when one is not there.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Why a Xen device could not be opened, in one line that says what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no Xen below this kernel.
    #[error(
        "this machine is not a domain of Xen (/sys/hypervisor/type does not say \"xen\"): boot it \
         under Xen, or use platform = \"machine\""
    )]
    NotXen,
    /// The device's driver is not loaded.
    #[error("{} is not there: load its driver with `modprobe {module}`", path.display())]
    NoDriver {
        /// The device.
        path: PathBuf,
        /// The kernel's module.
        module: &'static str,
    },
    /// This user may not open the device.
    #[error("{}: permission denied: run as root", path.display())]
    Denied {
        /// The device or socket.
        path: PathBuf,
    },
    /// No store runs.
    #[error("the store does not answer: start it with `systemctl start xenstored`")]
    NoStore,
    /// Anything else.
    #[error("{}: {source}", path.display())]
    Os {
        /// The device or socket.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// A device of `/dev/xen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// Pages that others grant.
    Gntdev,
    /// Pages granted to others.
    Gntalloc,
    /// Event channels.
    Evtchn,
    /// The store, over the kernel's connection to it.
    Xenbus,
}

impl Device {
    fn path(self) -> &'static str {
        match self {
            Self::Gntdev => "dev/xen/gntdev",
            Self::Gntalloc => "dev/xen/gntalloc",
            Self::Evtchn => "dev/xen/evtchn",
            Self::Xenbus => "dev/xen/xenbus",
        }
    }

    /// The driver's module; none for the store, whose driver is part of the kernel.
    fn module(self) -> Option<&'static str> {
        match self {
            Self::Gntdev => Some("xen-gntdev"),
            Self::Gntalloc => Some("xen-gntalloc"),
            Self::Evtchn => Some("xen-evtchn"),
            Self::Xenbus => None,
        }
    }
}

pub(crate) fn open(device: Device) -> Result<OwnedFd, OpenError> {
    open_below(Path::new("/"), device)
}

/// As [`open`], below another root directory.
pub(crate) fn open_below(root: &Path, device: Device) -> Result<OwnedFd, OpenError> {
    let path = root.join(device.path());
    // No call may block in a device: events are polled for.
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open(&path, flags, Mode::empty()).map_err(|error| match (error, device.module()) {
        _ if !is_xen(root) => OpenError::NotXen,
        (Errno::NOENT | Errno::NODEV | Errno::NXIO, Some(module)) => {
            OpenError::NoDriver { path, module }
        }
        // The device exists, but the kernel has no store.
        (Errno::NOENT, None) if path.exists() => OpenError::NoStore,
        (error, _) => refused(path, error),
    })
}

/// What an error at opening `path` means.
pub(crate) fn refused(path: PathBuf, error: Errno) -> OpenError {
    match error {
        Errno::ACCESS | Errno::PERM => OpenError::Denied { path },
        error => OpenError::Os { path, source: error.into() },
    }
}

/// Whether the kernel runs on Xen: sysfs says so, or the devices exist.
fn is_xen(root: &Path) -> bool {
    match std::fs::read_to_string(root.join("sys/hypervisor/type")) {
        Ok(kind) => kind.trim() == "xen",
        Err(_) => root.join("dev/xen").is_dir(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use super::*;

    /// A temporary directory used as the root.
    pub(crate) struct Root(PathBuf);

    impl Root {
        pub(crate) fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("pvnet-xen-{name}-{}", std::process::id()));
            fs::create_dir_all(path.join("sys/hypervisor")).unwrap();
            fs::create_dir_all(path.join("dev")).unwrap();
            Self(path)
        }

        pub(crate) fn path(&self) -> &Path {
            &self.0
        }

        pub(crate) fn with_hypervisor(self, kind: &str) -> Self {
            fs::write(self.0.join("sys/hypervisor/type"), kind).unwrap();
            self
        }

        fn error(&self, device: Device) -> String {
            let message = open_below(&self.0, device).unwrap_err().to_string();
            assert!(!message.contains('\n'), "{message}");
            message.replace(&format!("{}/", self.0.display()), "/")
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn without_xen_the_error_says_so() {
        let devices = [Device::Gntdev, Device::Gntalloc, Device::Evtchn, Device::Xenbus];
        for root in [Root::new("none"), Root::new("kvm").with_hypervisor("kvm\n")] {
            for device in devices {
                assert!(root.error(device).contains("not a domain of Xen"), "{device:?}");
            }
        }
    }

    #[test]
    fn a_missing_driver_is_named() {
        let root = Root::new("bare").with_hypervisor("xen\n");
        for (device, expected) in [
            (
                Device::Gntdev,
                "/dev/xen/gntdev is not there: load its driver with `modprobe xen-gntdev`",
            ),
            (
                Device::Gntalloc,
                "/dev/xen/gntalloc is not there: load its driver with `modprobe xen-gntalloc`",
            ),
            (
                Device::Evtchn,
                "/dev/xen/evtchn is not there: load its driver with `modprobe xen-evtchn`",
            ),
        ] {
            assert_eq!(root.error(device), expected);
        }
    }

    #[test]
    fn devices_are_tried_if_the_hypervisors_name_is_unknown() {
        let root = Root::new("unnamed");
        fs::create_dir(root.0.join("dev/xen")).unwrap();
        assert!(root.error(Device::Gntdev).contains("modprobe xen-gntdev"));
        fs::write(root.0.join("dev/xen/gntdev"), "").unwrap();
        assert!(open_below(&root.0, Device::Gntdev).is_ok());
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let denied = refused(PathBuf::from("/dev/xen/evtchn"), Errno::ACCESS);
        assert_eq!(denied.to_string(), "/dev/xen/evtchn: permission denied: run as root");
    }
}

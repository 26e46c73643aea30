//! What a Xen host needs.

use super::check::{Check, text};

/// Checks for platform `xen`, in dom0 or a driver domain.
pub(super) fn checks() -> Vec<Check> {
    let opened = |result: Result<(), xen::OpenError>, found: &str| {
        result.map(|()| found.to_owned()).map_err(text)
    };
    let devices = xen::Xen::open().map(drop);
    let copies = xen::Xen::with_guest_copies(1).map(drop);
    let store = xen::store::connect().map(drop);
    vec![
        Check::needed(
            "grants and event channels",
            opened(devices, "/dev/xen/gntdev and evtchn were opened"),
            "boot this machine under Xen, then modprobe xen-gntdev xen-evtchn; elsewhere there is nothing to do",
        ),
        Check::needed("xenstore", opened(store, "connected"), "systemctl start xenstored, in dom0"),
        Check::wished(
            "io_uring",
            uplink::try_ring()
                .map(|()| "several frames are one system call".to_owned())
                .map_err(text),
            "each frame to an uplink or a device is a system call without it: sysctl kernel.io_uring_disabled=0",
        ),
        Check::wished(
            "pages to grant",
            opened(copies, "/dev/xen/gntalloc was opened"),
            "rx = \"guest-copy\" needs it: modprobe xen-gntalloc",
        ),
    ]
}

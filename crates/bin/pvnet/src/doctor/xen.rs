//! What a Xen host needs.

use hypervisor::DomId;
use xenstore::{Client, Store as _};

use super::{Check, text};

/// Checks for platform `xen`, in dom0 or a driver domain.
pub(super) fn checks() -> Vec<Check> {
    let opened = |result: Result<(), xen::OpenError>, found: &str| {
        result.map(|()| found.to_owned()).map_err(text)
    };
    let devices = xen::Xen::open().map(drop);
    let own = own_pages();
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
            "pages that this domain grants",
            own,
            "without them copies to guests cost more, and rx = \"guest-copy\" needs them: modprobe xen-gntalloc, and raise its limit: \
             echo 65536 > /sys/module/xen_gntalloc/parameters/limit",
        ),
    ]
}

/// Tries a copy between pages that this domain grants to itself, and finds out how many queues the limit is good for.
fn own_pages() -> Result<String, String> {
    let store = xen::store::connect().map_err(text)?;
    let own = Client::new(store).map_err(text)?.read(None, "domid").map_err(text)?;
    let own = DomId(own.trim().parse().map_err(text)?);
    xen::Xen::open().map_err(text)?.grant_own_pages(own).map_err(text)?;
    let limit = std::fs::read_to_string("/sys/module/xen_gntalloc/parameters/limit");
    let limit: usize = limit.map_err(text)?.trim().parse().map_err(text)?;
    let queues = limit / (xen::OWN_PAGES_OF_A_QUEUE + port::Linear::PAGES);
    Ok(format!("gntalloc's limit of {limit} is enough for {queues} queues of uplinks and devices"))
}

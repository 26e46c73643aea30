//! What a Xen host needs.

use std::hint::black_box;
use std::time::{Duration, Instant};

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
        Check::wished(
            "a clock that is read without a system call",
            clock(),
            "a worker reads it three times for a lone frame: echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource, and \
             clocksource=tsc among the kernel's arguments, unless this domain is migrated",
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

/// Compares the clock with a system call: beside other work both take longer.
fn clock() -> Result<String, String> {
    let call = fastest(rustix::process::getppid);
    let reading = fastest(Instant::now);
    let name =
        std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    judge(name.map_err(text)?.trim(), reading, call)
}

/// The shortest time of some rounds of calls.
fn fastest<T>(call: impl Fn() -> T) -> Duration {
    let round = |_| {
        let began = Instant::now();
        for _ in 0..1000 {
            black_box(call());
        }
        began.elapsed()
    };
    (0..5).map(round).min().unwrap_or_default()
}

fn judge(name: &str, reading: Duration, call: Duration) -> Result<String, String> {
    match reading < call / 2 {
        true => Ok(format!("the clock {name} costs less than half of a system call")),
        false => Err(format!("the clock {name} costs as much as a system call")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_as_dear_as_a_system_call_is_told() {
        let micros = Duration::from_micros;
        assert!(judge("tsc", micros(30), micros(500)).is_ok());
        let told = judge("xen", micros(600), micros(500)).unwrap_err();
        assert_eq!(told, "the clock xen costs as much as a system call");
    }
}

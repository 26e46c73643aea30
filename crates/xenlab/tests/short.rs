//! One host, one guest, both ends the kernel's: that the lab itself can be trusted.
//!
//! Needs QEMU and, the first time, Debian's mirrors. Without QEMU it skips itself, unless `XENLAB_REQUIRED` is set.

use std::time::{Duration, Instant};

use xenlab::scenario::{self, Backend, Frontend};
use xenlab::{DomuConfig, Host, Images, Options, Result, Suite, default_cache};

const SOON: Duration = Duration::from_secs(20);

/// A host, or none where the test has to be skipped.
fn boot() -> Option<Host> {
    if let Err(missing) = lab::command("qemu-system-x86_64") {
        assert!(std::env::var_os("XENLAB_REQUIRED").is_none(), "{missing}");
        eprintln!("skipped: {missing}");
        return None;
    }
    let cache = std::path::absolute(default_cache()).expect("a working directory");
    let boot = || -> Result<Host> {
        let images = Images::prepare(Suite::of_this_machine(), &cache, true)?;
        Host::boot(&images, &Options::default())
    };
    match boot() {
        Ok(host) => Some(host),
        Err(error) => panic!("{error}"),
    }
}

/// The value, or an end with the error as a person would read it.
fn sound<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_guest_and_dom0_talk_over_the_kernels_netback() {
    let start = Instant::now();
    let Some(host) = boot() else { return };
    let failed = sound(host.sh("echo words; echo more >&2; exit 3", SOON));
    assert_eq!((failed.status, failed.text.as_str()), (3, "words\nmore\n"));

    let backend = sound(Backend::Stock.start(&host));
    let config = DomuConfig { restarts: true, ..DomuConfig::new("guest") };
    let mut guest = sound(host.create(&config.vif(backend.vif()), scenario::BOOT));
    sound(Frontend::Stock.start(&guest));

    let ping = sound(scenario::ping(backend.shell(), scenario::GUEST_ADDRESS, 3));
    assert_eq!((ping.sent, ping.received), (3, 3));
    let (inner, outer) = (guest.shell(), backend.shell());
    assert!(sound(scenario::same_file(inner, outer, scenario::BACKEND_ADDRESS, 2)));
    assert!(sound(scenario::same_file(outer, inner, scenario::GUEST_ADDRESS, 2)));

    let old = guest.id();
    sound(guest.reboot(scenario::BOOT));
    assert_ne!(guest.id(), old);
    sound(Frontend::Stock.start(&guest));
    let ping = sound(scenario::ping(guest.shell(), scenario::BACKEND_ADDRESS, 3));
    assert_eq!((ping.sent, ping.received), (3, 3));
    sound(guest.shutdown());
    eprintln!("{:.1} s", start.elapsed().as_secs_f64());
}

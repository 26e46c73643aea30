//! The short form of `make lab-ovn`: two hosts under OVN, with files over the tunnel, DHCP, NAT, and a pvnet that is killed under a TCP
//! stream.
//!
//! Needs namespaces and, the first time, Debian's mirrors. Without them, see [`lab::needed`].

use lab::Progress;
use ovnlab::{Error, Form, Programs, Result, run};
use xenlab::scenario::Step;
use xenlab::{Suite, default_cache};

fn steps() -> Result<Vec<Step>> {
    let cache = default_cache();
    let cache = std::path::absolute(&cache).map_err(|cause| Error::Path { path: cache, cause })?;
    // Programs of another release would need its C library.
    let (pvnet, suite) = (qemulab::pvnet(None)?, Suite::of_this_machine());
    let programs = Programs::prepare(pvnet, suite, &cache, Form::Short, true)?;
    run(&programs, Form::Short, &Progress::new(1, true))
}

#[test]
fn guests_of_two_hosts_are_ports_of_a_logical_switch_and_outlive_their_pvnet() {
    lab::requires!("ethtool", "ping", "nstat");
    let steps = steps().unwrap_or_else(|error| panic!("{error}"));
    assert!(steps.len() == 7 && steps.iter().all(|step| step.passed), "{steps:#?}");
}

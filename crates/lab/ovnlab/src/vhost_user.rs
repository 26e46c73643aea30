//! A host whose Open vSwitch has DPDK, and whose guest is behind a vhost-user port of it.

use lab::documents::shell_block;
use xenlab::Result;

use crate::guest::Guest;
use crate::host::Host;
use crate::plan::{Attachment, MTU};
use crate::testbed::Testbed;

const PAGE: &str = include_str!("../../../../docs/ovn.md");
/// Bytes of a file between two guests.
const FILE: u64 = 4 << 20;

/// A third host joins, and its guest reaches another host's over the tunnel, also after its pvnet is killed and started again. The
/// host leaves at once, because its Open vSwitch polls.
pub(crate) fn run(testbed: &mut Testbed) -> Result<(String, bool)> {
    let mut guest =
        Guest::new(1, 13, None)?.attached(Attachment::VhostUser).named("host1-guests", "up0");
    let plans = [guest.plan.clone()];
    let mut host = Host::start(&testbed.central, "c", "172.31.0.13", &plans)?;
    testbed.central.until_known(host.name)?;
    // Its daemon has another folder than the document's.
    let folder = host.daemon.folder().display().to_string();
    let block = shell_block(PAGE, "add-port br-int up0").replace("/run/pvnet", &folder);
    host.paste(&testbed.central, &block)?;
    guest.enter(&host)?;
    testbed.central.until_bound(&guest.plan, host.name)?;
    let other = &testbed.guests[0];
    // Without the headers of IPv4 and ICMP.
    let payload = (MTU - 28).to_string();
    let first = guest.reaches(other, &["-M", "do", "-s", &payload])?;
    for (from, to, seed) in [(&guest, other, 6), (other, &guest, 7)] {
        lab::transfer_file(&from.namespace, &to.namespace, to.plan.address, FILE, seed)?;
    }
    host.daemon.kill()?;
    host.daemon.restart()?;
    let again = guest.reaches(other, &[])?;
    guest.leave(&host)?;
    let name = host.name;
    drop(host);
    testbed.central.forget(name)?;
    Ok((format!("{MTU} bytes pass: {first}; 2 files; after a kill: {again}"), first && again))
}

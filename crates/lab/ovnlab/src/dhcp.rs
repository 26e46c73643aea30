//! Addresses from OVN's DHCP server, which a distribution's client asks for.

use std::os::unix::fs::PermissionsExt as _;

use lab::documents::shell_block;
use lab::{Namespace, TempDir};
use xenlab::scenario::lease;
use xenlab::{Error, Result};

use crate::central::Central;
use crate::plan::{MTU, Plan};
use crate::programs::{LIMIT, Programs};
use crate::testbed::{B, P11, P21, RED, Testbed};

const PAGE: &str = include_str!("../../../../docs/ovn.md");

impl Central {
    /// Has OVN offer a guest its address, MTU and router by DHCP.
    pub(crate) fn offer(&self, plan: &Plan) -> Result<()> {
        let [_, switch, ..] = plan.address.octets();
        let (router, port) = (plan.router, &plan.port);
        let create = format!(
            "create DHCP_Options cidr=10.{switch}.0.0/24 options:server_id={router} \
             options:server_mac=\"0e:00:00:00:0{switch}:01\" options:lease_time=3600 options:router={router} \
             options:mtu={MTU}"
        );
        let options = self.north(&create)?;
        self.north(&format!("lsp-set-dhcpv4-options {port} {}", options.trim()))?;
        self.sync()
    }
}

/// A guest asks for its address.
pub(crate) fn ask(programs: &Programs, guest: &Namespace) -> Result<()> {
    let folder = TempDir::new()?;
    let script = folder.path().join("lease");
    let failed = |cause| Error::Path { path: script.clone(), cause };
    std::fs::write(&script, lease::SCRIPT).map_err(failed)?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).map_err(failed)?;
    let mut client = guest.exec(&programs.file("usr/bin/busybox").to_string_lossy())?;
    client.args(lease::CLIENT).args(["eth0", "-s"]).arg(&script);
    lab::run(client, LIMIT).map(drop).map_err(Error::from)
}

/// Whether a guest has the lease that OVN's server gives. `shown` is what `ip` prints about its addresses, its interface and its routes.
pub(crate) fn has_lease(plan: &Plan, shown: &str) -> bool {
    let address = format!("inet {}/24", plan.address);
    let (mtu, router) = (format!("mtu {MTU}"), format!("default via {}", plan.router));
    [address, mtu, router].iter().all(|words| shown.contains(words))
}

/// A guest without an address in pvnet's configuration joins as the document says, asks for an address, and reaches the others.
pub(crate) fn run(testbed: &mut Testbed) -> Result<(String, bool)> {
    let Testbed { guests, hosts, central, .. } = testbed;
    for words in ["add-port br-int vif-red", "DHCP_Options"] {
        hosts[B].paste(central, &shell_block(PAGE, words))?;
    }
    let guest = &mut guests[RED];
    guest.enter(&hosts[B])?;
    central.until_bound(&guest.plan, hosts[B].name)?;
    let guest = &testbed.guests[RED];
    ask(&testbed.central.node.programs, &guest.namespace)?;
    let shown = guest.namespace.ip(&["address", "show", "dev", "eth0"])?;
    let routes = guest.namespace.ip(&["route", "show"])?;
    let has_lease = has_lease(&guest.plan, &(shown + &routes));
    // Without the headers of IPv4 and ICMP.
    let payload = (MTU - 28).to_string();
    let largest = guest.reaches(&testbed.guests[P11], &["-M", "do", "-s", &payload])?;
    let routed = guest.reaches(&testbed.guests[P21], &[])?;
    let address = guest.plan.address;
    let seen = format!(
        "{address}, MTU and router: {has_lease}; {MTU} bytes pass: {largest}; routed: {routed}"
    );
    Ok((seen, has_lease && largest && routed))
}

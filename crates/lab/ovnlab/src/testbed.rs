//! Everything that runs: the central host, two others, and their guests.

use lab::Namespace;
use xenlab::Result;

use crate::central::Central;
use crate::guest::Guest;
use crate::host::Host;
use crate::programs::Programs;

/// The rate of the guest whose streams must last some seconds, in 10⁶ bits per second.
const SLOW: u32 = 80;

/// Guests by number; the last one gets its address from OVN.
pub(crate) const P11: usize = 0;
pub(crate) const P12: usize = 1;
pub(crate) const P21: usize = 2;
pub(crate) const RED: usize = 3;
/// Hosts by number.
pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;

/// One central host, two others, and four guests.
pub struct Testbed {
    // Dropped in this order: guests before their hosts, hosts before the central one.
    pub(crate) guests: [Guest; 4],
    pub(crate) hosts: [Host; 2],
    /// A host beyond the router's gateway, once there is one.
    pub(crate) outside: Option<Namespace>,
    pub(crate) central: Central,
}

impl Testbed {
    /// Starts everything but the guests.
    pub fn start(programs: &Programs) -> Result<Self> {
        let central = Central::start(programs)?;
        let new = |switch, number| Guest::new(switch, number, None);
        let first = Guest::new(1, 11, Some(SLOW))?;
        let guests =
            [first, new(1, 12)?, new(2, 21)?, new(1, 14)?.asking().named("red-port", "vif-red")];
        let plans: Vec<_> = guests.iter().map(|guest| guest.plan.clone()).collect();
        let host = |name, address| Host::start(&central, name, address, &plans);
        let hosts = [host("a", "172.31.0.11")?, host("b", "172.31.0.12")?];
        Ok(Self { guests, hosts, outside: None, central })
    }

    /// Makes the logical network: two switches, a router, and a port for each guest but red.
    pub(crate) fn make_network(&self) -> Result<()> {
        self.hosts.iter().try_for_each(|host| self.central.until_known(host.name))?;
        self.central.make_switches()?;
        // The document's block makes red's port.
        self.guests[..RED].iter().try_for_each(|guest| self.central.add_port(&guest.plan))?;
        self.central.sync()
    }

    /// A guest joins the pvnet of a host.
    pub(crate) fn join(&mut self, guest: usize, host: usize) -> Result<()> {
        self.guests[guest].join(&self.hosts[host])?;
        self.central.until_bound(&self.guests[guest].plan, self.hosts[host].name)
    }
}

//! Who gets what ports flood, and how much that may be.

use switch::PortId;
use switch::multicast::{Router, SnoopingCounts};

use crate::Datapath;

impl Datapath {
    /// Sends the frames of a multicast group to its members and to routers only, as far as members are known
    /// ([`switch::multicast`]); or floods them.
    pub fn snoop(&self, snoops: bool) {
        self.shared.snoop(snoops);
    }

    /// Sets the copies of flooded frames that each port may cause per second, those with a limit of their own excepted; zero for no
    /// limit. A port whose limit changes has a full budget.
    pub fn limit_floods(&self, copies: u32) {
        self.shared.limit_floods(copies);
    }

    /// Sets the same for one port; none for the limit of the others.
    pub fn limit_floods_of(&self, port: PortId, copies: Option<u32>) {
        self.shared.limit_floods_of(port, copies);
    }

    /// Says whether multicast routers are behind a port. Without this there are none.
    pub fn set_router(&self, port: PortId, router: Router) {
        self.shared.snooping.set_router(port, router);
    }

    /// What is known of multicast groups; none while they are flooded.
    pub fn multicast(&self) -> Option<SnoopingCounts> {
        self.shared.ports().snoops.then(|| self.shared.snooping.counts())
    }
}

//! Ports that are in VLANs, or isolated: who reaches whom.
//!
//! A domain is a VLAN, or the ports without one. A daemon in which no port is a member of anything has no domains, and its workers
//! pay for the question once per batch.

use std::collections::BTreeMap;
use std::sync::Arc;

use switch::{MacTable, Membership, NO_VLAN, PortId, PortSet};

/// The domains at one moment.
#[derive(Clone, Default)]
pub(crate) struct Domains {
    /// By the port's number: ports with a membership.
    members: BTreeMap<u16, Arc<Membership>>,
    domains: BTreeMap<u16, Domain>,
}

/// A VLAN, or the ports without one.
#[derive(Clone, Default)]
pub(crate) struct Domain {
    /// None for the ports without a VLAN: theirs is the datapath's.
    table: Option<Arc<MacTable>>,
    /// All its ports, and those that are not isolated.
    all: PortSet,
    open: PortSet,
}

impl Domain {
    /// Its addresses, of which `main` are those without a VLAN.
    pub(crate) fn table<'a>(&'a self, main: &'a MacTable) -> &'a MacTable {
        self.table.as_deref().unwrap_or(main)
    }

    /// The ports that an isolated port may reach, or one that is not isolated.
    pub(crate) fn reach(&self, isolated: bool) -> &PortSet {
        if isolated { &self.open } else { &self.all }
    }
}

impl Domains {
    #[inline]
    pub(crate) fn member(&self, PortId(port): PortId) -> Option<&Arc<Membership>> {
        self.members.get(&port)
    }

    pub(crate) fn get(&self, domain: u16) -> Option<&Domain> {
        self.domains.get(&domain)
    }

    /// The tables of all VLANs, with their numbers.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (u16, &Arc<MacTable>)> {
        self.domains.iter().filter_map(|(number, one)| Some((*number, one.table.as_ref()?)))
    }

    /// The same with another membership of a port among `ports`; none if nobody has one any more. `table` makes the table of a new VLAN.
    pub(crate) fn with(
        &self,
        PortId(port): PortId,
        membership: Option<Arc<Membership>>,
        ports: &PortSet,
        table: impl Fn(u16) -> MacTable,
    ) -> Option<Self> {
        let mut members = self.members.clone();
        match membership {
            Some(membership) => members.insert(port, membership),
            None => members.remove(&port),
        };
        if members.is_empty() {
            return None;
        }
        let mut domains: BTreeMap<u16, Domain> = BTreeMap::new();
        for port in ports.iter() {
            let membership = members.get(&port.0);
            let numbers = membership.map_or_else(|| vec![NO_VLAN], |one| one.domains());
            for number in numbers {
                let domain = domains.entry(number).or_default();
                domain.all.insert(port);
                if membership.is_none_or(|membership| !membership.isolated) {
                    domain.open.insert(port);
                }
            }
        }
        for (number, domain) in domains.iter_mut().filter(|(number, _)| **number != NO_VLAN) {
            let known = self.domains.get(number).and_then(|old| old.table.clone());
            domain.table = Some(known.unwrap_or_else(|| Arc::new(table(*number))));
        }
        Some(Self { members, domains })
    }
}

//! What workers know of multicast groups: a snapshot.

use std::collections::{BTreeMap, HashMap};

use wire::ethernet::MacAddr;

use super::address::{Family, is_local};
use crate::{PortId, PortSet};

/// The groups of one IP version in one VLAN, 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Domain {
    pub(super) vlan: u16,
    pub(super) family: Family,
}

/// Whether multicast routers are behind a port. They get every group, and may query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Router {
    /// None: queries from the port are dropped.
    #[default]
    Never,
    /// For 255 s after a query.
    Learnt,
    /// Always.
    Always,
}

/// Which of the ports that a multicast frame may reach get it.
#[derive(Clone, Copy, Debug)]
pub enum Reach<'a> {
    /// All of them.
    All,
    /// All but these.
    Without(&'a PortSet),
    /// Those that are in one of both sets.
    Either(&'a PortSet, &'a PortSet),
    /// None.
    Nowhere,
}

impl Reach<'_> {
    /// Whether a port gets it.
    #[inline]
    #[must_use]
    pub fn takes(self, port: PortId) -> bool {
        match self {
            Self::All => true,
            Self::Without(ports) => !ports.contains(port),
            Self::Either(one, other) => one.contains(port) || other.contains(port),
            Self::Nowhere => false,
        }
    }

    /// Whether both mean the same sets.
    #[must_use]
    pub fn is(self, other: Self) -> bool {
        match (self, other) {
            (Self::All, Self::All) | (Self::Nowhere, Self::Nowhere) => true,
            (Self::Without(a), Self::Without(b)) => std::ptr::eq(a, b),
            (Self::Either(a, b), Self::Either(c, d)) => std::ptr::eq(a, c) && std::ptr::eq(b, d),
            _ => false,
        }
    }
}

/// A snapshot of the memberships of all ports.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    /// The ports behind which there are routers always, or after a query.
    pub(super) always: PortSet,
    pub(super) learnt: PortSet,
    pub(super) domains: BTreeMap<Domain, DomainGroups>,
}

/// The groups of a domain, each with the ports that do not get it: a port that is not known gets all groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DomainGroups {
    /// Routers that have queried.
    pub(super) routers: PortSet,
    /// The ports that do not get groups without members.
    pub(super) pruned: PortSet,
    /// By group: those of the pruned ports that are no members.
    pub(super) without: HashMap<MacAddr, PortSet>,
}

const NONE: &PortSet = &PortSet::new();

impl Groups {
    /// Whether queries from the port are forwarded.
    pub(super) fn may_query(&self, port: PortId) -> bool {
        self.always.contains(port) || self.learnt.contains(port)
    }

    pub(super) fn routers(&self, domain: Domain) -> Reach<'_> {
        let learnt = self.domains.get(&domain).map_or(NONE, |domain| &domain.routers);
        Reach::Either(&self.always, learnt)
    }

    /// The ports that get the frames of a group.
    pub(super) fn reach(&self, domain: Domain, group: MacAddr) -> Reach<'_> {
        match self.domains.get(&domain) {
            Some(domain) if !is_local(group) => {
                Reach::Without(domain.without.get(&group).unwrap_or(&domain.pruned))
            }
            _ => Reach::All,
        }
    }
}

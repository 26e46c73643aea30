//! Who is a member of which group, and who has been asked.

use std::collections::{BTreeMap, BTreeSet};

use token_bucket::SharedBucket;
use wire::ethernet::MacAddr;

use super::address::Age;
use super::groups::{Domain, DomainGroups, Groups, Router};
use super::message::{GroupChange, Message};
use crate::{PortId, PortSet};

/// The most groups that one port can be a member of, over all VLANs. Beyond this it gets all groups.
pub const GROUPS_PER_PORT: usize = 64;
/// The most groups, over all VLANs. A port that joins a further one gets all groups.
pub const GROUPS_MAX: usize = 1024;
/// The most groups that a port joins per second, and in a burst those of four seconds. Beyond this it gets all groups.
pub const CHANGES_PER_SECOND: u64 = 16;
const CHANGES_BURST: u64 = 4 * CHANGES_PER_SECOND;
/// Seconds after a query for which a router is behind its port (RFC 3376 §8.5).
const ROUTER_SECONDS: u32 = 255;

/// How much is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnoopingCounts {
    /// Groups with members, per VLAN.
    pub groups: usize,
    /// Members of all of them.
    pub members: usize,
    /// Ports that miss groups which they have not joined.
    pub pruned: usize,
    /// Joins beyond a limit: their ports got all groups from then on.
    pub refused: u64,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Those that are not [`Router::Never`].
    routers: BTreeMap<PortId, Router>,
    /// Of ports that have joined a group.
    budgets: BTreeMap<PortId, SharedBucket>,
    domains: BTreeMap<Domain, Members>,
    refused: u64,
}

/// Where a message came from.
#[derive(Clone, Copy)]
pub(super) struct Origin {
    pub(super) domain: Domain,
    pub(super) port: PortId,
}

/// The memberships of a domain.
#[derive(Debug, Default)]
struct Members {
    /// Ports that were asked, by when they last proved that they need every group.
    ports: BTreeMap<PortId, Age>,
    groups: BTreeMap<MacAddr, BTreeMap<PortId, Age>>,
    /// Routers that have queried, and until when they are known.
    routers: BTreeMap<PortId, u32>,
    /// The second of the last query that was counted.
    asked: Option<u32>,
    /// The ports that were pruned when that was last checked.
    pruned: PortSet,
}

impl State {
    pub(super) fn set_router(&mut self, port: PortId, router: Router) {
        match router {
            Router::Never => self.routers.remove(&port),
            _ => self.routers.insert(port, router),
        };
        if router != Router::Learnt {
            self.domains.values_mut().for_each(|domain| _ = domain.routers.remove(&port));
        }
        let always = &self.routers;
        self.domains.values_mut().for_each(|domain| domain.prune(always, None));
    }

    pub(super) fn forget(&mut self, port: PortId, is_gone: bool) {
        if is_gone {
            self.routers.remove(&port);
            self.budgets.remove(&port);
        }
        for domain in self.domains.values_mut() {
            domain.ports.remove(&port);
            domain.routers.remove(&port);
            domain.pruned.remove(port);
            domain.groups.retain(|_, members| {
                members.remove(&port);
                !members.is_empty()
            });
        }
    }

    pub(super) fn reset(&mut self) {
        self.domains.clear();
    }

    /// Notes a message. `asked` are the ports that it may go to. Returns whether any port gets other groups now.
    pub(super) fn note(
        &mut self,
        from: Origin,
        message: &Message,
        asked: &PortSet,
        now: u32,
    ) -> bool {
        let Origin { domain: at, port } = from;
        let router = self.routers.get(&port).copied().unwrap_or_default();
        match message {
            Message::Query { general } => {
                if router == Router::Never {
                    return false;
                }
                let domain = self.domains.entry(at).or_default();
                if let Some(seconds) = general {
                    domain.ask(port, asked, now, *seconds);
                }
                let until = now.saturating_add(ROUTER_SECONDS);
                if router != Router::Learnt || domain.routers.insert(port, until).is_some() {
                    return false;
                }
                domain.pruned.remove(port);
                true
            }
            // It gets all groups.
            Message::Report { .. } if router == Router::Always => false,
            Message::Report { changes, is_complete } => {
                let mut changed = false;
                for (group, change) in changes {
                    match change {
                        GroupChange::Join => changed |= self.join(from, *group, now),
                        GroupChange::Leave => self.leave(from, *group, now),
                    }
                }
                if !is_complete {
                    changed |= self.want_all(from);
                }
                changed
            }
        }
    }

    fn join(&mut self, from: Origin, group: MacAddr, now: u32) -> bool {
        let Origin { domain: at, port } = from;
        let members = self.domains.get_mut(&at).and_then(|domain| domain.groups.get_mut(&group));
        let is_new_group = members.is_none();
        if let Some(age) = members.and_then(|members| members.get_mut(&port)) {
            *age = Age::default();
            return false;
        }
        let budget = self.budgets.entry(port).or_default();
        // First: a port that is over its budget costs no more than this.
        if !budget.take(1, CHANGES_BURST, u64::from(now) * CHANGES_PER_SECOND)
            || self.groups_of(port) >= GROUPS_PER_PORT
            || is_new_group && self.counts().groups >= GROUPS_MAX
        {
            self.refused += 1;
            return self.want_all(from);
        }
        let domain = self.domains.entry(at).or_default();
        domain.groups.entry(group).or_default().insert(port, Age::default());
        true
    }

    /// A host behind a port has left a group. Others behind it may answer the querier.
    fn leave(&mut self, Origin { domain, port }: Origin, group: MacAddr, now: u32) {
        let members =
            self.domains.get_mut(&domain).and_then(|domain| domain.groups.get_mut(&group));
        if let Some(age) = members.and_then(|members| members.get_mut(&port)) {
            age.leave(now);
        }
    }

    /// A port needs groups that are not known. It gets all, until it is asked again.
    fn want_all(&mut self, Origin { domain, port }: Origin) -> bool {
        let Some(domain) = self.domains.get_mut(&domain) else { return false };
        domain.ports.remove(&port);
        let was_pruned = domain.pruned.contains(port);
        domain.pruned.remove(port);
        was_pruned
    }

    /// Drops what is over at `now`. Returns whether any port gets other groups.
    pub(super) fn sweep(&mut self, now: u32) -> bool {
        let mut changed = false;
        let always = &self.routers;
        for domain in self.domains.values_mut() {
            let before = (domain.members(), domain.routers.len(), domain.pruned.clone());
            domain.groups.retain(|_, members| {
                members.retain(|_, age| !age.is_over(now));
                !members.is_empty()
            });
            domain.routers.retain(|_, until| now < *until);
            domain.prune(always, Some(now));
            changed |= before != (domain.members(), domain.routers.len(), domain.pruned.clone());
        }
        changed
    }

    /// How many groups a port is a member of.
    fn groups_of(&self, port: PortId) -> usize {
        let groups = self.domains.values().flat_map(|domain| domain.groups.values());
        groups.filter(|members| members.contains_key(&port)).count()
    }

    pub(super) fn counts(&self) -> SnoopingCounts {
        let sum = |of: fn(&Members) -> usize| self.domains.values().map(of).sum();
        SnoopingCounts {
            groups: sum(|domain| domain.groups.len()),
            members: sum(Members::members),
            pruned: self
                .domains
                .values()
                .flat_map(|domain| domain.pruned.iter())
                .collect::<BTreeSet<_>>()
                .len(),
            refused: self.refused,
        }
    }

    /// What workers need to know.
    pub(super) fn groups(&self) -> Groups {
        let routers = |wanted| {
            let is_its =
                move |(port, router): (&PortId, &Router)| (*router == wanted).then_some(*port);
            self.routers.iter().filter_map(is_its).collect()
        };
        Groups {
            always: routers(Router::Always),
            learnt: routers(Router::Learnt),
            domains: self.domains.iter().map(|(at, domain)| (*at, domain.groups())).collect(),
        }
    }
}

impl Members {
    /// A querier behind port `from` has asked these ports for all groups. Of several queries in a second, one counts: each is as
    /// much work as there are members.
    fn ask(&mut self, from: PortId, ports: &PortSet, now: u32, seconds: u32) {
        if self.asked.replace(now) == Some(now) {
            return;
        }
        for port in ports.iter().filter(|port| *port != from) {
            self.ports.entry(port).or_default().ask(now, seconds);
        }
        for (port, age) in self.groups.values_mut().flatten() {
            if *port != from && ports.contains(*port) {
                age.ask(now, seconds);
            }
        }
    }

    /// Sets which ports are pruned: at `now`, or those that are but for routers.
    fn prune(&mut self, routers: &BTreeMap<PortId, Router>, now: Option<u32>) {
        let is_router = |port: PortId| {
            routers.get(&port) == Some(&Router::Always) || self.routers.contains_key(&port)
        };
        let is_over = |port: PortId, age: &Age| match now {
            Some(now) => age.is_over(now),
            None => self.pruned.contains(port),
        };
        let pruned = self.ports.iter().filter(|(port, age)| is_over(**port, age));
        self.pruned = pruned.map(|(port, _)| *port).filter(|port| !is_router(*port)).collect();
    }

    fn members(&self) -> usize {
        self.groups.values().map(BTreeMap::len).sum()
    }

    fn groups(&self) -> DomainGroups {
        let without = |(group, members): (&MacAddr, &BTreeMap<PortId, Age>)| {
            let mut without = self.pruned.clone();
            members.keys().for_each(|port| without.remove(*port));
            (*group, without)
        };
        DomainGroups {
            routers: self.routers.keys().copied().collect(),
            pruned: self.pruned.clone(),
            without: self.groups.iter().map(without).collect(),
        }
    }
}

//! How two configurations differ, and what it takes to go from one to the other.

use control_socket::{ChangeAction, ChangeStep, TableKind};
use netback::RxChannel;

use super::port_settings::{SinglePort, changes, taking};
use super::table::{CARDS, Changes, Effort, Table, in_place};
use super::{Config, Guest, Mirror, Nic, PlatformKind, single_port};

/// A table that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The table's kind.
    pub table: TableKind,
    /// The port's name; of a guest, its first interface's too. Empty for a table without a name.
    pub name: String,
    /// How it differs.
    pub what: What,
}

/// How a table differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// Keys of it have other values: each with what it takes to change it.
    Changed(Changes),
    /// It cannot be added or removed.
    Fixed(Effort),
}

const POOL: Effort =
    Effort::Restart("the memory for guest copies is set up when the daemon starts");

/// What differs between two configurations, the ports in the order of the new one after those that are gone.
pub fn differences(old: &Config, new: &Config) -> Vec<Difference> {
    let mut all = Differences::default();
    all.of_table(TableKind::Daemon, old.daemon.differing(&new.daemon));
    all.of_table(TableKind::Switch, old.switch.differing(&new.switch));
    all.of_table(TableKind::Xen, old.xen.differing(&new.xen));
    all.of_tables(TableKind::Nic, [&old.nics, &new.nics], |_| true, whole(Nic::differing));
    let is_fixed = |name: &str| uses_card(old, name) || uses_card(new, name);
    let changes_of = |before: &_, after: &_| guest([old, new], before, after);
    all.of_tables(TableKind::Guest, [&old.guests, &new.guests], is_fixed, changes_of);
    for kind in TableKind::ports() {
        single_port!(kind, T => {
            let [old, new] = [old, new].map(T::all);
            let is_fixed = |name: &str| {
                old.iter().chain(new).any(|port| port.name() == name && port.fixed().is_some())
            };
            all.of_tables(kind, [old, new], is_fixed, whole(of_port));
        });
    }
    let mirrors = [&*old.mirrors, &new.mirrors];
    all.of_tables(TableKind::Mirror, mirrors, |_| false, whole(Mirror::differing));
    all.0
}

/// What differs of a guest's table, by port.
type ByPort = Vec<(String, Changes)>;

/// What differs between two tables of one port.
fn whole<T: Table>(changes: impl Fn(&T, &T) -> Changes) -> impl Fn(&T, &T) -> ByPort {
    move |old, new| vec![(new.name().to_owned(), changes(old, new))]
}

#[derive(Default)]
struct Differences(Vec<Difference>);

impl Differences {
    fn push(&mut self, table: TableKind, name: &str, what: What) {
        self.0.push(Difference { table, name: name.to_owned(), what });
    }

    fn of_table(&mut self, table: TableKind, changes: Changes) {
        self.of_port(table, "", changes);
    }

    fn of_port(&mut self, table: TableKind, name: &str, changes: Changes) {
        if !changes.is_empty() {
            self.push(table, name, What::Changed(changes));
        }
    }

    /// Compares tables by their names. Those that are fixed come and go only with the daemon.
    fn of_tables<T: Table>(
        &mut self,
        table: TableKind,
        [old, new]: [&[T]; 2],
        is_fixed: impl Fn(&str) -> bool,
        changes: impl Fn(&T, &T) -> ByPort,
    ) {
        let find =
            |tables: &[T], wanted: &T| tables.iter().position(|one| one.name() == wanted.name());
        let or_fixed = |one: &T, what| if is_fixed(one.name()) { What::Fixed(CARDS) } else { what };
        for gone in old.iter().filter(|one| find(new, one).is_none()) {
            self.push(table, gone.name(), or_fixed(gone, What::Removed));
        }
        for one in new {
            let Some(before) = find(old, one) else {
                self.push(table, one.name(), or_fixed(one, What::Added));
                continue;
            };
            for (name, changes) in changes(&old[before], one) {
                self.of_port(table, &name, changes);
            }
        }
    }
}

/// Whether a guest has a context of a card, or an uplink keeps one for it.
fn uses_card(config: &Config, name: &str) -> bool {
    let mut queues = config.nics.iter().flat_map(|nic| config.queues_of(&nic.name));
    let mut guests = config.guests.iter();
    guests.any(|guest| guest.name == name && !guest.contexts.is_empty())
        || queues.any(|(guest, ..)| guest.name == name)
}

/// What differs of a guest, by port: its own keys and those of its first interface, and those of each further interface.
fn guest(configs: [&Config; 2], before: &Guest, after: &Guest) -> ByPort {
    let is_other_number = before.vifs.len() != after.vifs.len();
    let own = before.differing(after).into_iter();
    let own = own.filter(|(key, _)| *key != "vifs" || is_other_number);
    let own = own.map(|(key, effort)| match key {
        "vifs" => ("vif", effort),
        "contexts" => ("context", effort),
        _ => (key, effort),
    });
    // For a guest without interfaces here it is not known whether it has joined.
    let own = own.map(|(key, effort)| match effort {
        Effort::Connection if after.vifs.is_empty() => (key, CARDS),
        _ => (key, effort),
    });
    let on_card = configs.iter().any(|config| uses_card(config, &after.name));
    let mut ports = vec![(after.name.clone(), own.collect::<Changes>())];
    if is_other_number {
        return ports;
    }
    let [had_pool, has_pool] = configs.map(|config| {
        let mut vifs = config.guests.iter().flat_map(|guest| &guest.vifs);
        config.daemon.platform != PlatformKind::Xen
            || vifs.any(|vif| vif.rx == RxChannel::GuestCopy)
    });
    for ((before, after), name) in before.vifs.iter().zip(&after.vifs).zip(after.vif_names()) {
        let keys = changes(before, after).into_iter().map(|(key, effort)| match key {
            "rx" if has_pool && !had_pool => (key, POOL),
            "rx" | "mac" | "queues" if on_card => (key, CARDS),
            _ => (key, effort),
        });
        match ports.iter_mut().find(|(port, _)| *port == name) {
            Some((_, own)) => own.extend(keys),
            None => ports.push((name, keys.collect())),
        }
    }
    ports
}

/// What differs of a port that is opened.
fn of_port<T: SinglePort>(old: &T, new: &T) -> Changes {
    let fixed = old.fixed().or(new.fixed());
    let changes = changes(old, new).into_iter();
    let changes = changes.map(|(key, effort)| match (effort, fixed) {
        (Effort::Device, Some(fixed)) => (key, fixed),
        _ => (key, effort),
    });
    changes.collect()
}

/// What can run of a configuration without a restart, after these steps: the rest stays as it is in `old`.
pub fn merged(old: &Config, new: &Config, steps: &[ChangeStep]) -> Config {
    let mut merged = new.clone();
    merged.daemon = in_place(&old.daemon, &new.daemon);
    merged.switch = in_place(&old.switch, &new.switch);
    (merged.xen, merged.nics) = (old.xen.clone(), old.nics.clone());
    for ChangeStep { table, name, action, .. } in steps {
        let is_refused = *action == ChangeAction::Refuse;
        if *table == TableKind::Guest && is_refused {
            keep(&mut merged.guests, &old.guests, |guest| {
                guest.name == *name || guest.vif_names().any(|vif| vif == *name)
            });
        }
        single_port!(*table, T => {
            let (merged, is_meant) = (T::all_mut(&mut merged), |port: &T| port.name() == *name);
            if is_refused {
                keep(merged, T::all(old), is_meant);
            } else if *action == ChangeAction::Wait {
                keep_open(merged, T::all(old), is_meant);
            }
        });
    }
    merged
}

/// Keeps some tables as they were.
fn keep<T: Clone>(merged: &mut Vec<T>, old: &[T], is_kept: impl Fn(&T) -> bool) {
    merged.retain(|table| !is_kept(table));
    merged.extend(old.iter().filter(|table| is_kept(table)).cloned());
}

/// Keeps those keys of a table for which something would have to be opened again.
fn keep_open<T: SinglePort>(merged: &mut [T], old: &[T], is_meant: impl Fn(&T) -> bool) {
    let new = merged.iter_mut().find(|table| is_meant(table));
    if let (Some(new), Some(old)) = (new, old.iter().find(|table| is_meant(table))) {
        *new = taking(new.clone(), old, Effort::Device);
    }
}

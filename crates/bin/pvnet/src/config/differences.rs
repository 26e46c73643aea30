//! How two configurations differ, and what it takes to go from one to the other.

use control_socket::{ChangeAction, ChangeStep, TableKind};
use netback::RxChannel;

use super::port_settings::{PortTable, changes, effort_in, taking};
use super::table::{CARDS, Changes, Effort, Table, in_place};
use super::{Config, Guest, Mirror, Nic, PlatformKind, Port, Uplink, UplinkKind, Vif};

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
    let uplinks = || old.uplinks.iter().chain(&new.uplinks);
    let of_card =
        |name: &str| uplinks().any(|uplink| uplink.name == name && uplink.kind == UplinkKind::Cdna);
    all.of_tables(TableKind::Uplink, [&old.uplinks, &new.uplinks], of_card, whole(uplink));
    all.of_tables(TableKind::Port, [&old.ports, &new.ports], |_| false, whole(changes));
    let mirrors = [&*old.mirrors, &new.mirrors];
    all.of_tables(TableKind::Mirror, mirrors, |_| false, whole(Mirror::differing));
    all.0
}

/// What differs of a guest's table, by port.
type ByPort = Vec<(String, Changes)>;

/// A table that has a name.
trait Named {
    fn name(&self) -> &str;
}

macro_rules! tables_with_names {
    ($($table:ty),*) => {
        $(impl Named for $table {
            fn name(&self) -> &str {
                &self.name
            }
        })*
    };
}

tables_with_names!(Nic, Guest, Uplink, Port, Mirror);

/// What differs between two tables of one port.
fn whole<T: Named>(changes: impl Fn(&T, &T) -> Changes) -> impl Fn(&T, &T) -> ByPort {
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
    fn of_tables<T: Named>(
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

fn uplink(old: &Uplink, new: &Uplink) -> Changes {
    let is_context = [old.kind, new.kind].contains(&UplinkKind::Cdna);
    let changes = changes(old, new).into_iter();
    let changes = changes.map(|(key, effort)| match effort {
        Effort::Device if is_context => (key, CARDS),
        _ => (key, effort),
    });
    changes.collect()
}

/// What it takes to change a key of a port, by the kind of its table.
pub fn effort(table: TableKind, key: &str) -> Option<Effort> {
    match table {
        TableKind::Guest => effort_in::<Vif>(key),
        TableKind::Uplink => effort_in::<Uplink>(key),
        TableKind::Port => effort_in::<Port>(key),
        _ => None,
    }
}

/// What can run of a configuration without a restart, after these steps: the rest stays as it is in `old`.
pub fn merged(old: &Config, new: &Config, steps: &[ChangeStep]) -> Config {
    let mut merged = new.clone();
    merged.daemon = in_place(&old.daemon, &new.daemon);
    merged.switch = in_place(&old.switch, &new.switch);
    (merged.xen, merged.nics) = (old.xen.clone(), old.nics.clone());
    for ChangeStep { table, name, action, .. } in steps {
        match (table, action) {
            (TableKind::Guest, ChangeAction::Refuse) => {
                keep(&mut merged.guests, &old.guests, |guest| {
                    guest.name == *name || guest.vif_names().any(|vif| vif == *name)
                });
            }
            (TableKind::Uplink, ChangeAction::Refuse) => {
                keep(&mut merged.uplinks, &old.uplinks, |uplink| uplink.name == *name);
            }
            (TableKind::Uplink, ChangeAction::Wait) => {
                keep_open(&mut merged.uplinks, &old.uplinks, |uplink| uplink.name == *name);
            }
            (TableKind::Port, ChangeAction::Wait) => {
                keep_open(&mut merged.ports, &old.ports, |port| port.name == *name);
            }
            _ => {}
        }
    }
    merged
}

/// Keeps some tables as they were.
fn keep<T: Clone>(merged: &mut Vec<T>, old: &[T], is_kept: impl Fn(&T) -> bool) {
    merged.retain(|table| !is_kept(table));
    merged.extend(old.iter().filter(|table| is_kept(table)).cloned());
}

/// Keeps those keys of a table for which something would have to be opened again.
fn keep_open<T: PortTable>(merged: &mut [T], old: &[T], is_meant: impl Fn(&T) -> bool) {
    let new = merged.iter_mut().find(|table| is_meant(table));
    if let (Some(new), Some(old)) = (new, old.iter().find(|table| is_meant(table))) {
        *new = taking(new.clone(), old, Effort::Device);
    }
}

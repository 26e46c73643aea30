//! How two configurations differ, and what it takes to go from one to the other.

use netback::RxChannel;

use super::{
    Config, Daemon, Guest, Mirror, Nic, Platform, Port, Switch, Uplink, UplinkKind, Vif, Xen,
};

/// A table that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The table's kind, as in the file.
    pub table: &'static str,
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
    Changed(Vec<(&'static str, Effort)>),
    /// It cannot be added or removed, for this reason.
    Fixed(&'static str),
}

/// What it takes to change a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// The port goes on meanwhile.
    InPlace,
    /// It is agreed with the front-end when it connects.
    Connection,
    /// The device is opened again.
    Device,
    /// The daemon must start again, for this reason.
    Restart(&'static str),
}

impl Effort {
    /// What it takes to change a key of a port, by the kind of its table.
    pub fn of(table: &str, key: &str) -> Self {
        let in_place = match table {
            "uplink" => Uplink::IN_PLACE,
            "port" => Port::IN_PLACE,
            _ => Vif::IN_PLACE,
        };
        match (table, key) {
            _ if in_place.contains(&key) => Self::InPlace,
            ("uplink", _) => Self::Device,
            ("port", key) if Port::REOPENED.contains(&key) => Self::Device,
            _ => Self::Connection,
        }
    }
}

const AT_START: &str = "it is read when the daemon starts";
const CARDS: &str = "cards and their contexts are set up when the daemon starts";
const POOL: &str = "the memory for guest copies is set up when the daemon starts";

/// The keys of two tables that differ. The pattern names all fields, so that none is forgotten.
macro_rules! keys {
    ($type:ident { $($key:ident),* $(,)? }, $old:expr, $new:expr) => {{
        let $type { $($key),* } = $old;
        let mut keys: Vec<&'static str> = Vec::new();
        $(if *$key != $new.$key { keys.push(stringify!($key)); })*
        keys
    }};
}

/// What differs between two configurations, the ports in the order of the new one after those that are gone.
pub fn differences(old: &Config, new: &Config) -> Vec<Difference> {
    let mut all = Vec::new();
    general(old, new, &mut all);
    nics(old, new, &mut all);
    each(
        ("guest", &old.guests, &new.guests),
        |guest| &guest.name,
        |name| (uses_card(old, name) || uses_card(new, name)).then_some(CARDS),
        |old_guest, new_guest| guest(old, new, old_guest, new_guest),
        &mut all,
    );
    let is_context = |uplinks: &[Uplink], name: &str| {
        uplinks.iter().any(|uplink| uplink.name == name && uplink.kind == UplinkKind::Cdna)
    };
    each(
        ("uplink", &old.uplinks, &new.uplinks),
        |uplink| &uplink.name,
        |name| {
            let is_its = is_context(&old.uplinks, name) || is_context(&new.uplinks, name);
            is_its.then_some(CARDS)
        },
        |old, new| named(&new.name, uplink(old, new)),
        &mut all,
    );
    each(
        ("port", &old.ports, &new.ports),
        |port| &port.name,
        |_| None,
        |old, new| named(&new.name, with(old.differing(new), |key| Effort::of("port", key))),
        &mut all,
    );
    each(
        ("mirror", &old.mirrors, &new.mirrors),
        |mirror| &mirror.name,
        |_| None,
        |old, new| {
            let keys = keys!(
                Mirror { name, from, direction, to, file, file_mib, files, filter, snaplen },
                old,
                new
            );
            named(&new.name, with(keys, |_| Effort::InPlace))
        },
        &mut all,
    );
    all
}

type Keys = Vec<(&'static str, Effort)>;

fn named(name: &str, keys: Keys) -> Vec<(String, Keys)> {
    vec![(name.to_owned(), keys)]
}

/// Compares the tables of one kind, by their names.
fn each<T>(
    (table, old, new): (&'static str, &[T], &[T]),
    name: impl Fn(&T) -> &String,
    fixed: impl Fn(&str) -> Option<&'static str>,
    changed: impl Fn(&T, &T) -> Vec<(String, Keys)>,
    all: &mut Vec<Difference>,
) {
    let find = |tables: &'_ [T], wanted: &str| tables.iter().position(|one| name(one) == wanted);
    let or_fixed = |name: &str, what| fixed(name).map_or(what, What::Fixed);
    for gone in old.iter().map(&name).filter(|name| find(new, name).is_none()) {
        let what = or_fixed(gone, What::Removed);
        all.push(Difference { table, name: gone.clone(), what });
    }
    for one in new {
        match find(old, name(one)) {
            None => {
                let what = or_fixed(name(one), What::Added);
                all.push(Difference { table, name: name(one).clone(), what });
            }
            Some(place) => {
                for (name, keys) in changed(&old[place], one) {
                    if !keys.is_empty() {
                        all.push(Difference { table, name, what: What::Changed(keys) });
                    }
                }
            }
        }
    }
}

fn with(keys: Vec<&'static str>, effort: impl Fn(&str) -> Effort) -> Keys {
    keys.into_iter().map(|key| (key, effort(key))).collect()
}

fn general(old: &Config, new: &Config, all: &mut Vec<Difference>) {
    let daemon = keys!(
        Daemon {
            directory,
            recordings,
            join_mode,
            join_group,
            control_mode,
            control_group,
            nic_mode,
            platform,
            workers,
            cpus,
            rebalance,
            rebalance_interval_s,
            rebalance_threshold,
            rebalance_gain,
            poll,
            poll_us,
            low_latency,
            metrics,
            meter,
            capture,
            sandbox,
            log,
        },
        &old.daemon,
        &new.daemon
    );
    let daemon = with(daemon, |key| match key {
        "capture" => Effort::InPlace,
        key if key.starts_with("rebalance") => Effort::InPlace,
        _ => Effort::Restart(AT_START),
    });
    let switch = keys!(
        Switch { age_seconds, addresses_per_port, flood_copies_per_second, multicast, hash_macs },
        &old.switch,
        &new.switch
    );
    let xen = keys!(Xen { backend, on_stop, guest_copy_pages, attach }, &old.xen, &new.xen);
    let at_start = |keys| with(keys, |_| Effort::Restart(AT_START));
    let switch = with(switch, |key| match key {
        "flood_copies_per_second" | "multicast" => Effort::InPlace,
        _ => Effort::Restart(AT_START),
    });
    let tables = [("daemon", daemon), ("switch", switch), ("xen", at_start(xen))];
    for (table, keys) in tables.into_iter().filter(|(_, keys)| !keys.is_empty()) {
        all.push(Difference { table, name: String::new(), what: What::Changed(keys) });
    }
}

fn nics(old: &Config, new: &Config, all: &mut Vec<Difference>) {
    let keys = |old: &Nic, new: &Nic| {
        let keys = keys!(
            Nic {
                name,
                contexts,
                protection,
                rate_mbps,
                tso,
                coalescing,
                coalesce_frames,
                coalesce_us,
                wire,
            },
            old,
            new
        );
        named(&new.name, with(keys, |_| Effort::Restart(CARDS)))
    };
    each(("nic", &old.nics, &new.nics), |nic| &nic.name, |_| Some(CARDS), keys, all);
}

/// Whether a guest has a context of a card, or an uplink keeps one for it.
fn uses_card(config: &Config, name: &str) -> bool {
    let mut queues = config.nics.iter().flat_map(|nic| config.queues_of(&nic.name));
    let mut guests = config.guests.iter();
    guests.any(|guest| guest.name == name && !guest.contexts.is_empty())
        || queues.any(|(guest, ..)| guest.name == name)
}

/// What differs of a guest, by port: its own keys and those of its first interface, and those of each further interface.
fn guest(old: &Config, new: &Config, before: &Guest, after: &Guest) -> Vec<(String, Keys)> {
    let own = keys!(
        Guest {
            name,
            uid,
            token_file,
            memory_mib,
            balloon,
            huge_pages,
            group_pages,
            copy_pool,
            vifs,
            contexts,
        },
        before,
        after
    );
    let is_other_number = before.vifs.len() != after.vifs.len();
    let own = own.into_iter().filter(|key| *key != "vifs" || is_other_number);
    let own = own.map(|key| match key {
        "vifs" => "vif",
        "contexts" => "context",
        key => key,
    });
    let on_card = uses_card(old, &after.name) || uses_card(new, &after.name);
    let mut ports = named(
        &after.name,
        with(own.collect(), |key| match key {
            "uid" | "token_file" => Effort::InPlace,
            "context" => Effort::Restart(CARDS),
            // Nobody knows then whether it has joined.
            _ if after.vifs.is_empty() => Effort::Restart(CARDS),
            _ => Effort::Connection,
        }),
    );
    if is_other_number {
        return ports;
    }
    let has_pool = |config: &Config| {
        let mut vifs = config.guests.iter().flat_map(|guest| &guest.vifs);
        config.daemon.platform != Platform::Xen || vifs.any(|vif| vif.rx == RxChannel::GuestCopy)
    };
    let wants_pool = !has_pool(old) && has_pool(new);
    for ((before, after), name) in before.vifs.iter().zip(&after.vifs).zip(after.vif_names()) {
        let keys = with(before.differing(after), |key| match key {
            "rx" if wants_pool => Effort::Restart(POOL),
            "rx" | "mac" | "queues" if on_card => Effort::Restart(CARDS),
            key => Effort::of("guest", key),
        });
        match ports.iter_mut().find(|(port, _)| *port == name) {
            Some((_, own)) => own.extend(keys),
            None => ports.push((name, keys)),
        }
    }
    ports
}

fn uplink(old: &Uplink, new: &Uplink) -> Keys {
    let is_context = [old.kind, new.kind].contains(&UplinkKind::Cdna);
    with(old.differing(new), |key| match Effort::of("uplink", key) {
        Effort::Device if is_context => Effort::Restart(CARDS),
        effort => effort,
    })
}

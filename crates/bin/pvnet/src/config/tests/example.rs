//! The commented examples: an operator finds a line for each key, with what it means, and its default.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use guard::Sources;
use serde_json::{Value, json};

use super::super::keys::keys_in;
use super::super::nic::Context;
use super::super::port_settings::effort_in;
use super::super::table::Table as _;
use super::super::*;
use super::{RED, parse};

const EXAMPLE: &str = include_str!("../../../../../../examples/pvnet.toml");

/// The keys that have a line in the tables of a kind, each with the first one.
fn shown(kind: TableKind) -> BTreeMap<&'static str, &'static str> {
    let mut of = None;
    let mut shown = BTreeMap::new();
    for line in EXAMPLE.lines().map(|line| line.strip_prefix('#').unwrap_or(line)) {
        let header = line.strip_prefix('[').map(|line| line.trim_start_matches('['));
        let header = header.and_then(|line| line.split(']').next()?.split('.').next());
        of = header.map_or(of, TableKind::named);
        let key = line.split([' ', '.']).next().filter(|key| !key.is_empty());
        if let (true, Some(key)) = (of == Some(kind) && line.contains(" = "), key) {
            shown.entry(key).or_insert(line);
        }
    }
    shown
}

/// The lines of a part, also those that are commented out.
fn lines(part: &str) -> String {
    let lines = part.lines().filter(|line| !line.starts_with("# "));
    lines.map(|line| format!("{}\n", line.trim_start_matches('#'))).collect()
}

/// examples/xen.toml has `[xen]`.
fn kinds() -> impl Iterator<Item = TableKind> {
    TableKind::ALL.into_iter().filter(|kind| *kind != TableKind::Xen)
}

#[test]
fn the_example_has_a_line_for_every_key() {
    for kind in kinds() {
        let keys: BTreeSet<_> = keys_in(kind).into_iter().map(|(key, _)| key).collect();
        assert_eq!(shown(kind).into_keys().collect::<BTreeSet<_>>(), keys, "in {kind}");
    }
    let text = EXAMPLE.replace("\n# ", " ");
    let (_, own) = text.split_once("keys above that are not the guest's own: ").unwrap();
    let (own, _) = own.split_once('.').unwrap();
    let of_interfaces = |key: &str| effort_in::<Vif>(key).or(Context::key(key)).is_some();
    let mut keys = keys_in(TableKind::Guest);
    keys.retain(|(key, _)| !of_interfaces(key));
    let keys: Vec<_> = keys.into_iter().map(|(key, _)| key).collect();
    assert_eq!(own.replace(" and ", ", ").split(", ").collect::<Vec<_>>(), keys);
}

/// Each line is valid alone. Its value is the default, unless a port without the key has none, or the key is here because each table has another.
#[test]
fn the_example_shows_the_defaults() {
    let schema = schema();
    for kind in kinds() {
        let examples: &[&str] = match kind {
            TableKind::Daemon | TableKind::Switch | TableKind::Xen => &[],
            TableKind::Guest => &["addresses", "guard_addresses", "limit", "name", "nic"],
            TableKind::Uplink => &["addresses", "limit", "name", "queues", "socket", "tap"],
            TableKind::Port => &["guard_addresses", "limit", "name", "socket"],
            TableKind::Mirror => &["from", "name"],
            TableKind::Nic => &["name", "wire"],
        };
        let mut lines = EXAMPLE.lines().map(|line| line.trim_start_matches('#'));
        let headers = [format!("[{kind}]"), format!("[[{kind}]]")];
        let header = lines.find(|line| headers.iter().any(|header| header == line)).unwrap();
        let table = &schema["properties"][kind.name()];
        let keys = &table.get("items").unwrap_or(table)["properties"];
        let is_example = |(key, line): &(&str, &str)| {
            let of_context = kind == TableKind::Guest && ["protection", "coalescing"].contains(key);
            let table = format!("{header}\n{}", if of_context { "nic = \"card0\"\n" } else { "" });
            let default = Config::parse(&table).unwrap();
            let differs = match Config::parse(&format!("{table}{line}\n")) {
                Ok(shown) => !differences(&default, &shown).is_empty(),
                // The group of another machine.
                Err(fault) => {
                    assert!(fault.to_string().contains("no group"), "{fault}");
                    true
                }
            };
            differs && !may_be_absent(&keys[*key])
        };
        let shown = shown(kind).into_iter().filter(is_example).map(|(key, _)| key);
        assert_eq!(shown.collect::<Vec<_>>(), examples, "in {kind}");
    }
}

/// Whether a key's type is that of a value or nothing.
fn may_be_absent(key: &Value) -> bool {
    let [types, parts] = ["type", "anyOf"].map(|word| key[word].as_array());
    types.is_some_and(|types| types.contains(&"null".into()))
        || parts.is_some_and(|parts| parts.contains(&json!({ "type": "null" })))
}

/// Without these keys something else decides, as the lines show.
#[test]
fn what_decides_without_a_key_is_shown() {
    let of = |kind, keys: &[&str]| {
        let shown = shown(kind);
        let lines: Vec<_> = keys.iter().map(|key| shown[key]).collect();
        Config::parse(&format!("[[{kind}]]\n{}\n", lines.join("\n"))).unwrap()
    };
    let offloads = ["checksum_offload", "tcp_segmentation_offload", "udp_segmentation_offload"];
    let keys = [&offloads[..], &["packed", "multicast_router"]].concat();
    let [port, silent] = [&keys[..], &[]].map(|keys| of(TableKind::Port, keys).ports.remove(0));
    assert_eq!((port.offered(), port.rules()), (silent.offered(), silent.rules()));
    let keys = ["packed", "multicast_router"];
    let [uplink, silent] =
        [&keys[..], &[]].map(|keys| of(TableKind::Uplink, keys).uplinks.remove(0));
    assert_eq!(uplink.wanted_of_back_end(1), silent.wanted_of_back_end(1));
    assert_eq!(uplink.rules(), silent.rules());
    let keys =
        ["scatter_gather", "checksum_offload", "tcp_segmentation_offload", "split_event_channels"];
    let [vif, silent] =
        [&keys[..], &[]].map(|keys| of(TableKind::Guest, keys).guests.remove(0).vifs.remove(0));
    let offered = |vif: &Vif| vif.offered(1, PlatformKind::Machine, Poll::Adaptive);
    assert_eq!(offered(&vif), offered(&silent));
}

#[test]
fn the_example_is_valid() {
    let config = parse(EXAMPLE).unwrap();
    let document: Value = toml::from_str(EXAMPLE).unwrap();
    assert_eq!(document::errors(&schema(), &document), [""; 0]);
    assert_eq!(config.daemon.poll_limit(), Daemon::default().poll_limit());
    let [red, blue] = &config.guests[..] else { panic!() };
    let sources = |guest: &Guest| guest.vifs[0].settings.sources().unwrap();
    assert_eq!([red, blue].map(|guest| matches!(sources(guest), Sources::Addresses(_))), [true; 2]);
    // The lines that are commented out are valid too.
    let keys = ["limit", "guard", "uid", "token_file"];
    let set = keys.iter().fold(EXAMPLE.to_owned(), |text, key| {
        text.replace(&format!("\n#{key}"), &format!("\n{key}"))
    });
    let set = parse(&set).unwrap();
    assert!(set.guests[0].uid.is_some() && set.guests[0].token_file.is_some());
    assert_eq!(set.guests[0].vifs[0].settings.sources(), Ok(sources(red)));
    assert!(!set.guests[0].vifs[0].settings.limit.ingress.is_unlimited());
    let router = EXAMPLE.split("\n\n").find(|part| part.contains("#[[guest.vif]]")).unwrap();
    let router = lines(router);
    assert_eq!(parse(&format!("{EXAMPLE}\n{router}")).unwrap().guests[2].vifs.len(), 2);
    let cards = lines(&EXAMPLE[EXAMPLE.find("#[[nic]]").unwrap()..]);
    assert_eq!(parse(&format!("{RED}{cards}")).unwrap().guests[1].contexts.len(), 1);
}

#[test]
fn the_example_for_xen_is_valid_and_shows_the_defaults() {
    let config = parse(include_str!("../../../../../../examples/xen.toml")).unwrap();
    let any = config.guest("any").unwrap().vifs.remove(0);
    let other = Vif::default();
    assert_eq!(any.features(), other.features());
    assert_eq!((any.queues, any.tx, any.rx), (other.queues, other.tx, other.rx));
    let is_split =
        |vif: &Vif| vif.offered(1, PlatformKind::Xen, Poll::Adaptive).split_event_channels;
    assert_eq!(is_split(&any), is_split(&other));
    assert_eq!(any.settings.guest_offloads, other.settings.guest_offloads);
    assert_eq!(
        (any.settings.sources(), any.settings.limit),
        (other.settings.sources(), other.settings.limit)
    );
    assert_eq!(config.daemon.poll_limit(), Duration::ZERO);
    let default = Xen::default();
    assert_eq!((config.xen.backend, config.xen.on_stop), (default.backend, default.on_stop));
}

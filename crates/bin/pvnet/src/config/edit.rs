//! Changes of a configuration's text, by commands and by `--set`: what they do not name keeps its comments, its order and its form.

use control_socket::{Change, TableKind};
use toml_edit::{ArrayOfTables, Decor, DocumentMut, InlineTable, Item, Table, TableLike, Value};

use super::guest::{EVERY_GUEST, vif_name};
use super::nic::Context;
use super::port_settings::effort_in;
use super::table::Table as _;
use super::{Config, Vif, differences};

/// A configuration after a command.
#[derive(Debug)]
pub struct Edited {
    /// Its text.
    pub text: String,
    /// What it says, checked.
    pub config: Config,
    /// The names of the ports that the command concerns.
    pub names: Vec<String>,
}

/// Applies a command to the text of a configuration. `served` are ports of guests that need no table in the configuration: those of a
/// Xen host. Such a guest gets one, with the settings that it has.
pub fn edit(text: &str, change: &Change, served: &[String]) -> Result<Edited, String> {
    let mut document: DocumentMut = text.parse().map_err(said)?;
    let names = match change {
        Change::Reload { .. } => return Err("a reload is no change of the tables".to_owned()),
        Change::Add { toml } => add(&mut document, toml)?,
        Change::Delete { name } => delete(&mut document, name)?,
        Change::DeleteMirror { name } => delete_mirror(&mut document, name)?,
        Change::Set { name, set: values, unset } => {
            set(&mut document, name, values, unset, served)?;
            vec![name.clone()]
        }
    };
    let text_after = document.to_string();
    let config = Config::parse(&text_after).map_err(|fault| fault.of_key())?;
    // Nothing else means something else now.
    if let Ok(before) = Config::parse(text)
        && differences(&before, &config).iter().any(|other| !names.contains(&other.name))
    {
        return Err(by_hand("the change cannot be written in the form of the file"));
    }
    config.check()?;
    Ok(Edited { text: text_after, config, names })
}

/// Checks that a text can be changed without a change of its form.
pub fn keeps_its_form(text: &str) -> Result<(), String> {
    let document: DocumentMut = text.parse().map_err(said)?;
    match document.to_string().trim_end() == text.trim_end() {
        true => Ok(()),
        false => Err(by_hand("comments or spacing would change")),
    }
}

/// The keys whose values are lists.
const LISTS: [&str; 5] = ["addresses", "guard_addresses", "trunk", "workers", "from"];

/// A value in TOML, or a string if it is not TOML. A list may be written with commas.
pub fn value_of(key: &str, text: &str) -> Value {
    let value = in_toml(text);
    match LISTS.contains(&key) && !value.as_ref().is_some_and(Value::is_array) {
        true => text.split(',').map(str::trim).map(|text| value_of("", text)).collect(),
        false => value.unwrap_or_else(|| text.into()),
    }
}

fn in_toml(text: &str) -> Option<Value> {
    let document: DocumentMut = format!("value = {text}").parse().ok()?;
    let mut table = Some(document.into_table()).filter(|table| table.len() == 1)?;
    let mut value = table.remove("value")?.into_value().ok()?;
    value.decor_mut().clear();
    Some(value)
}

pub(super) fn said(error: impl std::fmt::Display) -> String {
    error.to_string().trim_end().to_owned()
}

fn by_hand(why: &str) -> String {
    format!("{why}; change the file by hand, and reload")
}

fn add(document: &mut DocumentMut, text: &str) -> Result<Vec<String>, String> {
    let fragment: DocumentMut = text.parse().map_err(said)?;
    let mut names = Vec::new();
    for (kind, item) in fragment.into_table() {
        let known = TableKind::named(&kind).filter(|kind| kind.can_be_added());
        let new: Option<Vec<Table>> = match item {
            Item::ArrayOfTables(new) => Some(new.into_iter().collect()),
            Item::Value(Value::Array(new)) => {
                let inline = |value: Value| Some(value.as_inline_table()?.clone().into_table());
                new.into_iter().map(inline).collect()
            }
            _ => None,
        };
        let (Some(known), Some(new)) = (known, new) else {
            let ports: Vec<_> = TableKind::ports().map(|kind| format!("[[{kind}]]")).collect();
            return Err(format!("{} and [[mirror]] can be added, not {kind}", ports.join(", ")));
        };
        for table in new {
            let name = name_of(&table).ok_or_else(|| nameless(known, &table))?.to_owned();
            if all_names(document).contains(&name) {
                let hint =
                    if known == TableKind::Mirror { "" } else { "; `pvnet port set` changes it" };
                return Err(format!("the name {name:?} is in use{hint}"));
            }
            names.push(name);
            push(document, &kind, table);
        }
    }
    if names.is_empty() {
        return Err("there is nothing to add".to_owned());
    }
    Ok(names)
}

/// Why a table has no name.
fn nameless(kind: TableKind, table: &Table) -> String {
    match table.get("name") {
        None => format!("a [[{kind}]] has no name"),
        Some(name) => {
            let name = name.to_string();
            format!(
                "the name of a [[{kind}]] is a string, and {} is none: name = \"{kind}1\"",
                name.trim()
            )
        }
    }
}

/// Puts a table after the others of its kind, or at the end.
fn push(document: &mut DocumentMut, kind: &str, mut table: Table) {
    let others = document.get(kind).map(below).unwrap_or_default();
    let last = places(document.as_table()).into_iter().max().unwrap_or(0);
    let after = others.last().copied().unwrap_or(last);
    without_places(&mut table);
    if let Some(Item::Value(Value::Array(others))) = document.get_mut(kind) {
        others.push(table.into_inline_table());
        return;
    }
    if others.is_empty() {
        table.set_position(Some(last + 1));
    }
    if !document.is_empty() {
        let (remarks, own) = (take_attached(document, after), comments(table.decor()));
        table.decor_mut().set_prefix(format!("{remarks}\n{}", own.trim_start_matches('\n')));
    }
    let others = document.entry(kind).or_insert(Item::ArrayOfTables(ArrayOfTables::new()));
    if let Item::ArrayOfTables(others) = others {
        others.push(table);
    }
}

/// Takes the remarks right below the table at a place, which belong to it: those up to an empty line. Without an empty line they may as well
/// belong to what follows.
fn take_attached(document: &mut DocumentMut, place: isize) -> String {
    let next = next_place(document, place);
    let text = match next.and_then(|next| at_place(document.as_table_mut(), next)) {
        Some(table) => comments(table.decor()),
        None => document.trailing().as_str().unwrap_or_default().to_owned(),
    };
    let lines = text.split_inclusive('\n').take_while(|line| !line.trim().is_empty());
    let attached: String = lines.collect();
    if attached.is_empty() || attached.len() == text.len() {
        return String::new();
    }
    let rest = &text[attached.len()..];
    match next.and_then(|next| at_place(document.as_table_mut(), next)) {
        Some(table) => table.decor_mut().set_prefix(rest),
        None => document.set_trailing(rest),
    }
    attached
}

/// The place of the table that follows another one.
fn next_place(document: &DocumentMut, place: isize) -> Option<isize> {
    places(document.as_table()).into_iter().filter(|other| *other > place).min()
}

/// Takes the places that a table and those below it had in another text.
fn without_places(table: &mut Table) {
    table.set_position(None);
    for (_, item) in table.iter_mut() {
        match item {
            Item::Table(table) => without_places(table),
            Item::ArrayOfTables(tables) => tables.iter_mut().for_each(without_places),
            _ => {}
        }
    }
}

/// Removes a port; of a guest all interfaces.
fn delete(document: &mut DocumentMut, name: &str) -> Result<Vec<String>, String> {
    for kind in TableKind::ports() {
        if take(document, kind, name) {
            return Ok(vec![name.to_owned()]);
        }
    }
    // All interfaces have this key.
    let found = tables_with(document, "limit").into_iter().find(|found| found.name == name);
    match found.and_then(|found| found.guest) {
        Some(guest) => Err(format!(
            "{name:?} is an interface of guest {guest:?}, whose interfaces come and go together; change its table in \
             the configuration"
        )),
        None => Err(unknown(document, name)),
    }
}

fn delete_mirror(document: &mut DocumentMut, name: &str) -> Result<Vec<String>, String> {
    if take(document, TableKind::Mirror, name) {
        return Ok(vec![name.to_owned()]);
    }
    let known = document.get_mut(TableKind::Mirror.name()).map(elements).unwrap_or_default();
    let known: Vec<_> = known.iter().filter_map(|table| name_of(&**table)).collect();
    match known.is_empty() {
        true => Err("there are no mirrors".to_owned()),
        false => Err(format!("no mirror {name:?} (there are: {})", known.join(", "))),
    }
}

/// Takes a table out. Returns whether it was there.
fn take(document: &mut DocumentMut, kind: TableKind, name: &str) -> bool {
    let Some(item) = document.get_mut(kind.name()) else { return false };
    let found = elements(item).into_iter().position(|table| name_of(table) == Some(name));
    let Some(index) = found else { return false };
    match item {
        Item::ArrayOfTables(tables) => {
            let gone = tables.get(index).cloned().unwrap_or_default();
            tables.remove(index);
            let above = detached(&comments(gone.decor()));
            put_after(document, gone.position(), &above);
        }
        Item::Value(Value::Array(tables)) => drop(tables.remove(index)),
        _ => {}
    }
    true
}

fn set(
    document: &mut DocumentMut,
    name: &str,
    values: &[(String, String)],
    unset: &[String],
    served: &[String],
) -> Result<(), String> {
    if values.is_empty() && unset.is_empty() {
        return Err("there is nothing to set: KEY=VALUE".to_owned());
    }
    if !has(document, name) && served.iter().any(|served| served == name) {
        write_out(document, name);
    }
    for (key, value) in values {
        let path: Vec<_> = key.split('.').map(str::trim).collect();
        let found = table_of(document, name, path[0])?;
        insert(found.table, &path, value_of(key, value))
            .ok_or_else(|| format!("{key}: not a key"))?;
    }
    for key in unset {
        let path: Vec<_> = key.split('.').map(str::trim).collect();
        let Found { table, place, .. } = table_of(document, name, path[0])?;
        let removed = remove(table, &path);
        let (above, own) = removed.ok_or_else(|| format!("{key} is not set on {name:?}"))?;
        put_after(document, own.or(place), &above);
    }
    Ok(())
}

/// Gives a guest of a Xen host a table: a copy of that of `*`, without its comments.
fn write_out(document: &mut DocumentMut, name: &str) {
    let guests = document.get_mut(TableKind::Guest.name()).map(elements).unwrap_or_default();
    let every = guests.into_iter().find(|table| name_of(&**table) == Some(EVERY_GUEST));
    let mut table = Table::new();
    table.insert("name", toml_edit::value(name));
    for (key, item) in every.iter().flat_map(|every| every.iter()) {
        let mut item = item.clone();
        if let Some(value) = item.as_value_mut() {
            value.decor_mut().clear();
        }
        if key != "name" {
            table.insert(key, item);
        }
    }
    push(document, TableKind::Guest.name(), table);
}

/// The tables of an array, whichever of TOML's forms it has.
fn elements(item: &mut Item) -> Vec<&mut dyn TableLike> {
    match item {
        Item::ArrayOfTables(tables) => {
            tables.iter_mut().map(|table| table as &mut dyn TableLike).collect()
        }
        Item::Value(Value::Array(tables)) => {
            let tables = tables.iter_mut().filter_map(Value::as_inline_table_mut);
            tables.map(|table| table as &mut dyn TableLike).collect()
        }
        _ => Vec::new(),
    }
}

fn name_of(table: &dyn TableLike) -> Option<&str> {
    table.get("name")?.as_str()
}

/// The names of all tables that have one.
fn all_names(document: &mut DocumentMut) -> Vec<String> {
    let tables = document.iter_mut().flat_map(|(_, item)| elements(item));
    tables.filter_map(|table| Some(name_of(table)?.to_owned())).collect()
}

/// Whether a port has this name.
fn has(document: &mut DocumentMut, name: &str) -> bool {
    // All ports have this key.
    tables_with(document, "limit").iter().any(|found| found.name == name)
}

fn unknown(document: &mut DocumentMut, name: &str) -> String {
    let is_port = |kind: &str| TableKind::named(kind).is_some_and(TableKind::is_port);
    let ports = document.iter_mut().filter(|(kind, _)| is_port(kind.get()));
    let known = ports.flat_map(|(_, item)| elements(item));
    let known: Vec<_> = known.filter_map(|table| name_of(table).map(str::to_owned)).collect();
    format!("no port {name:?} in the configuration (there are: {})", known.join(", "))
}

/// The table of this name that may have a key.
fn table_of<'a>(document: &'a mut DocumentMut, name: &str, key: &str) -> Result<Found<'a>, String> {
    if key == "name" {
        return Err("a port keeps its name; delete it and add another".to_owned());
    }
    let missing = match has(document, name) {
        true => format!("{key} is not a key of {name:?}"),
        false => unknown(document, name),
    };
    tables_with(document, key).into_iter().find(|found| found.name == name).ok_or(missing)
}

/// A table that may have a key.
pub(super) struct Found<'a> {
    /// Its port's name, or its own.
    pub(super) name: String,
    /// The guest that it is of, if it is of one.
    pub(super) guest: Option<String>,
    pub(super) table: &'a mut dyn TableLike,
    /// Its place among the tables of the text, if it has one.
    place: Option<isize>,
}

/// The tables that may have a key. A guest's is its own, or that of each interface that has such keys, if these have tables.
pub(super) fn tables_with<'a>(document: &'a mut DocumentMut, key: &str) -> Vec<Found<'a>> {
    let interface = match key {
        key if effort_in::<Vif>(key).is_some() => Some("vif"),
        key if Context::key(key).is_some() => Some("context"),
        _ => None,
    };
    let mut all = Vec::new();
    for (kind, item) in document.iter_mut() {
        let kind = TableKind::named(kind.get());
        if !matches!(kind, Some(kind) if kind.is_port() || kind == TableKind::Nic) {
            continue;
        }
        for (table, place) in placed(item) {
            let name = name_of(table).unwrap_or_default().to_owned();
            let guest = (kind == Some(TableKind::Guest)).then(|| name.clone());
            let below = interface.filter(|below| guest.is_some() && table.contains_key(below));
            let Some(below) = below else {
                all.push(Found { name, guest, table, place });
                continue;
            };
            let interfaces = table.get_mut(below).map(placed).unwrap_or_default();
            for (handle, (table, place)) in (0..).zip(interfaces) {
                let name = if below == "vif" { vif_name(&name, handle) } else { name.clone() };
                all.push(Found { name, guest: guest.clone(), table, place });
            }
        }
    }
    all
}

/// As [`elements`], with the places.
fn placed(item: &mut Item) -> Vec<(&mut dyn TableLike, Option<isize>)> {
    let places: Vec<_> = match &*item {
        Item::ArrayOfTables(tables) => tables.iter().map(Table::position).collect(),
        _ => Vec::new(),
    };
    let places = places.into_iter().chain(std::iter::repeat(None));
    elements(item).into_iter().zip(places).collect()
}

fn insert(table: &mut dyn TableLike, path: &[&str], mut value: Value) -> Option<()> {
    match path {
        [] | ["", ..] => None,
        [key] => {
            match table.get_mut(key) {
                Some(Item::Value(old)) => {
                    *value.decor_mut() = old.decor().clone();
                    *old = value;
                }
                _ => drop(table.insert(key, Item::Value(value))),
            }
            Some(())
        }
        [key, rest @ ..] => {
            if !table.contains_key(key) {
                table.insert(key, Item::Value(Value::InlineTable(InlineTable::new())));
            }
            insert(table.get_mut(key)?.as_table_like_mut()?, rest, value)
        }
    }
}

/// Removes a key. Returns the comments above it that do not belong to it, and where they were if that was not in `table`.
fn remove(table: &mut dyn TableLike, path: &[&str]) -> Option<(String, Option<isize>)> {
    let (key, rest) = path.split_first()?;
    if !rest.is_empty() {
        return remove(table.get_mut(key)?.as_table_like_mut()?, rest);
    }
    let above = table.key(key).map(|key| comments(key.leaf_decor()));
    let gone = table.remove(key)?;
    match gone {
        Item::Table(gone) if !gone.is_dotted() => {
            Some((detached(&comments(gone.decor())), gone.position()))
        }
        _ => Some((detached(&above.unwrap_or_default()), None)),
    }
}

/// The comments and empty lines above a key or a table.
fn comments(decor: &Decor) -> String {
    decor.prefix().and_then(|prefix| prefix.as_str()).unwrap_or_default().to_owned()
}

/// Those comments above a key or a table that an empty line separates from it: they are not about it.
fn detached(above: &str) -> String {
    let lines: Vec<&str> = above.split_inclusive('\n').collect();
    let last_empty = lines.iter().rposition(|line| line.trim().is_empty());
    let kept: String = last_empty.map_or(&[][..], |last| &lines[..=last]).concat();
    if kept.trim().is_empty() { String::new() } else { kept }
}

/// Puts comments above the table that follows a place in the text, or at the end.
fn put_after(document: &mut DocumentMut, place: Option<isize>, above: &str) {
    if above.is_empty() {
        return;
    }
    let next = next_place(document, place.unwrap_or(0));
    let next = next.and_then(|next| at_place(document.as_table_mut(), next));
    match next {
        Some(table) => {
            let old = comments(table.decor());
            table.decor_mut().set_prefix(format!("{above}{}", old.trim_start_matches('\n')));
        }
        None => {
            let old = document.trailing().as_str().unwrap_or_default().to_owned();
            document.set_trailing(format!("{above}{old}"));
        }
    }
}

/// The places of all tables below one.
fn places(table: &Table) -> Vec<isize> {
    table.iter().flat_map(|(_, item)| below(item)).collect()
}

/// The places of the tables of an item, and of those below them.
fn below(item: &Item) -> Vec<isize> {
    let with_own = |table: &Table| -> Vec<isize> {
        table.position().into_iter().chain(places(table)).collect()
    };
    match item {
        Item::Table(table) => with_own(table),
        Item::ArrayOfTables(tables) => tables.iter().flat_map(with_own).collect(),
        _ => Vec::new(),
    }
}

/// The table at a place.
fn at_place(table: &mut Table, place: isize) -> Option<&mut Table> {
    if table.position() == Some(place) {
        return Some(table);
    }
    table.iter_mut().find_map(|(_, item)| match item {
        Item::Table(table) => at_place(table, place),
        Item::ArrayOfTables(tables) => tables.iter_mut().find_map(|table| at_place(table, place)),
        _ => None,
    })
}

#[cfg(test)]
mod tests;

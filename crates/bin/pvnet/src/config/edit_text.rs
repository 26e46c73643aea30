//! Changes of the configuration by commands, on the file's text: what a command does not name keeps its comments, its order and its form.

use control_socket::Change;
use toml::Table as Tables;
use toml_edit::{ArrayOfTables, Decor, DocumentMut, InlineTable, Item, Table, TableLike, Value};

use super::context::Context;
use super::edit::{KINDS, MIRROR};
use super::guest::vif_name;
use super::overrides::{EVERY_GUEST, value_of};
use super::vif::Vif;
use super::{Config, differences, edit, shorthand};

/// The text of a configuration after a command, and the names of the ports that it concerns. `served` are as for [`edit()`].
///
/// # Errors
/// A sentence for an operator: as those of [`edit()`], or the text has a form in which the change cannot be written.
pub fn edit_text(
    text: &str,
    change: &Change,
    served: &[String],
) -> Result<(String, Vec<String>), String> {
    let mut tables: Tables = shorthand::read(text).map_err(said)?;
    let names = edit(&mut tables, change, served)?;
    let meant = Config::of_tables(&tables)?;
    let mut document: DocumentMut = text.parse().map_err(said)?;
    if document.to_string().trim_end() != text.trim_end() {
        return Err(by_hand("its form would not stay as it is"));
    }
    match change {
        Change::Reload { .. } => return Err("a reload is no change of the file".to_owned()),
        Change::Add { toml } => add(&mut document, toml)?,
        Change::Delete { name } => delete(&mut document, &KINDS, name),
        Change::DeleteMirror { name } => delete(&mut document, &[MIRROR], name),
        Change::Set { name, set: values, unset } => {
            set(&mut document, name, values, unset, served)?;
        }
    }
    let edited = document.to_string();
    let written =
        shorthand::read(&edited).map_err(said).and_then(|tables| Config::of_tables(&tables));
    match written {
        Ok(written) if differences(&written, &meant).is_empty() => Ok((edited, names)),
        _ => Err(by_hand("the change cannot be written in the form that it has")),
    }
}

fn said(error: impl std::fmt::Display) -> String {
    error.to_string().trim_end().to_owned()
}

fn by_hand(why: &str) -> String {
    format!("{why}; change the file by hand, and reload")
}

fn add(document: &mut DocumentMut, text: &str) -> Result<(), String> {
    let fragment: DocumentMut = text.parse().map_err(said)?;
    for (kind, item) in fragment.into_table() {
        let new: Vec<Table> = match item {
            Item::ArrayOfTables(new) => new.into_iter().collect(),
            Item::Value(Value::Array(new)) => new
                .into_iter()
                .filter_map(|value| Some(value.as_inline_table()?.clone().into_table()))
                .collect(),
            _ => Vec::new(),
        };
        new.into_iter().for_each(|table| push(document, &kind, table));
    }
    Ok(())
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

fn delete(document: &mut DocumentMut, kinds: &[&str], name: &str) {
    for kind in kinds {
        let Some(item) = document.get_mut(kind) else { continue };
        let found = elements(item).into_iter().position(|table| name_of(table) == Some(name));
        let Some(index) = found else { continue };
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
        return;
    }
}

fn set(
    document: &mut DocumentMut,
    name: &str,
    values: &[(String, String)],
    unset: &[String],
    served: &[String],
) -> Result<(), String> {
    let lost = || by_hand("no table of this name has such a key");
    if served.iter().any(|served| served == name) && !has(document, name) {
        write_out(document, name);
    }
    for (key, value) in values {
        let path: Vec<_> = key.split('.').map(str::trim).collect();
        let value: Value = value_of(value).to_string().parse().map_err(said)?;
        let (table, _) = table_of(document, name, path[0]).ok_or_else(lost)?;
        insert(table, &path, value).ok_or_else(lost)?;
    }
    for key in unset {
        let path: Vec<_> = key.split('.').map(str::trim).collect();
        let (table, place) = table_of(document, name, path[0]).ok_or_else(lost)?;
        let (above, own) = remove(table, &path).ok_or_else(lost)?;
        put_after(document, own.or(place), &above);
    }
    Ok(())
}

/// Gives a guest of a Xen host a table: a copy of that of `*`, without its comments.
fn write_out(document: &mut DocumentMut, name: &str) {
    let guests = document.get_mut("guest").map(elements).unwrap_or_default();
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
    push(document, "guest", table);
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

fn has(document: &mut DocumentMut, name: &str) -> bool {
    // All ports have this key.
    table_of(document, name, "limit").is_some()
}

/// The table of a port that has such a key, and its place among the tables of the text, if it has one.
fn table_of<'a>(
    document: &'a mut DocumentMut,
    name: &str,
    key: &str,
) -> Option<(&'a mut dyn TableLike, Option<isize>)> {
    for (kind, item) in document.iter_mut() {
        if !KINDS.contains(&kind.get()) {
            continue;
        }
        let is_guest = kind.get() == "guest";
        for (table, place) in placed(item) {
            let own = name_of(&*table).unwrap_or_default().to_owned();
            let found = match is_guest {
                true => of_guest((table, place), &own, name, key),
                false => (own == name).then_some((table, place)),
            };
            if found.is_some() {
                return found;
            }
        }
    }
    None
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

/// A guest's own table, or that of its interface, whose keys may be in the guest's table.
fn of_guest<'a>(
    (guest, place): (&'a mut dyn TableLike, Option<isize>),
    own: &str,
    name: &str,
    key: &str,
) -> Option<(&'a mut dyn TableLike, Option<isize>)> {
    let kind = match key {
        key if Vif::KEYS.contains(&key) => "vif",
        key if Context::KEYS.contains(&key) => "context",
        _ => "",
    };
    if kind.is_empty() || !guest.contains_key(kind) {
        return (own == name).then_some((guest, place));
    }
    let mut interfaces = (0..).zip(placed(guest.get_mut(kind)?));
    let is_meant = |handle| if kind == "vif" { vif_name(own, handle) == name } else { own == name };
    interfaces.find_map(|(handle, found)| is_meant(handle).then_some(found))
}

fn insert(table: &mut dyn TableLike, path: &[&str], mut value: Value) -> Option<()> {
    match path {
        [] => None,
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

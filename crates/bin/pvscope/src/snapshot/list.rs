//! `pvscope snapshots`: shows and removes them.

use ::report::{Table, rfc3339};
use clap::Args;
use document::Document;
use schemars::JsonSchema;
use serde::Serialize;

use super::store::{KEPT_BYTES, Snapshot, Store};
use crate::error::Result;
use crate::report::{json, show};

/// Arguments of `pvscope snapshots`.
#[derive(Args)]
pub struct SnapshotsArgs {
    /// Remove these, by the beginning of their names, or all.
    #[arg(long, value_name = "NAME", num_args = 0..)]
    clear: Option<Vec<String>>,
    /// Print a JSON document instead.
    #[arg(long)]
    json: bool,
}

/// The snapshots of a store, for programs.
#[derive(JsonSchema, Serialize)]
pub struct SnapshotsData {
    /// The folder that they are kept in.
    folder: String,
    /// Bytes of the disk that they take.
    bytes: u64,
    /// The most bytes that are kept.
    kept_bytes: u64,
    /// Those that are kept, the one that was used last first.
    snapshots: Vec<Entry>,
    /// Those that `--clear` has removed.
    removed: Vec<Entry>,
}

/// A machine that has booted.
#[derive(JsonSchema, Serialize)]
struct Entry {
    /// Its name, the beginning of a digest.
    name: String,
    /// Bytes of the disk that it takes, or took.
    bytes: u64,
    /// When it was used last, in UTC (RFC 3339).
    used: String,
    /// The QEMU that saved it, as it names itself.
    qemu: String,
    /// What the machine is, in words.
    machine: String,
}

impl Document for SnapshotsData {
    const SCHEMA: &'static str = "pvscope-snapshots/1";
}

impl SnapshotsData {
    /// What a store has, after these were removed.
    fn new(store: &Store, removed: &[Snapshot]) -> Self {
        let all = store.all();
        Self {
            folder: store.folder().display().to_string(),
            bytes: total(&all),
            kept_bytes: KEPT_BYTES,
            snapshots: all.iter().map(Entry::new).collect(),
            removed: removed.iter().map(Entry::new).collect(),
        }
    }
}

impl Entry {
    fn new(snapshot: &Snapshot) -> Self {
        Self {
            name: snapshot.name(),
            bytes: snapshot.bytes(),
            used: rfc3339(snapshot.used()),
            qemu: snapshot.qemu().to_owned(),
            machine: snapshot.what().to_owned(),
        }
    }
}

/// Runs the command.
pub fn run(args: &SnapshotsArgs) -> Result<()> {
    let store = Store::of_this_machine()?;
    let removed = args.clear.as_ref().map(|names| store.clear(names)).transpose()?;
    show(&match (args.json, removed) {
        (true, removed) => json(&SnapshotsData::new(&store, &removed.unwrap_or_default()))?,
        (false, Some(removed)) => {
            let (count, bytes) = (removed.len(), total(&removed));
            format!("{count} snapshots with {} MB are removed\n", megabytes(bytes))
        }
        (false, None) => text(&store),
    })
}

/// The bytes of all of them.
fn total(snapshots: &[Snapshot]) -> u64 {
    snapshots.iter().map(Snapshot::bytes).sum()
}

fn text(store: &Store) -> String {
    let all = store.all();
    let table = Table::new().left("name").right("MB").left("used").left("QEMU").left("machine");
    let table = all.iter().fold(table, |mut table, snapshot| {
        let ago = snapshot.used().elapsed().unwrap_or_default();
        table.row([
            snapshot.name(),
            megabytes(snapshot.bytes()).to_string(),
            format!("{} min ago", ago.as_secs() / 60),
            snapshot.qemu().to_owned(),
            snapshot.what().to_owned(),
        ]);
        table
    });
    format!("{}{}\n", table.render(false), sizes(store, &all))
}

/// How much there is, and where.
pub fn sizes(store: &Store, all: &[Snapshot]) -> String {
    format!(
        "{} kept, {} of {} MB in {}",
        all.len(),
        megabytes(total(all)),
        megabytes(KEPT_BYTES),
        store.folder().display()
    )
}

/// Megabytes, rounded up.
pub fn megabytes(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::snapshot::identity::Identity;

    fn add(store: &Store, name: &str) {
        let identity = Identity::named("a guest sends");
        let save = |state: &std::path::Path| {
            std::fs::write(state, vec![0; 3 << 20]).map_err(Error::path(state))
        };
        store.add(name, &identity, Vec::new(), save).unwrap();
    }

    #[test]
    fn the_list_has_names_sizes_and_the_sum() {
        let folder = lab::TempDir::new().unwrap();
        let store = Store::at(folder.path().to_owned());
        add(&store, "0123abcd");
        let text = text(&store);
        for part in ["0123abcd", "a guest sends", "0 min ago", "1 kept, 3 of 4096 MB in "] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn the_document_has_those_that_are_kept_and_those_that_were_removed() {
        let folder = lab::TempDir::new().unwrap();
        let store = Store::at(folder.path().to_owned());
        ["0123abcd", "4567cdef"].iter().for_each(|name| add(&store, name));
        let document =
            |removed: &[Snapshot]| document::checked(&SnapshotsData::new(&store, removed));
        let both = document(&[]);
        assert_eq!(both["snapshots"].as_array().map(Vec::len), Some(2));
        assert_eq!((&both["bytes"], &both["kept_bytes"]), (&(6 << 20).into(), &KEPT_BYTES.into()));
        assert_eq!(both["removed"].as_array().map(Vec::len), Some(0));
        let removed = store.clear(&["01".to_owned()]).unwrap();
        let one = document(&removed);
        assert_eq!(one["bytes"], 3 << 20);
        assert_eq!(one["snapshots"][0]["name"], "4567cdef");
        assert_eq!(one["removed"][0]["name"], "0123abcd");
        assert_eq!(one["removed"][0]["machine"], "a guest sends");
        assert_eq!(one["removed"].as_array().map(Vec::len), Some(1));
    }
}

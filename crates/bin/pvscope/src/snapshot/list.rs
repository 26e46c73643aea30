//! `pvscope snapshots`: shows and removes them.

use ::report::Table;
use clap::Args;

use super::store::{KEPT_BYTES, Snapshot, Store};
use crate::error::Result;
use crate::report::show;

/// Arguments of `pvscope snapshots`.
#[derive(Args)]
pub struct SnapshotsArgs {
    /// Remove these, by the beginning of their names, or all.
    #[arg(long, value_name = "NAME", num_args = 0..)]
    clear: Option<Vec<String>>,
}

/// Runs the command.
pub fn run(args: &SnapshotsArgs) -> Result<()> {
    let store = Store::of_this_machine()?;
    match &args.clear {
        Some(names) => {
            let (count, bytes) = store.clear(names)?;
            show(&format!("{count} snapshots with {} MB are removed\n", megabytes(bytes)))
        }
        None => show(&text(&store)),
    }
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
    let total = all.iter().map(Snapshot::bytes).sum();
    format!("{}{}\n", table.render(false), sizes(store, all.len(), total))
}

/// How much there is, and where.
pub fn sizes(store: &Store, count: usize, bytes: u64) -> String {
    format!(
        "{count} kept, {} of {} MB in {}",
        megabytes(bytes),
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

    #[test]
    fn the_list_has_names_sizes_and_the_sum() {
        let folder = lab::TempDir::new().unwrap();
        let store = Store::at(folder.path().to_owned());
        let identity = Identity::named("a guest sends");
        let save = |state: &std::path::Path| {
            std::fs::write(state, vec![0; 3 << 20]).map_err(Error::path(state))
        };
        store.add(("0123abcd", &identity), Vec::new(), save).unwrap();
        let text = text(&store);
        for part in ["0123abcd", "a guest sends", "0 min ago", "1 kept, 3 of 4096 MB in "] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

//! Resources that a domain and the daemon hold, to find leaks.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::host::Shell;
use crate::{Error, Result};

use super::super::COMMAND_TIMEOUT;

/// How much the daemon's own memory may grow: allocators keep some freed memory. Pages of its code, of which attacks use more, are not counted.
const RSS_KIB: u64 = 1024;
/// The count that may grow by `RSS_KIB`.
const RSS: &str = "rss_anon_kib";

/// Counts of resources, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Resources(BTreeMap<String, u64>);

impl Resources {
    /// Counts what the daemon `pid` holds in dom0, and the grants and event channels of the domain `guest`.
    pub fn count(dom0: &Shell, pid: u32, guest: u32) -> Result<Self> {
        // Xen's debug key g lists every grant in use on a line that begins with a number in brackets. Files of control rings and hashes are left out:
        // a vif keeps the ledger of each ring that a frontend ever had until it is unplugged, and only attacks use a control ring.
        let script = format!(
            "count() {{ echo \"$1 $(wc -l)\"; }}\n\
             lsevtchn 0 | count dom0_event_channels\n\
             lsevtchn {guest} | count guest_event_channels\n\
             xl dmesg -c >/dev/null; xl debug-keys g; xl dmesg >/run/grants\n\
             grep '^(XEN) *\\[0x' /run/grants | count grants_in_use\n\
             sed -n 's/.*, \\([0-9]*\\) maptrack frames.*/\\1/p' /run/grants | \
             awk '{{n += $1}} END {{print \"maptrack_frames\", n}}'\n\
             grep gntdev /proc/{pid}/maps | count mapped_grants\n\
             ls /proc/{pid}/fd | count descriptors\n\
             ls /proc/{pid}/task | count threads\n\
             find /run/pvnet -type f ! -name 'ctrl-*' ! -name 'hash-*' | count files\n\
             awk '/^RssAnon/ {{print \"{RSS}\", $2}}' /proc/{pid}/status"
        );
        Self::parse(&dom0.run(&script, COMMAND_TIMEOUT)?)
    }

    /// The same without the daemon's memory, which cannot be compared with an earlier daemon's.
    #[must_use]
    pub fn without_memory(mut self) -> Self {
        self.0.remove(RSS);
        self
    }

    fn parse(text: &str) -> Result<Self> {
        let pair = |line: &str| {
            let (name, count) = line.split_once(' ')?;
            Some((name.to_owned(), count.trim().parse().ok()?))
        };
        let counts: Option<BTreeMap<_, _>> = text.lines().map(pair).collect();
        let wrong = "a line is not a name and a number";
        counts.map(Self).ok_or_else(|| Error::parse("the resource counts", wrong, text))
    }

    /// The counts that differ from `before`, as text.
    #[must_use]
    pub fn leaks_since(&self, before: &Self) -> Vec<String> {
        let counts = self.0.iter().map(|(name, after)| {
            let before = before.0.get(name).copied().unwrap_or(0);
            (name, before, *after)
        });
        let differ = counts.filter(|(name, before, after)| match name.as_str() {
            RSS => *after > before + RSS_KIB,
            _ => before != after,
        });
        differ
            .map(|(name, before, after)| format!("{name} went from {before} to {after}"))
            .collect()
    }
}

impl std::fmt::Display for Resources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words =
            self.0.iter().map(|(name, count)| format!("{} {count}", name.replace('_', " ")));
        f.write_str(&words.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(text: &str) -> Resources {
        Resources::parse(text).expect("counts")
    }

    #[test]
    fn one_more_of_anything_is_a_leak_and_of_memory_a_mebibyte() {
        let before = resources("descriptors 40\nrss_anon_kib 5000\n");
        assert!(before.leaks_since(&before).is_empty());
        assert!(resources("descriptors 40\nrss_anon_kib 6024\n").leaks_since(&before).is_empty());
        let after = resources("descriptors 41\nrss_anon_kib 6025\n");
        assert_eq!(
            after.leaks_since(&before),
            ["descriptors went from 40 to 41", "rss_anon_kib went from 5000 to 6025"]
        );
        assert_eq!(after.without_memory().leaks_since(&before).len(), 1);
        assert_eq!(before.to_string(), "descriptors 40, rss anon kib 5000");
    }

    #[test]
    fn other_text_is_refused() {
        assert!(Resources::parse("descriptors many").is_err());
        assert!(Resources::parse("lsevtchn: not found\n").is_err());
    }
}

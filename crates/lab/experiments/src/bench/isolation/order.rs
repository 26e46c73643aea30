//! Orders from the benchmark to the hostile process, in a file, and its reports.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// What the hostile process does until the next order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// It is a connected guest that receives frames, and sends none.
    #[default]
    Idle,
    /// The attack.
    Attack,
    /// It is idle as a guest, and uses CPU time: in per cent of a CPU, so 150 are one and a half CPUs.
    Spin(u32),
    /// It is a good guest with much to do: it sends ordinary frames as fast as they are taken.
    Busy,
}

/// The hostile process prints a report when it begins to follow an order, and after an attempt that may be its last.
/// It counts from the process's start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The order.
    pub order: Order,
    /// Frames, events or requests of the attack so far.
    pub operations: u64,
    /// How often the attack failed; it then joins again.
    pub failures: u64,
    /// The last failure.
    pub failure: Option<String>,
}

impl Order {
    /// Writes it for the hostile process.
    pub fn write(self, file: &Path) -> Result<()> {
        let failed = |source| Error::Path { path: file.to_owned(), source };
        let text = serde_json::to_string(&self).map_err(|error| failed(error.into()))?;
        // Renamed into place: the reader never sees half an order.
        let new = file.with_extension("new");
        std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, file)).map_err(failed)
    }

    /// Reads the order. `None` if there is none yet.
    pub fn read(file: &Path) -> Option<Self> {
        serde_json::from_str(&std::fs::read_to_string(file).ok()?).ok()
    }
}

impl Report {
    /// The last report in the process's output.
    pub fn last(output: &str) -> Option<Self> {
        serde_json::from_str(output.lines().last()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use lab::TempDir;

    use super::*;

    #[test]
    fn an_order_is_read_as_it_was_written() {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("order");
        assert_eq!(Order::read(&file), None);
        for order in [Order::Idle, Order::Attack, Order::Spin(25), Order::Busy] {
            order.write(&file).unwrap();
            assert_eq!(Order::read(&file), Some(order));
        }
    }

    #[test]
    fn the_last_line_is_the_report() {
        let report = Report { order: Order::Spin(50), operations: 7, ..Report::default() };
        let lines = [Report::default(), report.clone()].map(|r| serde_json::to_string(&r).unwrap());
        assert_eq!(Report::last(&lines.join("\n")), Some(report));
        assert_eq!(Report::last(""), None);
    }
}

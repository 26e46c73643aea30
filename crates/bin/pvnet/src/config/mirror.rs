//! `[[mirror]]`: the frames of some ports are copied to another port, or to files.

use serde::Deserialize;

use super::table::{Effort, table};

table! {
    /// `[[mirror]]`
    #[derive(Eq)]
    Mirror [Effort = Effort::InPlace] {
        /// Its name, for operators.
        name: String = String::new();
        /// The ports whose frames are copied.
        from: Vec<String> = Vec::new();
        /// Which of their frames.
        direction: Direction = Direction::Both;
        /// The port that gets the copies and nothing else. What it sends is dropped.
        to: Option<String> = None;
        /// The name of the files that the copies are written to, without what [`Mirror::file_name`] takes off.
        file: Option<String> = None;
        /// The most MiB of a file [default: 100].
        file_mib: Option<u32> = None;
        /// The most files; the oldest is removed for a new one [default: 10].
        files: Option<u32> = None;
        /// Which frames are written to files, in the language of `pvnet capture`.
        filter: Option<String> = None;
        /// The most bytes of a frame that are copied; 0 for all. A copy to a port has the first 128 in any case.
        snaplen: u32 = 0;
    }
}

/// `direction`: which frames of a port are copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// From the port into the switch.
    Ingress,
    /// From the switch out of the port.
    Egress,
    /// All.
    #[default]
    Both,
}

impl Mirror {
    /// The name of its files, to which a number and an ending are added.
    pub fn file_name(&self) -> Option<&str> {
        let file = self.file.as_deref()?;
        Some(file.strip_suffix(capture::EXTENSION).unwrap_or(file))
    }

    /// The most bytes of a file, and the most files.
    pub fn file_limits(&self) -> (u64, usize) {
        let bytes = u64::from(self.file_mib.unwrap_or(100)) << 20;
        (bytes, self.files.unwrap_or(10) as usize)
    }

    /// What is written to files.
    pub fn recorded(&self) -> capture::Options {
        let wanted = self.filter.as_deref().unwrap_or_default().trim();
        let filter = match (self.direction, wanted) {
            (Direction::Both, wanted) => wanted.to_owned(),
            (Direction::Ingress, "") => "inbound".to_owned(),
            (Direction::Egress, "") => "outbound".to_owned(),
            (Direction::Ingress, wanted) => format!("inbound and ({wanted})"),
            (Direction::Egress, wanted) => format!("outbound and ({wanted})"),
        };
        capture::Options { filter, snaplen: self.snaplen, ..capture::Options::default() }
    }
}

impl Direction {
    /// Whether frames from the port into the switch are copied, and those of the other direction.
    pub fn parts(self) -> [bool; 2] {
        [self != Self::Egress, self != Self::Ingress]
    }
}

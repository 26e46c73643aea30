//! `[[mirror]]`: the frames of some ports are copied to another port.

use serde::Deserialize;

/// `[[mirror]]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mirror {
    /// Its name, for operators.
    pub name: String,
    /// The ports whose frames are copied.
    pub from: Vec<String>,
    /// Which of their frames.
    #[serde(default)]
    pub direction: Direction,
    /// The port that gets the copies and nothing else. What it sends is dropped.
    pub to: String,
    /// The most bytes of a frame that are copied; 0 for all.
    #[serde(default)]
    pub snaplen: u32,
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

impl Direction {
    /// Whether frames from the port into the switch are copied, and those of the other direction.
    pub fn parts(self) -> [bool; 2] {
        [self != Self::Egress, self != Self::Ingress]
    }
}

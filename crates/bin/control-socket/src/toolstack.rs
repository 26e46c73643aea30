//! What became of what a toolstack (`xl`, libvirt, XAPI) has written for an interface.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What became of the toolstack's keys of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ToolstackStatus {
    /// Whether the limit on what the guest sends is the toolstack's `rate`.
    #[serde(default)]
    pub rate: bool,
    /// Keys that ask for something that is not done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<IgnoredKey>,
}

impl ToolstackStatus {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A key of the toolstack that asks for something that is not done. `Display` makes the sentence for an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IgnoredKey {
    /// Its name in the store.
    pub key: String,
    /// Its value.
    pub value: String,
    /// Why it is not done.
    pub why: String,
}

impl fmt::Display for IgnoredKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, why } = self;
        write!(f, "the toolstack's {key} {value:?} is not used: {why}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{PortKind, PortState, PortStatus};

    #[test]
    fn what_is_not_done_is_readable() {
        let [key, value, why] = ["rate", "fast", "it is not BYTES,MICROSECONDS"].map(str::to_owned);
        let ignored = IgnoredKey { key, value, why };
        let sentence = "the toolstack's rate \"fast\" is not used: it is not BYTES,MICROSECONDS";
        assert_eq!(ignored.to_string(), sentence);
        let toolstack = ToolstackStatus { rate: false, ignored: vec![ignored] };
        let port =
            PortStatus { toolstack, ..PortStatus::new("web", PortKind::Guest, PortState::Up) };
        let value = serde_json::to_value(&port).unwrap();
        let ignored =
            json!({ "key": "rate", "value": "fast", "why": "it is not BYTES,MICROSECONDS" });
        assert_eq!(value["toolstack"], json!({ "rate": false, "ignored": [ignored] }));
        assert_eq!(serde_json::from_value::<PortStatus>(value).unwrap(), port);
    }
}

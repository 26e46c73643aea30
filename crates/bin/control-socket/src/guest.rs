//! What a guest's process reports of its interfaces: one line of JSON on its standard output at each SIGUSR1.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The interfaces of a guest's process at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GuestReport {
    /// In the order in which they were opened.
    pub interfaces: Vec<InterfaceReport>,
}

impl document::Document for GuestReport {
    const SCHEMA: &str = "pvnet-guest/1";
}

/// One interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InterfaceReport {
    /// Its name in the guest.
    pub name: String,
    /// Its queues, in order.
    pub queues: Vec<QueueReport>,
}

/// What one queue has carried since its interface was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueReport {
    /// Frames that it sent; a GSO frame counts once.
    pub frames: u64,
    /// How often the transmit ring became too full for the longest frame, so that the stack had to wait.
    pub full: u64,
    /// How long it was, without a time that has not ended.
    pub full_nanoseconds: u64,
    /// Buffers of received frames that the guest copied itself, out of the driver domain's memory.
    #[serde(default)]
    pub copies: u64,
    /// Hypercalls for these.
    #[serde(default)]
    pub copy_hypercalls: u64,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_report_in_json_is_readable() {
        let queues = vec![QueueReport {
            frames: 9,
            full: 1,
            full_nanoseconds: 500,
            copies: 7,
            copy_hypercalls: 2,
        }];
        let report =
            GuestReport { interfaces: vec![InterfaceReport { name: "eth0".to_owned(), queues }] };
        let value = serde_json::to_value(&report).unwrap();
        let queue = json!({
            "frames": 9, "full": 1, "full_nanoseconds": 500, "copies": 7, "copy_hypercalls": 2
        });
        assert_eq!(value, json!({ "interfaces": [{ "name": "eth0", "queues": [queue] }] }));
        assert_eq!(serde_json::from_value::<GuestReport>(value).unwrap(), report);
    }
}

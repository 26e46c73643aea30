//! The part of `pvnet status --json` that the checks read.

use std::collections::BTreeMap;

use control_socket::Reason;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The daemon's status.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Status {
    /// Its process id.
    pub pid: u32,
    ports: Vec<PortSummary>,
}

/// The part of an interface's status that is checked.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct PortSummary {
    /// Its domain's name.
    pub name: String,
    /// `up` or `down`.
    pub state: String,
    /// Why it is down or degraded.
    pub reason: Option<Reason>,
    /// Dropped frames, by reason.
    pub drops: BTreeMap<String, u64>,
}

impl Status {
    /// Parses it.
    pub fn parse(text: &str) -> Result<Self> {
        Error::json("pvnet status", text)
    }

    /// The interface of a domain.
    pub fn port(&self, domain: &str) -> Result<&PortSummary> {
        let found = self.ports.iter().find(|port| port.name == domain);
        let missing = || format!("no port {domain}");
        found.ok_or_else(|| Error::parse("pvnet status", &missing(), format!("{:?}", self.ports)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Recorded, and shortened to what is read here and a few other fields.
    const TEXT: &str = r#"{"pid":71,"worker_threads":[73],"ports":[
        {"name":"victim","kind":"guest","domain":1,"state":"up","queues":1,"drops":{}},
        {"name":"hostile","kind":"guest","domain":2,"state":"down","reason":{"code":"disabled","detail":"x"},"queues":0,
         "drops":{"stalled":4}}]}"#;

    #[test]
    fn an_interface_is_found_by_its_domain() {
        let status = Status::parse(TEXT).expect("status");
        assert_eq!(status.pid, 71);
        assert_eq!(status.port("victim").expect("there").state, "up");
        let port = status.port("hostile").expect("there");
        let reason = Reason::Disabled("x".to_owned());
        assert_eq!((port.reason.as_ref(), port.drops["stalled"]), (Some(&reason), 4));
        assert!(status.port("another").is_err());
        assert!(Status::parse("pvnet: no daemon").is_err());
    }
}

//! Changes of a running daemon: what a client asks for, and what the daemon did.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A change, and how to make it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeRequest {
    /// What to change.
    pub change: Change,
    /// Only say what it would do.
    #[serde(default)]
    pub dry_run: bool,
    /// Cut the connection of a port where a setting is agreed with its front-end, and reopen devices. Otherwise such a
    /// setting waits for the port's next connection.
    #[serde(default)]
    pub reconnect: bool,
}

/// What to change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    /// Read the configuration file again.
    Reload {
        /// Read the file beside it that would replace it; for a dry run only.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        candidate: bool,
    },
    /// Add ports and mirrors.
    Add {
        /// Tables of ports and mirrors, as in the configuration file.
        toml: String,
    },
    /// Remove a port; of a guest, with all its interfaces.
    Delete {
        /// Its name.
        name: String,
    },
    /// Remove a mirror.
    DeleteMirror {
        /// Its name.
        name: String,
    },
    /// Change keys of a port.
    Set {
        /// The port's name, as in the status.
        name: String,
        /// Each a key, perhaps with dots, and its value in TOML. A value that is not TOML is a string.
        #[serde(default)]
        set: Vec<(String, String)>,
        /// Keys that get their default.
        #[serde(default)]
        unset: Vec<String>,
    },
}

impl ChangeRequest {
    /// The change, made at once, without cutting connections.
    #[must_use]
    pub fn new(change: Change) -> Self {
        Self { change, dry_run: false, reconnect: false }
    }
}

/// What a change did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChangeReport {
    /// Whether nothing was changed yet.
    pub dry_run: bool,
    /// What is different, in the order in which it is done.
    pub steps: Vec<ChangeStep>,
    /// The configuration's file to which the client has written the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved: Option<String>,
}

impl document::Document for ChangeReport {
    const SCHEMA: &str = "pvnet-change/1";
}

impl ChangeReport {
    /// Whether all that was asked for is in force (of a dry run: would be).
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.steps.iter().all(|step| step.action.is_complete())
    }
}

/// What happens to one port, or to a table of the configuration without ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChangeStep {
    /// The table.
    pub table: TableKind,
    /// The port's name; empty for a table without a name.
    pub name: String,
    /// What happens.
    pub action: ChangeAction,
    /// The keys that differ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
    /// Why it is not done, or not yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether this takes back what `pvnet port` or `pvnet mirror` has changed.
    #[serde(default)]
    pub reverts_command: bool,
}

named::named! {
    /// The kind of a table of the configuration.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    #[derive(Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum TableKind {
        /// The daemon's own settings.
        Daemon => "daemon",
        /// The switch's.
        Switch => "switch",
        /// Those of platform `xen`.
        Xen => "xen",
        /// A guest, with its interfaces.
        Guest => "guest",
        /// A way out of the switch.
        Uplink => "uplink",
        /// A virtual machine's network device.
        Port => "port",
        /// Ports whose frames are copied.
        Mirror => "mirror",
        /// A card with contexts.
        Nic => "nic",
    }
}

impl TableKind {
    /// What its tables are, if these are ports, or have some.
    #[must_use]
    pub const fn port(self) -> Option<&'static str> {
        match self {
            Self::Guest => Some("A process that joins"),
            Self::Uplink => Some("A way out of the switch"),
            Self::Port => Some("A virtual machine's network device"),
            Self::Daemon | Self::Switch | Self::Xen | Self::Mirror | Self::Nic => None,
        }
    }

    /// Those whose tables are ports, or have some.
    pub fn ports() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|kind| kind.is_port())
    }

    /// The kind of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether its tables are ports, or have some.
    #[must_use]
    pub const fn is_port(self) -> bool {
        self.port().is_some()
    }

    /// Whether a command can add such a table.
    #[must_use]
    pub fn can_be_added(self) -> bool {
        self.is_port() || self == Self::Mirror
    }
}

impl fmt::Display for TableKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What happens to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeAction {
    /// It is new.
    Add,
    /// It goes.
    Remove,
    /// Its settings change in place.
    Change,
    /// Its connection ends, or its device is opened again, so that settings change.
    Reconnect,
    /// Its settings change at its next connection.
    Wait,
    /// Its settings change only when the daemon starts again.
    Refuse,
    /// It was tried and failed; of a dry run: it would fail.
    Fail,
}

impl ChangeAction {
    /// Whether what was asked for is in force afterwards.
    #[must_use]
    pub fn is_complete(self) -> bool {
        matches!(self, Self::Add | Self::Remove | Self::Change | Self::Reconnect)
    }
}

impl fmt::Display for ChangeAction {
    /// The word that a line begins with.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Add => "added",
            Self::Remove => "removed",
            Self::Change => "changed",
            Self::Reconnect => "reconnected",
            Self::Wait => "waits",
            Self::Refuse => "refused",
            Self::Fail => "failed",
        })
    }
}

impl fmt::Display for ChangeStep {
    /// One line, for an operator.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, name, action, keys, reason, reverts_command } = self;
        write!(f, "{action:<11} {table}")?;
        if !name.is_empty() {
            write!(f, " {name}")?;
        }
        if !keys.is_empty() {
            write!(f, ": {}", keys.join(", "))?;
        }
        if let Some(reason) = reason {
            write!(f, " ({reason})")?;
        }
        if *reverts_command {
            f.write_str(" [takes back a command]")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_report_in_json_is_readable() {
        let step = |action, reason: Option<&str>| ChangeStep {
            table: TableKind::Guest,
            name: "red".to_owned(),
            action,
            keys: vec!["limit".to_owned()],
            reason: reason.map(str::to_owned),
            reverts_command: false,
        };
        let steps = vec![step(ChangeAction::Change, None)];
        let mut report = ChangeReport { dry_run: false, steps, saved: None };
        assert_eq!(
            serde_json::to_value(&report).unwrap(),
            json!({ "dry_run": false, "steps": [{
                "table": "guest", "name": "red", "action": "change", "keys": ["limit"],
                "reverts_command": false
            }] })
        );
        assert!(report.is_complete());
        assert_eq!(report.steps[0].to_string(), "changed     guest red: limit");
        report.steps.push(step(ChangeAction::Wait, Some("its front-end is connected")));
        assert!(!report.is_complete());
        let line = report.steps[1].to_string();
        assert_eq!(line, "waits       guest red: limit (its front-end is connected)");
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<ChangeReport>(&json).unwrap(), report);
    }
}

//! Sockets: who makes them, and whose their files are.

use schemars::JsonSchema;
use serde::Deserialize;
use vhost_user::Mode;

/// `mode`: who makes the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SocketMode {
    /// The daemon.
    #[default]
    Server,
    /// The other side.
    Client,
}

impl From<SocketMode> for Mode {
    fn from(mode: SocketMode) -> Self {
        match mode {
            SocketMode::Server => Self::Server,
            SocketMode::Client => Self::Client,
        }
    }
}

/// Whose the file of a socket is, which the daemon makes. Its permissions are 0600, or 0660 with a group, if absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketFile {
    /// Its permissions.
    pub mode: Option<u32>,
    /// Its group.
    pub group: Option<u32>,
}

impl SocketFile {
    /// Checks that the daemon makes it.
    pub(super) fn check(self, mode: SocketMode) -> Result<(), String> {
        match (mode, self) {
            (SocketMode::Server, _) | (_, Self { mode: None, group: None }) => Ok(()),
            (SocketMode::Client, _) => Err(
                "socket_mode and socket_group are for mode = \"server\"; the other side makes this socket".into(),
            ),
        }
    }
}

/// The permissions of a socket that need not be given.
pub(in crate::config) fn socket_mode_if_any<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u32>, D::Error> {
    socket_mode(deserializer).map(Some)
}

/// The permissions of a socket, as TOML's octal number.
pub(in crate::config) fn socket_mode<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<u32, D::Error> {
    let mode = u32::deserialize(deserializer).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| {
        serde::de::Error::custom("is not a mode; write it as an octal number, such as 0o660")
    })
}

/// A group as it is written.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged, expecting = "is not a group: write its name in quotes, or its number")]
pub(in crate::config) enum Group {
    Number(u32),
    Name(String),
}

/// A group of this machine: its number, or its name.
pub(in crate::config) fn group<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u32>, D::Error> {
    let name = match Group::deserialize(deserializer)? {
        Group::Number(number) => return Ok(Some(number)),
        Group::Name(name) => name,
    };
    let groups = std::fs::read_to_string(GROUPS).map_err(serde::de::Error::custom)?;
    let number = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(&*name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    });
    let unknown = || serde::de::Error::custom(format!("no group {name:?} in {GROUPS}"));
    number.map(Some).ok_or_else(unknown)
}

/// The groups of this machine.
const GROUPS: &str = "/etc/group";

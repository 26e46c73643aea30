//! `[daemon] sandbox`.

use serde::Deserialize;

/// What the daemon gives up when it has started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sandbox {
    /// Everything that the configuration, as it is, does not need.
    #[default]
    Full,
    /// The same, but it can still open devices for further uplinks.
    Devices,
    /// Nothing.
    Off,
}

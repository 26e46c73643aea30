//! The rows of the benchmark.

use std::path::Path;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// What QEMU has loaded, and what that models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// QEMU alone.
    None,
    /// The plugin, which ignores the marks.
    Waiting,
    /// One configuration.
    Single,
    /// All sizes and policies.
    All,
    /// One configuration, with the call graph.
    SingleCalls,
    /// All sizes and policies, with the call graph.
    AllCalls,
}

impl Mode {
    /// All, in the order of the table.
    pub const ALL: [Self; 6] =
        [Self::None, Self::Waiting, Self::Single, Self::All, Self::SingleCalls, Self::AllCalls];

    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "no plugin",
            Self::Waiting => "plugin, no models",
            Self::Single => "one configuration",
            Self::All => "all sizes and policies",
            Self::SingleCalls => "one configuration, call graph",
            Self::AllCalls => "all, call graph",
        }
    }

    /// The plugin's argument; `calls` are the words for the call graph.
    pub fn words(self, plugin: &Path, out: &Path, calls: &str) -> Option<String> {
        let plugin = format!("{},out={}", plugin.display(), out.display());
        match self {
            Self::None => None,
            Self::Waiting => Some(plugin + ",ignore_marks=on"),
            Self::Single => Some(plugin + ",single=on"),
            Self::All => Some(plugin),
            Self::SingleCalls => Some(format!("{plugin},single=on{calls}")),
            Self::AllCalls => Some(plugin + calls),
        }
    }
}

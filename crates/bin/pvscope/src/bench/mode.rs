//! The rows of the benchmark.

use std::path::Path;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

named::named! {
    /// What QEMU has loaded, and what that models.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Mode {
        /// QEMU alone.
        None => "no plugin",
        /// The plugin, which ignores the marks.
        Waiting => "plugin, no models",
        /// One configuration.
        Single => "one configuration",
        /// All sizes and policies.
        All => "all sizes and policies",
        /// One configuration, with the call graph.
        SingleCalls => "one configuration, call graph",
        /// All sizes and policies, with the call graph.
        AllCalls => "all, call graph",
    }
}

impl Mode {
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

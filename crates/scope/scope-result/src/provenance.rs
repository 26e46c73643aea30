//! What a recording was made with.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a recording's numbers depend on besides the modelled processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Provenance {
    /// The version of pvscope; empty if the plugin ran without it.
    pub pvscope: String,
    /// QEMU, as it names itself.
    pub qemu: String,
    /// QEMU's arguments, for a machine of the user's; folders that are other ones in each run have a fixed name.
    pub machine: Vec<String>,
    /// The name of the workload.
    pub workload: String,
    /// Options that change counts.
    pub options: Vec<String>,
    /// Whether the machine was loaded from a snapshot at its first mark; otherwise it booted.
    pub from_snapshot: bool,
    /// What the machine boots: kernel, hypervisor, file systems.
    pub images: Vec<FileDigest>,
    /// Programs whose files were given: in the guests by these paths.
    pub programs: Vec<FileDigest>,
}

/// A file that a recording was made with.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct FileDigest {
    /// What it is, or its path.
    pub name: String,
    /// The first eight bytes of its SHA-256, in hexadecimal digits.
    pub digest: String,
    /// The compiler and the profile, as far as they are known.
    pub built_by: String,
}

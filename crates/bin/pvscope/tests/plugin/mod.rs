//! What QEMU loads, for tests that record.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The plugin beside the program, not older than what it is built of.
///
/// Cargo builds it with the workspace, and not for tests of this package alone. Tests do not build it: they would wait for any other
/// build in the same folder.
pub fn plugin() -> PathBuf {
    let plugin = Path::new(env!("CARGO_BIN_EXE_pvscope")).with_file_name("libscope_plugin.so");
    let modified = |file: &Path| file.metadata().and_then(|metadata| metadata.modified());
    // Cargo's list of them: the plugin, a colon, and the sources.
    let listed = std::fs::read_to_string(plugin.with_extension("d")).unwrap_or_default();
    let sources = listed.split_once(": ").map(|(_, sources)| sources.split_whitespace());
    let newest: Option<SystemTime> =
        sources.and_then(|sources| sources.filter_map(|file| modified(file.as_ref()).ok()).max());
    let is_new = modified(&plugin).is_ok_and(|built| Some(built) >= newest);
    assert!(is_new && newest.is_some(), "run `cargo build -p scope-plugin`");
    plugin
}

//! Where the daemon's sockets are.

use std::path::{Path, PathBuf};

/// The folder of the sockets unless the configuration names another.
pub const DIRECTORY: &str = "/run/pvnet";

/// The socket that guests join at, of a daemon in `directory`.
#[must_use]
pub fn join_socket(directory: &Path) -> PathBuf {
    directory.join("machine.sock")
}

/// The control socket of a daemon in `directory`.
#[must_use]
pub fn control_socket(directory: &Path) -> PathBuf {
    directory.join("control.sock")
}

/// The socket that cards join at, of a daemon in `directory`.
#[must_use]
pub fn nic_socket(directory: &Path) -> PathBuf {
    directory.join("nic.sock")
}

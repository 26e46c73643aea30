//! Options that several commands have.

use std::path::PathBuf;

use clap::Args;
use control_socket::DIRECTORY;

/// The daemon's directory.
#[derive(Args)]
pub struct DaemonArgs {
    /// The daemon's directory, as in its configuration.
    #[arg(long, value_name = "DIR", default_value = DIRECTORY)]
    pub directory: PathBuf,
}

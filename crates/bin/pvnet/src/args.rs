//! Options that several commands have.

use std::path::PathBuf;

use clap::Args;
use control_socket::DIRECTORY;
use cpus::CpuList;

use crate::log::LogFormat;

/// The daemon's directory.
#[derive(Args)]
pub struct DaemonArgs {
    /// The daemon's directory, as in its configuration.
    #[arg(long, value_name = "DIR", default_value = DIRECTORY)]
    pub directory: PathBuf,
}

/// Where a service runs.
#[derive(Args)]
pub struct CpuArgs {
    /// The CPUs that it runs on, as taskset writes them: 2-5, or 0,8-10 [default: where the scheduler puts it].
    #[arg(long, value_name = "LIST")]
    cpus: Option<CpuList>,
}

impl CpuArgs {
    /// Binds the calling thread and all that it starts to these CPUs.
    ///
    /// # Errors
    /// The process may not use one of them.
    pub fn bind(&self) -> Result<(), String> {
        let Some(cpus) = &self.cpus else { return Ok(()) };
        let of_option = |error: &dyn std::fmt::Display| format!("--cpus: {error}");
        let available = cpus::Available::read().map_err(|error| of_option(&error))?;
        available.beside(cpus).map_err(|error| of_option(&error))?;
        cpus::bind(cpus).map_err(|error| of_option(&error))
    }
}

/// How a service writes its log.
#[derive(Args)]
pub struct LogArgs {
    /// How messages are written to standard error [default: text; of `pvnet run`, `log` in its configuration]. The variable
    /// PVNET_LOG sets the level: `info`, `warn`, `pvnet=debug`.
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}

impl LogArgs {
    /// The format; text by default.
    pub fn format(&self) -> LogFormat {
        self.log_format.unwrap_or_default()
    }
}

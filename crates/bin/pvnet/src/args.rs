//! Options that several commands have.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use control_socket::DIRECTORY;
use cpus::CpuList;
use offload::Features;

use crate::config::Poll;
use crate::guest;
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
    /// How messages are written to standard error [default: text, or the daemon's `log`]. PVNET_LOG has the level: `info`,
    /// `warn`, `pvnet=debug`.
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}

impl LogArgs {
    /// The format; text by default.
    pub fn format(&self) -> LogFormat {
        self.log_format.unwrap_or_default()
    }
}

/// Options of an interface, or of all interfaces of a guest.
#[derive(Args)]
pub struct InterfaceArgs {
    /// The interface's name in the namespace; repeated, those of further interfaces of a guest
    /// [default: eth0, eth1, …].
    #[arg(long, value_name = "NAME")]
    device: Vec<String>,
    /// The most queues [default: one per CPU; the backend may offer fewer].
    #[arg(long, value_name = "N")]
    queues: Option<u32>,
    /// An address with its prefix length, instead of the configuration's; can be repeated. It is for
    /// the first interface, or for DEVICE. The `guard` of the configuration has to allow it.
    #[arg(long, value_name = "[DEVICE=]ADDRESS")]
    address: Vec<guest::Address>,
    /// Use no scatter/gather: frames of one page.
    #[arg(long)]
    no_sg: bool,
    /// Use no checksum offload.
    #[arg(long)]
    no_csum: bool,
    /// Use no TCP segmentation offload.
    #[arg(long)]
    no_tso: bool,
    /// Use one event channel for both rings of a queue.
    #[arg(long)]
    one_event_channel: bool,
    /// Leave headers in the frames' pages instead of the header pages beside the ring.
    #[arg(long)]
    no_header_channel: bool,
    /// Keep no pages mapped: each use of a page is a grant operation.
    #[arg(long)]
    no_persistent_grants: bool,
    /// Have the backend spread received flows over the queues by their Toeplitz hash, and pass the hashes on.
    #[arg(long)]
    hash: bool,
    /// How the threads between the stack and pvnet wait for frames: `always` never sleeps, and takes a CPU for each queue.
    #[arg(long, value_name = "HOW", default_value = "adaptive")]
    poll: Poll,
    /// For how long a wait for a frame is polled at most, in microseconds, while round trips are under way; 0: never.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(..=1000))]
    poll_us: u64,
    /// Leave all copies of received frames to the driver domain.
    #[arg(long)]
    no_guest_copy: bool,
}

impl InterfaceArgs {
    /// The same, for the guest.
    pub fn options(self) -> guest::Options {
        guest::Options {
            devices: self.device,
            queues: self.queues,
            addresses: self.address,
            without: Features {
                sg: self.no_sg,
                csum_v4: self.no_csum,
                csum_v6: self.no_csum,
                tso_v4: self.no_tso,
                tso_v6: self.no_tso,
                ..Features::NONE
            },
            one_event_channel: self.one_event_channel,
            no_header_channel: self.no_header_channel,
            no_persistent_grants: self.no_persistent_grants,
            hash: self.hash,
            polling: self.poll.limited_to(Duration::from_micros(self.poll_us)),
            no_guest_copy: self.no_guest_copy,
            rejoin: Duration::ZERO,
        }
    }
}

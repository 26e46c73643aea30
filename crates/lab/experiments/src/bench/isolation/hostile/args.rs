//! The command line of the hostile guest.

use std::path::PathBuf;

use clap::Args;
use wire::ethernet::MacAddr;

use crate::bench::isolation::class::Class;

/// Options of the hostile guest.
#[derive(Args)]
pub struct HostileArgs {
    /// What it does.
    #[arg(long)]
    pub class: Class,
    /// The socket where guests join.
    #[arg(long, value_name = "FILE")]
    pub socket: PathBuf,
    /// Its name in the daemon's configuration.
    #[arg(long)]
    pub name: String,
    /// The file with its orders.
    #[arg(long, value_name = "FILE")]
    pub orders: PathBuf,
    /// Addresses that the attack uses: other guests' or the uplink's.
    #[arg(long, value_name = "MAC")]
    pub target: Vec<MacAddr>,
}

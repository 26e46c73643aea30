//! The command line of the hostile guest.

use std::path::PathBuf;

use clap::Args;
use wire::ethernet::MacAddr;

use crate::bench::isolation::class::Class;

/// Options of the hostile guest.
#[derive(Args, Clone)]
pub struct HostileArgs {
    /// What it does.
    #[arg(long)]
    pub class: Class,
    /// The socket where guests join, or that of its port.
    #[arg(long, value_name = "FILE")]
    pub socket: PathBuf,
    /// Its name in the daemon's configuration.
    #[arg(long)]
    pub name: String,
    /// The file with its orders.
    #[arg(long, value_name = "FILE")]
    pub orders: PathBuf,
    /// Its address, which a process guest learns when it joins.
    #[arg(long, value_name = "MAC")]
    pub mac: MacAddr,
    /// Addresses that the attack uses: other guests' or the uplink's.
    #[arg(long, value_name = "MAC")]
    pub target: Vec<MacAddr>,
    /// Attacks once, at its port of this number, and ends.
    #[arg(long, value_name = "N")]
    pub alone: Option<usize>,
}

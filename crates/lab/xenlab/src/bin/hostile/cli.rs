//! The command line.

use std::net::Ipv4Addr;

use clap::Parser;
use xenlab::scenario::Class;

/// Attacks the backend of one of this domain's interfaces, and tells what came of it.
#[derive(Parser)]
#[command(version)]
pub struct Cli {
    /// What to do.
    #[arg(required_unless_present = "list", hide_possible_values = true)]
    pub class: Option<Class>,
    /// Show what there is, and do nothing.
    #[arg(long)]
    pub list: bool,
    /// Which of the domain's interfaces.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub vif: u32,
    /// How long that goes on which goes on.
    #[arg(long, value_name = "S", default_value_t = 2)]
    pub seconds: u64,
    /// How often that is done which is done often.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub count: u32,
    /// This guest's own address.
    #[arg(long, value_name = "ADDRESS", default_value = "10.0.0.3")]
    pub address: Ipv4Addr,
    /// Whoever answers echoes.
    #[arg(long, value_name = "ADDRESS", default_value = "10.0.0.1")]
    pub peer: Ipv4Addr,
    /// Stay as it is after the report, until killed; otherwise the device is closed.
    #[arg(long)]
    pub stay: bool,
}

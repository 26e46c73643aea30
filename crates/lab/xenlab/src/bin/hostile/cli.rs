//! The command line.

use std::net::Ipv4Addr;

use clap::Parser;
use xenlab::scenario::Class;

/// Attacks the backend of one of this domain's interfaces, and reports the result.
#[derive(Parser)]
#[command(version)]
pub struct Cli {
    /// The attack.
    #[arg(required_unless_present = "list", hide_possible_values = true)]
    pub class: Option<Class>,
    /// List all attacks and exit.
    #[arg(long)]
    pub list: bool,
    /// The number of the domain's interface.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub vif: u32,
    /// How long an attack that repeats runs.
    #[arg(long, value_name = "S", default_value_t = 2)]
    pub seconds: u64,
    /// How often an attack that counts repeats.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub count: u32,
    /// This guest's address.
    #[arg(long, value_name = "ADDRESS", default_value = "10.0.0.3")]
    pub address: Ipv4Addr,
    /// The address of the host that answers echoes.
    #[arg(long, value_name = "ADDRESS", default_value = "10.0.0.1")]
    pub peer: Ipv4Addr,
    /// Keep the device as it is after the report, until killed; otherwise close it.
    #[arg(long)]
    pub stay: bool,
}

//! A whole Xen host under software emulation: hypervisor, dom0 and paravirtual guests, driven from Rust.
//!
//! [`Images`] are made once from Debian's packages. A [`Host`] boots from them in QEMU in seconds, without root and
//! without hardware virtualisation. A [`Shell`] runs commands in a domain and returns their
//! exact exit status and output. A [`Domu`] is a guest. A [`Machine`] is a virtual machine without Xen.
//!
//! Everything that runs ends when its value is dropped, and on Ctrl-C once [`lab::Interrupt::install`] was called.
//!
//! Anti-goals: no disk, no persistent state, no absolute speeds: compare only runs on the same host.

#![forbid(unsafe_code)]

pub mod command;
mod emulator;
mod error;
mod host;
mod image;
pub mod netif;
mod packages;
pub mod scenario;
mod suite;
mod tool;

pub use emulator::Emulator;
pub use error::{Error, Result, UnknownName};
pub use host::{
    Batch, BatchFiles, BatchHost, CLOCK, Domu, DomuConfig, GuestType, Host, HostFile, Job, Machine,
    MachineConfig, Monitor, NO_ASLR, Options, Output, PROCESSOR, Shell, interface_xml,
};
pub use image::{Edition, Images, Kind, read_boot_image};
pub use packages::{default_cache, unpacked_packages};
pub use suite::Suite;

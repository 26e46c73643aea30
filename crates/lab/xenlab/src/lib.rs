//! A whole Xen host under software emulation: hypervisor, dom0 and paravirtual guests, driven from Rust.
//!
//! [`Images`] are made once of Debian's packages; a [`Host`] boots from them in seconds, in QEMU, without root and
//! without a virtual machine monitor's help from the processor; [`Shell`]s run commands in its domains and know their
//! exact exit status and output; a [`Domu`] is a guest.
//!
//! Everything that runs ends when its value is dropped and, once [`lab::Interrupt::install`] was called, on Ctrl-C.
//!
//! Anti-goals: no disk, no persistent state, no speed that means anything but in comparison with the same host.

#![forbid(unsafe_code)]

mod cache;
mod emulator;
mod error;
mod host;
mod image;
pub mod scenario;
mod suite;
mod tool;

pub use cache::default_cache;
pub use emulator::Emulator;
pub use error::{Error, Result};
pub use host::{
    Batch, BatchFiles, BatchHost, CLOCK, Domu, DomuConfig, Host, HostFile, Job, Options, Output,
    PROCESSOR, SAME_PLACES, Shell,
};
pub use image::{Images, Kind, read_boot_image};
pub use lab::Folder;
pub use suite::Suite;

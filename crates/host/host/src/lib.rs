//! What a program does with the machine that it runs on: other programs, namespaces, temporary folders, signals, processor time.
//!
//! Everything that the crate makes on a machine (a [`Namespace`], a [`Process`]) is removed
//! when its value is dropped, on success, on error and, once [`Interrupt::install`] was called, on Ctrl-C: every wait
//! in this crate then ends with [`Error::Interrupted`], and the stack unwinds through the drops.
//!
//! Nothing touches the host's own network: links are created inside namespaces, never moved into them.
//!
//! Anti-goals: no traffic, no measurement of the program from inside, no shell.

#![forbid(unsafe_code)]

mod cpu;
pub mod deadline;
mod error;
mod interrupt;
mod namespace;
mod needs;
mod process;
mod temp_dir;
mod threads;
mod tools;

pub use cpu::{Children, CpuMeter, CpuUsage};
pub use error::{Error, Result, exit_code};
pub use interrupt::Interrupt;
pub use namespace::{LIMIT, Namespace, ip, join};
pub use needs::{able, needed};
pub use process::{Process, run};
pub use temp_dir::TempDir;
pub use threads::{ThreadTime, thread_times, user_time};
pub use tools::{command, preflight};

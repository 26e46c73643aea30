//! `pvnet balloon`: a guest's memory, reduced or increased while it runs.

use std::path::Path;
use std::time::{Duration, Instant};

use control_socket::Request;
use document::Document;
use schemars::JsonSchema;
use serde::Serialize;

use crate::program::show;

/// The time limit for a guest without progress.
const STUCK: Duration = Duration::from_secs(2);
/// The pause between two readings of its size.
const PAUSE: Duration = Duration::from_millis(50);

/// A guest's memory.
#[derive(Serialize, JsonSchema)]
pub struct BalloonDocument {
    /// The guest's name.
    guest: String,
    /// What it has now.
    mib: usize,
}

impl Document for BalloonDocument {
    const SCHEMA: &str = "pvnet-balloon/1";
}

/// Asks the daemon at `socket` to give the guest `name` `mib` MiB, and waits until it has them.
pub fn run(socket: &Path, name: &str, mib: usize, json: bool) -> Result<(), String> {
    control_socket::command(socket, &Request::Balloon { guest: name.to_owned(), mib })?;
    let target = (mib as u64) << 20;
    let mut deadline = Instant::now() + STUCK;
    let mut before = None;
    loop {
        let kept = reservation(socket, name)?;
        if before.replace(kept) != Some(kept) {
            deadline = Instant::now() + STUCK;
        }
        if kept == target {
            let document = BalloonDocument { guest: name.to_owned(), mib };
            return show(json, &document, || format!("{name} has {mib} MiB\n"));
        }
        if Instant::now() > deadline {
            return Err(format!(
                "{name} has {} KiB and not {} KiB: not enough free memory in the guest; its own \
                 output says why, and how little it can do with",
                kept / 1024,
                target / 1024
            ));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Bytes of memory a guest has now.
fn reservation(socket: &Path, name: &str) -> Result<u64, String> {
    let status = control_socket::status(socket)?;
    let port = status.ports.into_iter().find(|port| port.domain.is_some() && port.name == name);
    let contexts = status.nics.into_iter().flat_map(|nic| nic.contexts);
    let mut contexts = contexts.filter(|context| context.guest == name);
    let memory = match port {
        Some(port) => port.memory,
        None => contexts.find_map(|context| context.memory),
    };
    Ok(memory.ok_or_else(|| format!("guest {name:?} has left"))?.reservation)
}

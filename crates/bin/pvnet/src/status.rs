//! `pvnet status`.

use std::path::Path;

use hypervisor::Counted;
use report::{Table, human};

use crate::daemon::server;
use machine::Coverage;

use crate::daemon::memory::{MemoryStatus, View};
use crate::daemon::status::{MeterStatus, PortStatus, Status};

/// Prints the daemon's status.
pub fn show(socket: &Path, json: bool) -> Result<(), String> {
    let status = server::status(socket)?;
    if json {
        let text = serde_json::to_string_pretty(&status).map_err(|error| error.to_string())?;
        println!("{text}");
        return Ok(());
    }
    print(&status).map_err(|error| error.to_string())
}

fn print(status: &Status) -> std::io::Result<()> {
    let mut table = Table::new()
        .left("port")
        .left("kind")
        .left("state")
        .left("mac")
        .right("queues")
        .right("frames in")
        .right("bytes in")
        .right("frames out")
        .right("bytes out")
        .left("drops");
    for port in &status.ports {
        table.row([
            port.name.clone(),
            port.kind.clone(),
            port.state.clone(),
            port.mac.clone().unwrap_or_default(),
            port.queues.to_string(),
            port.rx.frames.to_string(),
            port.rx.bytes.to_string(),
            port.tx.frames.to_string(),
            port.tx.bytes.to_string(),
            drops(port),
        ]);
    }
    table.print()?;
    if status.meter.on {
        println!("{}", meter(&status.meter));
    }
    for port in &status.ports {
        if let Some(reason) = &port.reason {
            println!("{}: {reason}", port.name);
        }
    }
    for port in &status.ports {
        if let Some(memory) = port.memory.as_ref().filter(|memory| memory.huge_pages) {
            println!("{}: {}", port.name, coverage(memory));
        }
    }
    if !status.absent.is_empty() {
        println!("not started: {}", status.absent.join(", "));
    }
    Ok(())
}

/// How much of a guest's memory large pages map.
fn coverage(memory: &MemoryStatus) -> String {
    let share = |view: Option<View>| match view {
        Some(view) => format!("{:.0} %", Coverage::from(view).share() * 100.0),
        None => "an unknown part".to_owned(),
    };
    let mib = memory.reservation >> 20;
    let (daemon, guest) = (share(memory.daemon), share(memory.guest));
    format!("2 MiB pages map {daemon} of its {mib} MiB in the daemon, {guest} in the guest")
}

/// What the meter has counted, in a line; what there was none of is left out.
fn meter(meter: &MeterStatus) -> String {
    let seconds = human(meter.nanoseconds as f64 / 1e9);
    let counted = Counted::ALL.map(|what| (what.name(), meter.count(what)));
    let counted = counted.into_iter().chain([("guest_bytes", meter.guest_bytes)]);
    let counted = counted.filter(|(_, n)| *n > 0);
    let counted: String =
        counted.map(|(name, n)| format!(", {} {n}", name.replace('_', " "))).collect();
    format!("meter: {seconds} s in the hypervisor{counted}")
}

fn drops(port: &PortStatus) -> String {
    let drops: Vec<_> = port.drops.iter().map(|(reason, n)| format!("{reason} {n}")).collect();
    drops.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_meter_tells_what_there_was() {
        let mut status = Status::of_ports(vec![]).meter;
        status.counts.insert("copy_batches".into(), 7);
        status.nanoseconds = 2_500_000_000;
        status.guest_bytes = 9;
        let line = "meter: 2.50 s in the hypervisor, copy batches 7, guest bytes 9";
        assert_eq!(meter(&status), line);
    }
}

//! Measures a transfer, and its cost to the server.

use std::time::Duration;

use control_socket::Status;
use lab::{Process, on_cpu};

use crate::error::{Error, Result};
use crate::load::{MEASURES, Outcome, jain};
use crate::repro::cpus::Cpus;
use crate::repro::server::Server;
use crate::repro::shares::Shares;
use crate::repro::transfer::{Direction, PAYLOAD, driver_interrupts, guest_interrupts, watch};
use crate::testbed::this;

/// The results of one transfer.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Payload, in 10⁶ bits per second.
    pub mbps: f64,
    /// Where the server CPU's time went.
    pub share: Shares,
    /// The share of the server's CPU that other programs and machines had.
    pub others: f64,
    /// Interrupts per second, of the driver domain and of all guests; `None` if they are not counted.
    pub interrupts: [Option<f64>; 2],
    /// Jain's index over the guests.
    pub jain: f64,
    /// The share of the client's CPU that was busy.
    pub client_busy: f64,
}

impl Sample {
    /// Payloads of MTU-sized frames per second.
    pub fn packets_per_second(&self) -> f64 {
        self.mbps * 1e6 / 8.0 / f64::from(PAYLOAD)
    }
}

/// A transfer.
#[derive(Clone, Copy, Debug)]
pub struct Transfer<'a> {
    /// Whether the guests send.
    pub direction: Direction,
    /// Seconds that are measured.
    pub seconds: u32,
    /// Connections of each guest on each NIC.
    pub connections: u32,
    /// A limit of all connections together in 10⁶ bits per second, if no card limits them.
    pub limit: Option<u32>,
    /// TCP's congestion control.
    pub congestion: &'a str,
}

/// Seconds before the client measures: it connects, and TCP finds its rate. More connections need longer.
const WARM_UP: f64 = 1.0;
/// Additional seconds for each guest.
const WARM_UP_EACH: f64 = 0.125;
/// How much longer the client measures than this process. The client begins first.
const MARGIN: Duration = Duration::from_millis(100);
/// How long the client may take beyond its time.
const SLACK: Duration = Duration::from_secs(15);

/// Runs a transfer.
pub fn measure(server: &Server, transfer: Transfer<'_>, cpus: &Cpus) -> Result<Sample> {
    let Transfer { direction, seconds, connections, limit, congestion } = transfer;
    let mut command = this(Some(&server.peer))?;
    command.args(["load", "client", "--json", "-", "--connections", &connections.to_string()]);
    let longer = f64::from(seconds) + MARGIN.as_secs_f64();
    command.args(["--congestion", congestion]);
    let warm_up = WARM_UP + WARM_UP_EACH * server.programs.len() as f64;
    command.args(["--warm-up", &warm_up.to_string(), "--seconds", &longer.to_string()]);
    if direction == Direction::Tx {
        command.arg("--receive");
    }
    if let Some(mbps) = limit {
        command.args(["--mbps", &mbps.to_string()]);
    }
    command.args(server.addresses().iter().map(ToString::to_string));
    let mut client = on_cpu(cpus.client, || Process::capture(command))?;
    client.says(MEASURES, Duration::from_secs_f64(warm_up) + SLACK)?;

    let programs: Vec<u32> = server.programs.iter().map(Process::pid).collect();
    let window = watch(server, &programs, seconds, cpus, || Ok(()))?;
    client.succeed(SLACK)?;
    let outcome: Outcome = serde_json::from_str(&client.stdout()).map_err(report::Error::from)?;
    let interrupts = match &window.status {
        Some([before, after]) => interrupts(before, after, window.usage.wall),
        None => [None; 2],
    };
    Ok(Sample {
        mbps: outcome.mbps,
        share: window.share,
        others: window.others,
        interrupts,
        jain: jain(&by_guest(&outcome, server.programs.len())?),
        client_busy: window.client_busy,
    })
}

/// The bytes of each guest. The client lists all NICs of a guest one after the other, once per connection.
fn by_guest(outcome: &Outcome, guests: usize) -> Result<Vec<u64>> {
    let mut bytes = vec![0; guests];
    for connection in &outcome.connections {
        let host = connection.server.rsplit_once('.').and_then(|(_, host)| host.parse().ok());
        let guest: Option<usize> = host.and_then(|host: usize| host.checked_sub(1));
        let sum = guest.and_then(|guest| bytes.get_mut(guest));
        *sum.ok_or_else(|| Error::Failed(format!("no guest {}", connection.server)))? +=
            connection.bytes;
    }
    Ok(bytes)
}

/// Interrupts per second of the driver domain and of all guests.
fn interrupts(before: &Status, after: &Status, wall: Duration) -> [Option<f64>; 2] {
    let per_second = |count: u64| count as f64 / wall.as_secs_f64().max(f64::EPSILON);
    // Without cards, a tap's readiness wakes a worker, and is not counted.
    let has_cards = !after.nics.is_empty();
    let of_driver = has_cards.then(|| per_second(driver_interrupts(before, after)));
    [of_driver, Some(per_second(guest_interrupts(before, after)))]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(bytes: &[(&str, u64)]) -> Outcome {
        let bytes = bytes.iter().map(|(server, bytes)| ((*server).to_owned(), *bytes));
        Outcome::new(true, 1.0, bytes.collect())
    }

    #[test]
    fn a_guest_has_the_bytes_of_all_its_connections() {
        let all = [("10.77.70.1", 1), ("10.77.71.1", 2), ("10.77.70.2", 4), ("10.77.70.1", 8)];
        assert_eq!(by_guest(&outcome(&all), 2).unwrap(), [11, 4]);
        assert!(by_guest(&outcome(&all), 1).is_err());
    }
}

//! A guest that uses netif's control ring: it chooses the hash that spreads its flows, and has pvnet keep its pages mapped.
//!
//! Linux's xen-netfront has no control ring, so the frontend is pvnet's own.

use wire::toeplitz::{MICROSOFT_KEY, Table};

use crate::host::{Domu, DomuConfig, Job, Shell};
use crate::{Error, Result};

use super::super::{BOOT_TIMEOUT, COMMAND_TIMEOUT, check};
use super::restart;
use super::testbed::{BRIDGE, QUEUES, Testbed, address, verdict};

/// The guest's number.
const NUMBER: u8 = 4;
/// The size of a flow, in MiB.
const FLOW: u32 = 4;
/// The port of the flows' server, and the first one for their clients.
const SERVER: u16 = 5201;
const PORTS: u16 = 40_000;
/// The hash that the frontend asks for.
static HASH: Table = Table::new(&MICROSOFT_KEY);

pub(super) fn chosen(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let config = DomuConfig::new(format!("guest{NUMBER}")).vif(testbed.vif(NUMBER, BRIDGE, ""));
    let guest = testbed.host.create(&config, BOOT_TIMEOUT)?;
    let frontend = connect(testbed, &guest)?;
    let mut wrong = Vec::new();
    let mut seen = Vec::new();
    for queue in [0, 1] {
        let [own, other] = flow(testbed, &guest, &frontend, queue)?;
        wrong.extend((own < 2 * other + 10).then(|| format!("queue {queue}")));
        seen.push(format!("{own} frames of queue {queue}, {other} of the other"));
    }
    let (from, to) = (testbed.shell().clone(), guest.shell().clone());
    let same = restart::during_a_restart(testbed, &from, &to, &address(NUMBER))?;
    wrong.extend((!same).then(|| "a file is CORRUPTED".to_owned()));
    let [own, other] = flow(testbed, &guest, &frontend, 1)?;
    wrong.extend((own < 2 * other + 10).then(|| "another queue after the restart".to_owned()));
    wrong.extend((!is_steered(testbed, &guest)?).then(|| "no hash in the status".to_owned()));
    seen.push(format!("{own} and {other} after a restart of pvnet"));
    let id = guest.id();
    guest.destroy()?;
    wrong.extend(testbed.left(id, 0)?);
    Ok(verdict(format!("flows go where the guest wants them: {}", seen.join("; ")), &wrong))
}

/// Starts the frontend, and waits for its interface.
fn connect(testbed: &Testbed<'_>, guest: &Domu) -> Result<Job> {
    let frontend = guest.spawn(&format!(
        "modprobe xen-gntalloc limit=4096 && modprobe -a xen-evtchn tun\n\
         exec pvnet frontend --vif 0 --device eth0 --queues {QUEUES} --hash --address {}/24",
        address(NUMBER)
    ))?;
    testbed.until_connected(guest, 0)?;
    let up = format!("grep '^vif 0 is up' {0} || {{ cat {0}; false; }}", frontend.file());
    guest.shell().until("the frontend", &up, COMMAND_TIMEOUT)?;
    Ok(frontend)
}

/// Sends a flow that the guest's table maps to `queue`. Returns how many frames came back from this queue and from the other
/// one: the stack answers from the queue on which a flow comes in.
fn flow(testbed: &Testbed<'_>, guest: &Domu, frontend: &Job, queue: u32) -> Result<[u64; 2]> {
    let before = sent(guest.shell(), frontend)?;
    let server = guest.spawn("iperf3 -s -1")?;
    check::listens(guest.shell(), SERVER)?;
    let client = format!("iperf3 -c {} -n {FLOW}M --cport {}", address(NUMBER), port(queue)?);
    testbed.shell().run(&client, COMMAND_TIMEOUT)?;
    server.wait(COMMAND_TIMEOUT)?;
    let after = sent(guest.shell(), frontend)?;
    let [first, second] = [0, 1].map(|queue| after[queue] - before[queue]);
    Ok(if queue == 0 { [first, second] } else { [second, first] })
}

/// A client's port at the bridge's address whose flow is mapped to this queue.
fn port(queue: u32) -> Result<u16> {
    // A port may still be in use by the last flow.
    let used = std::time::UNIX_EPOCH.elapsed().map_or(0, |now| now.subsec_micros() % 4096);
    let first = PORTS + u16::try_from(used).unwrap_or(0);
    let found = (first..=u16::MAX).find(|port| queue_of(*port) == queue);
    let missing = || format!("no flow from port {first} on is in queue {queue}");
    found.ok_or_else(|| Error::content("the guest's hash", &missing()))
}

/// The queue of a flow from this port. The guest's table alternates between the queues.
fn queue_of(port: u16) -> u32 {
    let [[a, b], [c, d]] = [port.to_be_bytes(), SERVER.to_be_bytes()];
    HASH.hash(&[10, 0, 0, 1, 10, 0, 0, NUMBER, a, b, c, d]) % 2
}

/// How many frames each queue of the guest has sent.
fn sent(guest: &Shell, frontend: &Job) -> Result<[u64; 2]> {
    let report = check::frontend_report(guest, &frontend.file())?;
    let queues = &report["interfaces"][0]["queues"];
    Ok([0, 1].map(|queue| queues[queue]["frames"].as_u64().unwrap_or(0)))
}

/// Whether the daemon says that the guest chose its hash.
fn is_steered(testbed: &Testbed<'_>, guest: &Domu) -> Result<bool> {
    let status = check::status(testbed.shell())?;
    Ok(check::port(&status, guest.name()).is_some_and(|port| port["guest_hash"] == true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_found_for_each_queue() {
        for queue in [0, 1] {
            assert_eq!(queue_of(port(queue).unwrap()), queue);
        }
    }
}

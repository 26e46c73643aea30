//! A server and its client: two namespaces with pvnet or a wire between them.
//!
//! ```text
//!            server CPU                          client CPU
//!  guest:    program ─ guest ─ daemon ─ NIC ════ client's stack ─ program
//!  driver:   program ─ stack ─ daemon ─ NIC ════ client's stack ─ program
//!  Linux:    program ─ stack ───────── veth ════ client's stack ─ program
//! ```

use std::net::Ipv4Addr;
use std::time::Duration;

use control_socket::{Status, View};

use super::config::{self, NIC_PORT};
use crate::error::{Error, Result};
use crate::repro::cpus::Cpus;
use crate::repro::server::{Network, PEER, Server, address};

/// Echo requests before the first measurement, and the pause between two.
const PINGS: u32 = 3;
const PING_PAUSE: Duration = Duration::from_millis(250);

/// Starts a server. On return, server and client reach each other.
pub fn start(kind: config::ServerKind, cpus: &Cpus) -> Result<Server> {
    let mut server = Server::start(kind, 1, Network::ONE_NIC, cpus)?;
    let pings = lab::ping(server.first(), Ipv4Addr::from(address(0, PEER)), PINGS, PING_PAUSE)?;
    if pings.received == 0 {
        let said = server.said();
        return Err(Error::Failed(format!("the server cannot reach the client{said}")));
    }
    if kind.huge_pages() {
        let views = server.status()?.map(|status| views(&status)).unwrap_or_default();
        server.notes.extend(views.into_iter().filter_map(|view| too_small(&view)));
    }
    Ok(server)
}

/// How the daemon maps each guest's memory.
fn views(status: &Status) -> Vec<View> {
    let memory = status.ports.iter().filter_map(|port| port.memory.as_ref());
    memory.filter_map(|memory| memory.daemon).collect()
}

/// A note if the kernel gave a guest too few superpages.
fn too_small(view: &View) -> Option<String> {
    let mib = |bytes| bytes >> 20;
    (view.large < view.total / 2).then(|| {
        format!(
            "a guest with superpages has them for only {} of its {} MiB",
            mib(view.large),
            mib(view.total)
        )
    })
}

/// Frames and bytes that the NIC carried in both directions.
pub fn carried(status: &Status) -> (u64, u64) {
    let nics = status.ports.iter().filter(|port| port.name == NIC_PORT);
    nics.fold((0, 0), |(frames, bytes), port| {
        (
            frames + port.ingress.frames + port.egress.frames,
            bytes + port.ingress.bytes + port.egress.bytes,
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_superpages_give_a_note() {
        let said = |large: u64| too_small(&View { large: large << 20, total: 64 << 20 });
        assert_eq!(said(64), None);
        assert!(said(2).unwrap().contains("2 of its 64 MiB"));
    }
}

//! Two guests talk: ping, a stream, round trips, and the proof that pvnet carried it all.

use std::net::IpAddr;
use std::time::Duration;

use accounting::Measured;
use lab::{Ping, Throughput};
use report::Samples;

use super::links::Links;
use crate::error::{Error, Result};
use crate::testbed::{CONGESTION, Case, Subject as _, Testbed, measure, round_trips};

/// Echo requests for each address family.
const PINGS: u32 = 5;
const PING_INTERVAL: Duration = Duration::from_millis(50);
/// Round trips of a datagram.
const ROUND_TRIPS: u32 = 2000;

/// How two guests talk.
pub struct Talk {
    /// The links of both guests, of which none leads elsewhere.
    pub links: [Links; 2],
    /// Echoes with IPv4 and IPv6.
    pub pings: [Ping; 2],
    /// Round trips in microseconds.
    pub rtt: Samples,
    /// A TCP stream.
    pub tcp: Measured<Throughput>,
}

/// Lets them talk.
pub fn talk(testbed: &Testbed, seconds: u32, step: impl Fn(&str)) -> Result<Talk> {
    let (from, to) = (testbed.left(), testbed.right());
    let links = [Links::of(&from.namespace, from.device)?, Links::of(&to.namespace, to.device)?];
    step("ping with IPv4 and IPv6");
    let ping = |address: IpAddr| -> Result<Ping> {
        let ping = lab::ping(&from.namespace, address, PINGS, PING_INTERVAL)?;
        let no_reply = || Error::Failed(format!("{address} did not answer over pvnet"));
        (ping.received > 0).then_some(ping).ok_or_else(no_reply)
    };
    let pings = [ping(to.ipv4.into())?, ping(to.ipv6.into())?];
    step("round trips of a datagram");
    let rtt = round_trips(testbed, ROUND_TRIPS)?;
    step("a TCP stream");
    let tcp = measure(testbed, || Case::TCP.run(testbed, seconds, 0, Some(CONGESTION)))?;
    let (carried, arrived) = (tcp.carried.bytes, tcp.result.bytes);
    if carried < arrived {
        let text = format!("{arrived} bytes arrived, but pvnet carried only {carried}");
        return Err(Error::Failed(text));
    }
    Ok(Talk { links, pings, rtt, tcp })
}

//! Round trips of datagrams.

use lab::RttProbe;
use report::Samples;

use super::subject::Subject;
use crate::error::{Error, Result};

/// Times round trips over UDP, in microseconds.
pub fn round_trips(subject: &dyn Subject, count: u32) -> Result<Samples> {
    let (left, right) = (subject.left(), subject.right());
    let times = RttProbe::new(&left.namespace, &right.namespace, right.ipv4, count).udp()?;
    if times.is_empty() {
        return Err(Error::Failed(format!("no datagram came back over {}", subject.name())));
    }
    Ok(times.iter().map(|time| time.as_secs_f64() * 1e6).collect())
}

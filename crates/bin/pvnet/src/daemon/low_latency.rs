//! `low_latency`: while traffic flows, the CPUs of the machine sleep lightly.
//!
//! A CPU that waits deeply takes some 25 µs to run a thread that was woken on it. Whoever holds `/dev/cpu_dma_latency`
//! open with a zero in it forbids that, for the whole machine: an idle CPU then uses nearly as much power as a busy one.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use tracing::warn;

use crate::daemon::error::Error;
use crate::daemon::event::{Event, ask};
use crate::daemon::thread::spawn;

pub(super) const DEVICE: &str = "/dev/cpu_dma_latency";
/// How often traffic is checked for.
const INTERVAL: Duration = Duration::from_secs(1);

/// Starts a thread that asks for light sleep while ports carry frames.
pub(super) fn start(events: mpsc::Sender<Event>) -> Result<(), Error> {
    let mut request = LatencyRequest::new(DEVICE.into());
    spawn("low-latency", move || {
        while let Some(carried) = carried(&events) {
            if let Err(error) = request.follow(carried) {
                warn!(device = DEVICE, %error, "low_latency has no effect");
                return;
            }
            std::thread::sleep(INTERVAL);
        }
    })?;
    Ok(())
}

/// The frames that all ports have carried. None when the daemon ends.
fn carried(events: &mpsc::Sender<Event>) -> Option<u64> {
    let ports = ask(events, Duration::MAX, Event::Status).ok()?.ports;
    Some(ports.iter().map(|port| port.ingress.frames).fold(0, u64::wrapping_add))
}

/// The request of this process. It ends when the file is closed.
struct LatencyRequest {
    device: PathBuf,
    held: Option<File>,
    carried: u64,
}

impl LatencyRequest {
    fn new(device: PathBuf) -> Self {
        Self { device, held: None, carried: 0 }
    }

    /// Makes the request if frames were carried since the last call, and withdraws it otherwise.
    fn follow(&mut self, carried: u64) -> std::io::Result<()> {
        // A port that has gone takes its count with it, so the sum may fall.
        let flows = std::mem::replace(&mut self.carried, carried) != carried;
        if !flows {
            self.held = None;
        } else if self.held.is_none() {
            self.held = Some(request(&self.device)?);
        }
        Ok(())
    }
}

/// Asks for a latency of 0 µs.
fn request(device: &Path) -> std::io::Result<File> {
    let mut file = File::options().write(true).open(device)?;
    file.write_all(&0i32.to_ne_bytes())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_is_held_while_frames_are_carried() {
        let folder = host::TempDir::new().unwrap();
        let device = folder.path().join("cpu_dma_latency");
        std::fs::write(&device, "").unwrap();
        let mut request = LatencyRequest::new(device.clone());
        let held = [0, 5, 9, 9, 9, 3].map(|carried| {
            request.follow(carried).unwrap();
            request.held.is_some()
        });
        assert_eq!(held, [false, true, true, false, false, true]);
        assert_eq!(std::fs::read(&device).unwrap(), [0; 4]);
    }

    #[test]
    fn a_machine_without_the_device_says_so() {
        let mut request = LatencyRequest::new("/nonexistent/cpu_dma_latency".into());
        assert!(request.follow(0).is_ok());
        assert!(request.follow(1).is_err());
    }
}

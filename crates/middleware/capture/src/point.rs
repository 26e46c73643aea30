//! Where captures can be started: a port.

use std::sync::Arc;

use port::{FRAME_MAX, Queue};

use crate::filter::{Filter, FilterError};
use crate::pcapng::{self, Preamble};
use crate::reader::Capture;
use crate::recorder::Recorder;
use crate::request::Options;
use crate::sink::Sink;
use crate::sinks::{CAPTURES_MAX, Sinks};
use crate::wrapper::{CaptureEgress, CaptureIngress};

/// The program that writes the stream.
const APPLICATION: &str = concat!("pvnet ", env!("CARGO_PKG_VERSION"));

/// A port at which captures can be started. Its captures end when it and the queues that it has
/// wrapped are gone.
pub struct CapturePoint {
    name: String,
    sinks: Arc<Sinks>,
}

/// Why a capture does not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The text is not a filter.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// The port has [`CAPTURES_MAX`] captures.
    #[error("port {0:?} has {CAPTURES_MAX} captures already; end one of them first")]
    TooMany(String),
}

impl CapturePoint {
    /// A port of this name, without captures.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), sinks: Arc::default() }
    }

    /// Wraps both sides of a queue. Capture should be the outermost wrapper: it does not see frames
    /// that a wrapper around it drops on the way out of the port.
    #[must_use]
    pub fn wrap(&self, queue: Queue) -> Queue {
        let recorder = || Recorder::new(Arc::clone(&self.sinks));
        Queue {
            ingress: Box::new(CaptureIngress { inner: queue.ingress, recorder: recorder() }),
            egress: Box::new(CaptureEgress { inner: queue.egress, recorder: recorder() }),
        }
    }

    /// Starts a capture: packets are kept for it from now on.
    ///
    /// # Errors
    /// The filter is wrong, or the port has [`CAPTURES_MAX`] captures.
    pub fn start(&self, options: &Options) -> Result<Capture, StartError> {
        let filter: Filter = options.filter.parse()?;
        let snaplen = match usize::try_from(options.snaplen) {
            Ok(0) | Err(_) => FRAME_MAX,
            Ok(len) => len.min(FRAME_MAX),
        };
        let mut preamble = Vec::new();
        let blocks = Preamble {
            application: APPLICATION,
            os: &os(),
            interface: &self.name,
            snaplen: u32::try_from(snaplen).unwrap_or(u32::MAX),
            filter: &options.filter,
        };
        pcapng::append_preamble(&mut preamble, &blocks);
        let sink = Arc::new(Sink::new(filter, snaplen, options.segmented));
        if !self.sinks.add(Arc::clone(&sink)) {
            return Err(StartError::TooMany(self.name.clone()));
        }
        let sinks = Arc::downgrade(&self.sinks);
        Ok(Capture { sinks, sink, preamble, count: options.count.unwrap_or(u64::MAX) })
    }
}

/// The operating system's name and release.
fn os() -> String {
    let uname = rustix::system::uname();
    format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy())
}

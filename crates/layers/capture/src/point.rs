//! A port at which captures can be started.

use std::sync::Arc;

use port::{Egress, Ingress, Layer, Queue};

use crate::filter::{Filter, FilterError};
use crate::reader::Capture;
use crate::recorder::Recorder;
use crate::recording::Recording;
use crate::request::{Options, preamble};
use crate::sink::Sink;
use crate::sinks::{CAPTURES_MAX, PortSink, Sinks};
use crate::wrapper::{CaptureEgress, CaptureIngress};

/// A port at which captures can be started. Its captures end when it and the queues that it has
/// wrapped are gone.
///
/// Its queues need the wrapper only while a capture runs: [`layer`](Self::layer) puts it
/// around queues in use, and `CaptureLayer::default()` takes it off.
pub struct CapturePoint {
    name: String,
    sinks: Arc<Sinks>,
}

/// The wrapper of a [`CapturePoint`], or none.
#[derive(Default)]
pub struct CaptureLayer(Option<Arc<Sinks>>);

impl Layer for CaptureLayer {
    fn strip_ingress(&self, ingress: Box<dyn Ingress>) -> Box<dyn Ingress> {
        ingress.strip(|CaptureIngress { inner, .. }| inner)
    }

    fn strip_egress(&self, egress: Box<dyn Egress>) -> Box<dyn Egress> {
        egress.strip(|CaptureEgress { inner, .. }| inner)
    }

    fn wrap_ingress(&self, inner: Box<dyn Ingress>) -> Box<dyn Ingress> {
        let Some(sinks) = &self.0 else { return inner };
        Box::new(CaptureIngress { inner, recorder: Recorder::new(Arc::clone(sinks)) })
    }

    fn wrap_egress(&self, inner: Box<dyn Egress>) -> Box<dyn Egress> {
        let Some(sinks) = &self.0 else { return inner };
        Box::new(CaptureEgress { inner, recorder: Recorder::new(Arc::clone(sinks)) })
    }
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
        let layer = self.layer();
        let (ingress, egress) =
            (layer.wrap_ingress(queue.ingress), layer.wrap_egress(queue.egress));
        Queue { ingress, egress }
    }

    /// The layer that wraps queues, also queues in use. See [`wrap`](Self::wrap).
    #[must_use]
    pub fn layer(&self) -> CaptureLayer {
        CaptureLayer(Some(Arc::clone(&self.sinks)))
    }

    /// Whether a capture runs.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.sinks.is_active()
    }

    /// Starts a capture: packets are kept for it from now on.
    ///
    /// # Errors
    /// The filter is wrong, or the port has [`CAPTURES_MAX`] captures.
    pub fn start(&self, options: &Options) -> Result<Capture, StartError> {
        let filter: Filter = options.filter.parse()?;
        let preamble = preamble(std::slice::from_ref(&self.name), options);
        let sink = Arc::new(Sink::new(filter, options, 1, false));
        if !self.sinks.add(PortSink { sink: Arc::clone(&sink), interface: 0 }) {
            return Err(StartError::TooMany(self.name.clone()));
        }
        let sinks = Arc::downgrade(&self.sinks);
        Ok(Capture { sinks, sink, preamble, count: options.count.unwrap_or(u64::MAX) })
    }
    /// Has a recording take the packets of this port, if the recording has this port.
    pub fn record(&self, recording: &Recording) {
        if let Some(interface) = recording.interface(&self.name) {
            let sink = Arc::clone(recording.sink());
            self.sinks.add(PortSink { sink, interface });
        }
    }

    /// Ends what [`record`](Self::record) began. No worker uses the recording for this port after this call.
    pub fn end_recording(&self, recording: &Recording) {
        self.sinks.remove(recording.sink());
    }
}

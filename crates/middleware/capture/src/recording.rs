//! A recording: a capture of several ports without an end, to files.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::files::Files;
use crate::filter::{Filter, FilterError};
use crate::merge::Merge;
use crate::preamble::preamble;
use crate::reader::INTERVAL;
use crate::request::Options;
use crate::sink::Sink;
use crate::writer::Writer;

/// The packets of some ports on their way to files. A [`CapturePoint`](crate::CapturePoint) of each port
/// [gives](crate::CapturePoint::record) it the port's packets.
#[derive(Clone)]
pub struct Recording(Arc<Shared>);

/// What a recording's owner and its thread share.
pub(crate) struct Shared {
    ports: Vec<String>,
    pub(crate) sink: Arc<Sink>,
    /// The blocks that each file starts with.
    pub(crate) preamble: Vec<u8>,
    pub(crate) written: AtomicU64,
    place: Mutex<Place>,
}

/// Where a recording writes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The newest file.
    pub path: Option<PathBuf>,
    /// Its bytes.
    pub bytes: u64,
    /// Why nothing is written at the moment.
    pub error: Option<String>,
}

impl Recording {
    /// A recording of these ports. The options' `count` has no meaning here.
    ///
    /// # Errors
    /// The text is not a filter.
    pub fn new(ports: &[String], options: &Options) -> Result<Self, FilterError> {
        let filter: Filter = options.filter.parse()?;
        Ok(Self(Arc::new(Shared {
            ports: ports.to_vec(),
            sink: Arc::new(Sink::new(filter, options, ports.len(), true)),
            preamble: preamble(ports, options),
            written: AtomicU64::new(0),
            place: Mutex::default(),
        })))
    }

    /// Writes packets to files until `stop` returns true, which is asked about every 5 ms. No port should give it packets then.
    /// While nothing can be written, packets are lost, older files stay but for one at most, and it is tried again now and then.
    pub fn run(&self, files: Files, stop: &mut dyn FnMut() -> bool) {
        let mut writer = Writer::new(&self.0, files);
        let mut merge = Merge::default();
        loop {
            let ends = stop();
            let before = if ends { u64::MAX } else { self.0.sink.now() };
            // The writer keeps its errors to itself.
            let mut write = |block: &[u8]| {
                writer.write(block);
                Ok(())
            };
            let _ = merge.write_before(before, u64::MAX, &self.0.sink, &mut write);
            if ends {
                break;
            }
            writer.flush();
            thread::sleep(INTERVAL);
        }
        writer.finish();
    }

    /// How many packets were written, and how many were lost.
    #[must_use]
    pub fn totals(&self) -> crate::Totals {
        let written = self.0.written.load(Ordering::Relaxed);
        crate::Totals { written, lost: self.0.sink.lost().sum() }
    }

    /// Where it writes to.
    #[must_use]
    pub fn place(&self) -> Place {
        self.0.place.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The number of a port.
    pub(crate) fn interface(&self, port: &str) -> Option<u32> {
        let place = self.0.ports.iter().position(|other| other == port)?;
        u32::try_from(place).ok()
    }

    pub(crate) fn sink(&self) -> &Arc<Sink> {
        &self.0.sink
    }
}

impl Shared {
    /// Notes where the recording writes to. The owner waits for it, so `change` asks no disk, which may hang.
    pub(crate) fn note(&self, change: impl FnOnce(&mut Place)) {
        change(&mut self.place.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl PartialEq for Recording {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Recording {}

impl std::fmt::Debug for Recording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Recording").field(&self.0.ports).finish()
    }
}

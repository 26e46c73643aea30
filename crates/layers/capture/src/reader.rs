//! A running capture: from the sink to its reader.

use std::io::{self, BufWriter, Write};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use crate::pcapng::{self, Statistics};
use crate::sink::{Merge, Sink};
use crate::sinks::Sinks;

/// How often the buffers are emptied: at 10 Gbit/s they fill up in 6 ms. A live viewer sees each
/// packet within this time.
pub(crate) const INTERVAL: Duration = Duration::from_millis(5);
/// Bytes per write.
pub(crate) const WRITE_BYTES: usize = 256 << 10;

/// A capture at a port. It takes packets from the moment it [is
/// started](crate::CapturePoint::start), and ends when it is dropped.
pub struct Capture {
    /// The captures of the port. Dropped with the port.
    pub(crate) sinks: Weak<Sinks>,
    pub(crate) sink: Arc<Sink>,
    /// The blocks that the stream starts with.
    pub(crate) preamble: Vec<u8>,
    /// After how many packets it ends.
    pub(crate) count: u64,
}

/// What became of the packets that a capture's filter took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// How many were written.
    pub written: u64,
    /// How many were lost, because the output was slower than the port.
    pub lost: u64,
}

impl Capture {
    /// Writes the capture to `out` until the packets reach the [count](crate::Options::count), the
    /// port is gone, or `stop` returns true. Calls `stop` about every 5 ms and flushes new packets
    /// as often, except while a write to `out` blocks.
    ///
    /// # Errors
    /// The output's first error, for example that its reader has gone. The capture is over then.
    pub fn run(self, out: &mut dyn Write, stop: &mut dyn FnMut() -> bool) -> io::Result<Totals> {
        let start = self.sink.now();
        let mut out = BufWriter::with_capacity(WRITE_BYTES, out);
        out.write_all(&self.preamble)?;
        out.flush()?;
        let mut merge = Merge::default();
        let mut written = 0;
        while written < self.count {
            let ends = stop() || self.sinks.strong_count() == 0;
            let before = if ends {
                self.detach();
                u64::MAX
            } else {
                self.sink.now()
            };
            let most = self.count - written;
            let write = &mut |block: &[u8]| out.write_all(block);
            let more = merge.write_before(before, most, &self.sink, write)?;
            if more > 0 {
                out.flush()?;
                written += more;
            }
            if ends {
                break;
            }
            thread::sleep(INTERVAL);
        }
        self.detach();
        let totals = Totals { written, lost: self.sink.lost().sum() };
        let statistics = Statistics {
            interface: 0,
            start,
            end: self.sink.now(),
            received: totals.written + totals.lost,
            lost: totals.lost,
        };
        let mut block = Vec::new();
        pcapng::append_statistics(&mut block, &statistics);
        out.write_all(&block)?;
        out.flush()?;
        Ok(totals)
    }

    /// Stops taking packets.
    fn detach(&self) {
        if let Some(sinks) = self.sinks.upgrade() {
            sinks.remove(&self.sink);
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.detach();
    }
}

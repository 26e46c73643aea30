//! Packets of several buffers, in the order of their timestamps.

use std::io;

use crate::pcapng;
use crate::sink::{BUFFERS, Sink};

/// What the reader has taken out of a sink.
#[derive(Default)]
pub(crate) struct Merge {
    /// The buffers last emptied.
    taken: [Vec<u8>; BUFFERS],
    /// Packets from after the last call's `before`: earlier ones may still come.
    held: Vec<u8>,
}

impl Merge {
    /// Hands over the blocks of the packets from before the time `before`, which must not be later than the sink's
    /// clock while workers record; at most `most` of them. Returns how many.
    pub(crate) fn write_before(
        &mut self,
        before: u64,
        most: u64,
        sink: &Sink,
        write: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<u64> {
        for (buffer, taken) in self.taken.iter_mut().enumerate() {
            sink.exchange(buffer, taken);
        }
        let sources = std::iter::once(&self.held).chain(&self.taken);
        let mut blocks: Vec<_> = sources.flat_map(|blocks| pcapng::packets(blocks)).collect();
        // Stable: what has the same time stays in the order of its side.
        blocks.sort_by_key(|(timestamp, _)| *timestamp);
        let ready = blocks.partition_point(|(timestamp, _)| *timestamp < before);
        let (ready, held) = blocks.split_at(ready);
        let mut written = 0;
        for (_, block) in ready.iter().take(usize::try_from(most).unwrap_or(usize::MAX)) {
            write(block)?;
            sink.written(block.len());
            written += 1;
        }
        self.held = held.iter().flat_map(|(_, block)| *block).copied().collect();
        Ok(written)
    }
}

//! The file that a recording is written to.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::reader::WRITE_BYTES;

/// A file, and what is in it.
pub(crate) struct Current {
    out: BufWriter<File>,
    path: PathBuf,
    /// Its length in bytes, including what is still in the buffer.
    bytes: u64,
    /// How many of these bytes the kernel has taken. A block ends there.
    flushed: u64,
    /// When it began, in nanoseconds since the Unix epoch.
    start: u64,
    /// By interface: the packets in it.
    received: Vec<u64>,
    /// By interface: those of them that the kernel has not taken.
    buffered: Vec<u64>,
    /// By interface: the packets that were lost before it began.
    lost_before: Vec<u64>,
}

impl Current {
    /// A file whose preamble has `bytes` bytes and is written. By interface, `lost` packets were lost before it began.
    pub(crate) fn new(
        (out, path): (File, PathBuf),
        bytes: u64,
        start: u64,
        lost: impl Iterator<Item = u64>,
    ) -> Self {
        let lost_before: Vec<_> = lost.collect();
        let none = vec![0; lost_before.len()];
        Self {
            out: BufWriter::with_capacity(WRITE_BYTES, out),
            path,
            bytes,
            flushed: bytes,
            start,
            received: none.clone(),
            buffered: none,
            lost_before,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its length in bytes, including what the kernel has not taken.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// When it began, in nanoseconds since the Unix epoch.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Whether there are packets in it.
    pub(crate) fn has_packets(&self) -> bool {
        self.received.iter().any(|packets| *packets > 0)
    }

    /// Whether the kernel has taken packets of it.
    pub(crate) fn has_kept_packets(&self) -> bool {
        self.received.iter().zip(&self.buffered).any(|(received, buffered)| received > buffered)
    }

    /// By interface: the packets in it, and those that were lost since it began. `lost` counts from the recording's start.
    pub(crate) fn counts(
        &self,
        lost: impl Iterator<Item = u64>,
    ) -> impl Iterator<Item = (u64, u64)> {
        let lost = lost.zip(&self.lost_before).map(|(now, before)| now.saturating_sub(*before));
        self.received.iter().copied().zip(lost)
    }

    /// By interface: the packets that the kernel has not taken.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = u64> {
        self.buffered.iter().copied()
    }

    /// Writes a packet's block. After an error none of the block is written, since it fits into the buffer: it can be written again.
    pub(crate) fn write(&mut self, block: &[u8], interface: u32) -> io::Result<()> {
        self.append(block)?;
        for packets in [&mut self.received, &mut self.buffered] {
            if let Some(packets) = packets.get_mut(interface as usize) {
                *packets += 1;
            }
        }
        Ok(())
    }

    /// Writes blocks that are not packets. What is said of errors in [`write`](Self::write) holds here too.
    pub(crate) fn append(&mut self, blocks: &[u8]) -> io::Result<()> {
        self.out.write_all(blocks)?;
        self.bytes += blocks.len() as u64;
        Ok(())
    }

    /// Hands what was written to the kernel. Returns how many packets that was. After an error it can be called again.
    pub(crate) fn flush(&mut self) -> io::Result<u64> {
        self.out.flush()?;
        self.flushed = self.bytes;
        Ok(self.buffered.iter_mut().map(std::mem::take).sum())
    }

    /// Cuts off what is behind the last block that the kernel has taken: part of a block.
    pub(crate) fn restored(self) -> io::Result<Self> {
        let Self { out, flushed, mut received, buffered, .. } = self;
        let (mut out, _) = out.into_parts();
        out.set_len(flushed)?;
        out.seek(SeekFrom::Start(flushed))?;
        for (received, buffered) in received.iter_mut().zip(&buffered) {
            *received -= buffered;
        }
        let (out, buffered) = (BufWriter::with_capacity(WRITE_BYTES, out), vec![0; received.len()]);
        Ok(Self { out, bytes: flushed, received, buffered, ..self })
    }
}

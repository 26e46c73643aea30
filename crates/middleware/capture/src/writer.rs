//! Writes the blocks of a recording to one file after the other.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::files::Files;
use crate::pcapng::{self, Statistics};
use crate::reader::WRITE_BYTES;
use crate::recording::{Place, Shared};

/// How long a writer waits after an error.
const PAUSE: Duration = Duration::from_secs(10);

/// Writes blocks of packets.
pub(crate) struct Writer<'a> {
    recording: &'a Shared,
    files: Files,
    file: Option<Current>,
    /// When the next file may be tried, after an error.
    retry: Option<Instant>,
}

/// The file that is written to.
struct Current {
    out: BufWriter<File>,
    /// Its bytes, with those that are still in the buffer.
    bytes: u64,
    /// The bytes that the kernel has taken, which end with a block.
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

impl<'a> Writer<'a> {
    /// A writer, which begins with a file.
    pub(crate) fn new(recording: &'a Shared, files: Files) -> Self {
        let mut writer = Self { recording, files, file: None, retry: None };
        writer.open();
        writer
    }

    /// Writes a packet's block, or counts the packet as lost.
    pub(crate) fn write(&mut self, block: &[u8]) {
        let interface = pcapng::interface_of(block);
        let is_full = self.file.as_ref().is_some_and(|file| {
            let end = file.bytes + block.len() as u64 + self.statistics(file).len() as u64;
            end > self.files.most_bytes && file.received.iter().any(|packets| *packets > 0)
        });
        if is_full {
            self.end();
        }
        if self.file.is_none() && self.retry.is_none_or(|at| Instant::now() >= at) {
            self.open();
        }
        match self.file.as_mut().map(|file| file.write(block, interface)) {
            Some(Ok(())) => return,
            Some(Err(error)) => self.fail(&error),
            None => {}
        }
        self.recording.sink.lose(interface, 1);
    }

    /// Has the kernel take what was written.
    pub(crate) fn flush(&mut self) {
        let Some(file) = &mut self.file else { return };
        if let Err(error) = file.flush(self.recording) {
            self.fail(&error);
        }
    }

    /// Ends the last file.
    pub(crate) fn finish(mut self) {
        self.end();
    }

    fn open(&mut self) {
        match self.begin() {
            Ok(file) => (self.file, self.retry) = (Some(file), None),
            Err(error) => self.fail(&error),
        }
    }

    /// Begins a file. One that cannot be begun is not left behind: it would take the place of an older one.
    fn begin(&mut self) -> io::Result<Current> {
        let (mut out, path) = self.files.next()?;
        let Shared { sink, preamble, .. } = self.recording;
        if let Err(error) = out.write_all(preamble) {
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        let bytes = preamble.len() as u64;
        let lost_before: Vec<_> = sink.lost().collect();
        *self.recording.place() = Place { path: Some(path), bytes, error: None };
        Ok(Current {
            out: BufWriter::with_capacity(WRITE_BYTES, out),
            bytes,
            flushed: bytes,
            start: sink.now(),
            received: vec![0; lost_before.len()],
            buffered: vec![0; lost_before.len()],
            lost_before,
        })
    }

    /// Ends the file with the interfaces' statistics.
    fn end(&mut self) {
        let Some(mut file) = self.file.take() else { return };
        let blocks = self.statistics(&file);
        let done = file.out.write_all(&blocks);
        file.bytes += blocks.len() as u64;
        if let Err(error) = done.and_then(|()| file.flush(self.recording)) {
            self.file = Some(file);
            self.fail(&error);
        }
    }

    fn statistics(&self, file: &Current) -> Vec<u8> {
        let mut blocks = Vec::new();
        let (start, end) = (file.start, self.recording.sink.now());
        let lost = self.recording.sink.lost().zip(&file.lost_before);
        let lost = lost.map(|(now, before)| now.saturating_sub(*before));
        for ((interface, received), lost) in (0..).zip(&file.received).zip(lost) {
            let statistics = Statistics { interface, start, end, received: received + lost, lost };
            pcapng::append_statistics(&mut blocks, &statistics);
        }
        blocks
    }

    /// Leaves a file that could not be written to, up to the last block that the kernel has taken.
    fn fail(&mut self, error: &io::Error) {
        self.retry = Some(Instant::now() + PAUSE);
        self.recording.place().error = Some(error.to_string());
        let Some(file) = self.file.take() else { return };
        for (interface, packets) in (0..).zip(file.buffered) {
            self.recording.sink.lose(interface, packets);
        }
        let (out, _) = file.out.into_parts();
        // What is behind it is half a block.
        let _ = out.set_len(file.flushed);
    }
}

impl Current {
    fn write(&mut self, block: &[u8], interface: u32) -> io::Result<()> {
        self.out.write_all(block)?;
        self.bytes += block.len() as u64;
        for packets in [&mut self.received, &mut self.buffered] {
            if let Some(packets) = packets.get_mut(interface as usize) {
                *packets += 1;
            }
        }
        Ok(())
    }

    fn flush(&mut self, recording: &Shared) -> io::Result<()> {
        self.out.flush()?;
        self.flushed = self.bytes;
        let packets = self.buffered.iter_mut().map(std::mem::take).sum();
        recording.written.fetch_add(packets, Ordering::Relaxed);
        recording.place().bytes = self.bytes;
        Ok(())
    }
}

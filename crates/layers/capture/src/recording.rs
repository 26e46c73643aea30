//! A recording: a capture of several ports to files, without an end of its own.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::current::Current;
use crate::files::Files;
use crate::filter::{Filter, FilterError};
use crate::pcapng::{self, Statistics};
use crate::reader::INTERVAL;
use crate::request::{Options, preamble};
use crate::sink::{Merge, Sink};

/// The packets of some ports on their way to files. A [`CapturePoint`](crate::CapturePoint) of each port
/// [gives](crate::CapturePoint::record) it the port's packets.
#[derive(Clone)]
pub struct Recording(Arc<Shared>);

/// What a recording's owner and its thread share.
struct Shared {
    ports: Vec<String>,
    sink: Arc<Sink>,
    /// The blocks that each file starts with.
    preamble: Vec<u8>,
    written: AtomicU64,
    status: Mutex<RecordingStatus>,
}

/// The files of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RecordingStatus {
    /// The newest file; absent if none could be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Its bytes.
    pub bytes: u64,
    /// Why nothing is written at the moment. The recording tries again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
            status: Mutex::default(),
        })))
    }

    /// Writes packets to files until `stop` returns true, which it asks about every 5 ms. Then no port should give it packets any more.
    /// While nothing can be written, packets are lost, and it tries again after each pause. Older files stay, except one at most.
    pub fn run(&self, files: Files, stop: &mut dyn FnMut() -> bool) {
        let mut writer = Writer::new(&self.0, files);
        let mut merge = Merge::default();
        loop {
            let ends = stop();
            let before = if ends { u64::MAX } else { self.0.sink.now() };
            // The writer handles its own errors.
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
    pub fn status(&self) -> RecordingStatus {
        self.0.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn interface(&self, port: &str) -> Option<u32> {
        let place = self.0.ports.iter().position(|other| other == port)?;
        u32::try_from(place).ok()
    }

    pub(crate) fn sink(&self) -> &Arc<Sink> {
        &self.0.sink
    }
}

impl Shared {
    /// Changes the status. The owner waits for its lock, so `change` must not use a disk, which may hang.
    fn note(&self, change: impl FnOnce(&mut RecordingStatus)) {
        change(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner));
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

/// Writes blocks of packets, and pauses after an error.
///
/// On a full disk the oldest file is removed first, if the current file would replace it anyway: the recording itself may have filled the
/// disk. If there is still no room, the current file is continued later. A new file for each try would push out the older ones, the only
/// files with packets.
struct Writer<'a> {
    recording: &'a Shared,
    files: Files,
    file: Option<Current>,
    /// When something may be written again, after an error.
    retry: Option<Instant>,
}

impl<'a> Writer<'a> {
    /// A writer, which begins with a file.
    fn new(recording: &'a Shared, files: Files) -> Self {
        let mut writer = Self { recording, files, file: None, retry: None };
        writer.attempt(Self::begin);
        writer
    }

    /// Writes a packet's block, or counts the packet as lost.
    fn write(&mut self, block: &[u8]) {
        let interface = pcapng::interface_of(block);
        if self.is_waiting() || !self.attempt(|writer| writer.put(block, interface)) {
            self.recording.sink.lose(interface, 1);
        }
    }

    /// Hands what was written to the kernel.
    fn flush(&mut self) {
        if !self.is_waiting() {
            self.attempt(Self::hand_over);
        }
    }

    /// Ends the last file.
    fn finish(mut self) {
        self.attempt(Self::end);
    }

    fn is_waiting(&self) -> bool {
        self.retry.is_some_and(|at| Instant::now() < at)
    }

    /// Returns whether the work was done. After an error, the writer waits.
    fn attempt(&mut self, work: impl FnOnce(&mut Self) -> io::Result<()>) -> bool {
        let done = work(self);
        if let Err(error) = &done {
            self.fail(error);
        }
        done.is_ok()
    }

    fn put(&mut self, block: &[u8], interface: u32) -> io::Result<()> {
        let is_full = self.file.as_ref().is_some_and(|file| {
            let end = file.bytes() + block.len() as u64 + self.statistics(file).len() as u64;
            end > self.files.most_bytes && file.has_packets()
        });
        if is_full {
            self.end()?;
        }
        if self.file.is_none() {
            self.begin()?;
        }
        self.with_room(|writer| match &mut writer.file {
            Some(file) => file.write(block, interface),
            None => Ok(()),
        })
    }

    /// Does work that needs room on the disk. If there is none and an older file gives way, does it once more.
    fn with_room<T>(&mut self, work: impl Fn(&mut Self) -> io::Result<T>) -> io::Result<T> {
        match work(self) {
            Err(error) if needs_room(&error) && matches!(self.files.give_way(), Ok(true)) => {
                work(self)
            }
            done => done,
        }
    }

    /// Begins a file.
    fn begin(&mut self) -> io::Result<()> {
        let new = self.with_room(Self::make)?;
        let Shared { sink, preamble, .. } = self.recording;
        let file = Current::new(new, preamble.len() as u64, sink.now(), sink.lost());
        self.recording.note(|status| {
            (status.path, status.bytes) = (Some(file.path().display().to_string()), file.bytes());
        });
        self.file = Some(file);
        Ok(())
    }

    /// Makes a file with its preamble. If the preamble cannot be written, the file is removed.
    fn make(&mut self) -> io::Result<(File, PathBuf)> {
        let (mut out, path) = self.files.next()?;
        match out.write_all(&self.recording.preamble) {
            Ok(()) => Ok((out, path)),
            Err(error) => {
                let _ = fs::remove_file(&path);
                Err(error)
            }
        }
    }

    /// Hands what was written to the kernel. With its first packets, a file takes the place of an older one.
    fn hand_over(&mut self) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let (had_packets, bytes) = (file.has_kept_packets(), file.bytes());
        let packets =
            self.with_room(|writer| writer.file.as_mut().map_or(Ok(0), Current::flush))?;
        self.recording.note(|status| status.bytes = bytes);
        if packets == 0 {
            return Ok(());
        }
        self.retry = None;
        self.recording.note(|status| status.error = None);
        self.recording.written.fetch_add(packets, Ordering::Relaxed);
        if had_packets { Ok(()) } else { self.files.make_room().map(drop) }
    }

    /// Ends the file with the interfaces' statistics. A file without packets is removed: it would take the place of one with packets.
    fn end(&mut self) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        if !file.has_packets() {
            let removed = self.discard(file);
            self.file = None;
            return removed;
        }
        let blocks = self.statistics(file);
        self.with_room(|writer| match &mut writer.file {
            Some(file) => file.append(&blocks),
            None => Ok(()),
        })?;
        self.hand_over()?;
        self.file = None;
        Ok(())
    }

    /// Removes a file.
    fn discard(&self, file: &Current) -> io::Result<()> {
        self.recording.note(|status| (status.path, status.bytes) = (None, 0));
        fs::remove_file(file.path())
    }

    fn statistics(&self, file: &Current) -> Vec<u8> {
        let mut blocks = Vec::new();
        let end = self.recording.sink.now();
        for (interface, (received, lost)) in (0..).zip(file.counts(self.recording.sink.lost())) {
            let (start, received) = (file.start(), received + lost);
            let statistics = Statistics { interface, start, end, received, lost };
            pcapng::append_statistics(&mut blocks, &statistics);
        }
        blocks
    }

    /// Cuts the file behind the last block that the kernel has taken, and pauses. After a full disk, the file is continued later. After
    /// another error the next file is begun, and a file without packets is removed.
    fn fail(&mut self, error: &io::Error) {
        self.retry = Some(Instant::now() + self.files.pause);
        let needs_room = needs_room(error);
        let then = if needs_room { "; nothing is written until there is room" } else { "" };
        self.recording.note(|status| status.error = Some(format!("{error}{then}")));
        let Some(file) = self.file.take() else { return };
        for (interface, packets) in (0..).zip(file.waiting()) {
            self.recording.sink.lose(interface, packets);
        }
        match file.restored() {
            Ok(file) if needs_room => self.file = Some(file),
            // A file that cannot be removed stays.
            Ok(file) if !file.has_packets() => drop(self.discard(&file)),
            Ok(_) | Err(_) => {}
        }
    }
}

/// Whether the disk or the quota is full.
fn needs_room(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

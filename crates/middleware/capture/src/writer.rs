//! Writes the blocks of a recording to one file after the other.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::current::Current;
use crate::files::Files;
use crate::pcapng::{self, Statistics};
use crate::recording::Shared;

/// Writes blocks of packets.
///
/// After an error it waits. Where the disk has no room, the oldest file goes first if the one that is written to would take its place
/// anyway: the recording itself may fill the disk. If there is still no room, this file stays the one that is written to: a new one for
/// each try would push older files out, which is all that is left of the past then.
pub(crate) struct Writer<'a> {
    recording: &'a Shared,
    files: Files,
    file: Option<Current>,
    /// When something may be written again, after an error.
    retry: Option<Instant>,
}

impl<'a> Writer<'a> {
    /// A writer, which begins with a file.
    pub(crate) fn new(recording: &'a Shared, files: Files) -> Self {
        let mut writer = Self { recording, files, file: None, retry: None };
        writer.attempt(Self::begin);
        writer
    }

    /// Writes a packet's block, or counts the packet as lost.
    pub(crate) fn write(&mut self, block: &[u8]) {
        let interface = pcapng::interface_of(block);
        if self.is_waiting() || !self.attempt(|writer| writer.put(block, interface)) {
            self.recording.sink.lose(interface, 1);
        }
    }

    /// Has the kernel take what was written.
    pub(crate) fn flush(&mut self) {
        if !self.is_waiting() {
            self.attempt(Self::hand_over);
        }
    }

    /// Ends the last file.
    pub(crate) fn finish(mut self) {
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

    /// Does what needs room on the disk. Where there is none, it is done again if an older file gives way.
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
        self.recording.note(|place| {
            (place.path, place.bytes) = (Some(file.path().to_owned()), file.bytes());
        });
        self.file = Some(file);
        Ok(())
    }

    /// Makes a file that has its preamble. One that cannot have it is not left behind.
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

    /// Has the kernel take what was written. The first packets of a file make it one that takes the place of an older one.
    fn hand_over(&mut self) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let (had_packets, bytes) = (file.has_kept_packets(), file.bytes());
        let packets =
            self.with_room(|writer| writer.file.as_mut().map_or(Ok(0), Current::flush))?;
        self.recording.note(|place| place.bytes = bytes);
        if packets == 0 {
            return Ok(());
        }
        self.retry = None;
        self.recording.note(|place| place.error = None);
        self.recording.written.fetch_add(packets, Ordering::Relaxed);
        if had_packets { Ok(()) } else { self.files.make_room().map(drop) }
    }

    /// Ends the file with the interfaces' statistics. One without packets goes: it would take the place of one that has some.
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
        self.recording.note(|place| (place.path, place.bytes) = (None, 0));
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

    /// Leaves the file as the kernel has taken it, up to a block's end, and waits. Where it is room that is missing, the file goes on
    /// later; otherwise the next one is tried, and a file without packets goes.
    fn fail(&mut self, error: &io::Error) {
        self.retry = Some(Instant::now() + self.files.pause);
        let needs_room = needs_room(error);
        let then = if needs_room { "; nothing is written until there is room" } else { "" };
        self.recording.note(|place| place.error = Some(format!("{error}{then}")));
        let Some(file) = self.file.take() else { return };
        for (interface, packets) in (0..).zip(file.waiting()) {
            self.recording.sink.lose(interface, packets);
        }
        match file.restored() {
            Ok(file) if needs_room => self.file = Some(file),
            // What cannot be removed either stays.
            Ok(file) if !file.has_packets() => drop(self.discard(&file)),
            Ok(_) | Err(_) => {}
        }
    }
}

/// Whether it is room on the disk that is missing.
fn needs_room(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

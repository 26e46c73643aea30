//! Disks that answer when a test wants it, or never.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::TempDir;

/// Bytes of a disk's only file.
const SIZE: usize = 16 << 20;
/// Bytes of the longest request: as many as the kernel writes at once, and the request's headers.
const REQUEST_MAX: usize = (128 << 10) + 4096;

/// FUSE's requests: `FUSE_LOOKUP` and so on in `linux/fuse.h`.
mod request {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const INTERRUPT: u32 = 36;
    pub const BATCH_FORGET: u32 = 42;
}

/// `ENOSYS`
const NO_SUCH_REQUEST: i32 = -38;

/// A FUSE file system with one file. While it is [held](Self::hold), reading or closing the file waits.
///
/// It is unmounted lazily at once: only [`path`](Self::path) leads to the file.
#[derive(Debug)]
pub struct SlowDisk {
    state: Arc<Mutex<State>>,
    file: File,
    is_over: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct State {
    device: File,
    data: Vec<u8>,
    is_held: bool,
    /// The requests that are answered later: numbers and answers.
    waiting: Vec<(u64, Vec<u8>)>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SlowDisk {
    /// A disk that is not held.
    ///
    /// # Errors
    /// The kernel has no FUSE, or this user may not mount.
    pub fn new() -> io::Result<Self> {
        let folder = TempDir::new().map_err(io::Error::other)?;
        let device = mount_fuse(folder.path(), "slow")?;
        let mut requests = device.try_clone()?;
        let (data, waiting) = (vec![0; SIZE], Vec::new());
        let state = Arc::new(Mutex::new(State { device, data, is_held: false, waiting }));
        let served = state.clone();
        let is_over = Arc::<AtomicBool>::default();
        let ends = is_over.clone();
        let server = std::thread::Builder::new().name("slow disk".to_owned());
        let server = server.spawn(move || {
            let mut bytes = vec![0; REQUEST_MAX];
            let wait = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            while !ends.load(Ordering::Relaxed) {
                let mut fds = [PollFd::new(&requests, PollFlags::IN)];
                if matches!(poll(&mut fds, Some(&wait)), Ok(0)) {
                    continue;
                }
                match requests.read(&mut bytes) {
                    Ok(len) => lock(&served).take(&bytes[..len]),
                    // The caller gave up the request.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => return,
                }
            }
        })?;
        let file = File::options().read(true).write(true).open(folder.path().join("file"));
        let unmounted = unmount(folder.path());
        let file = file.and_then(|file| unmounted.map(|()| file));
        match file {
            Ok(file) => Ok(Self { state, file, is_over, server: Some(server) }),
            Err(error) => {
                is_over.store(true, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// The path of its file, for this process and for those that it starts.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }

    /// Holds back all answers from now on.
    pub fn hold(&self) {
        lock(&self.state).is_held = true;
    }

    /// Sends all answers that were held back.
    pub fn release(&self) {
        lock(&self.state).release();
    }

    /// How many requests wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        lock(&self.state).waiting.len()
    }
}

impl Drop for SlowDisk {
    /// Ends all waiting. Without a server the kernel refuses further requests.
    fn drop(&mut self) {
        self.release();
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// `struct fuse_attr` of a node: 1 is the folder, everything else is the file.
fn attributes(node: u64) -> Vec<u8> {
    let (mode, size) = if node == 1 { (0o040_755, 0) } else { (0o100_600, SIZE as u64) };
    let numbers = [node, size, size / 512, 0, 0, 0].map(u64::to_ne_bytes).concat();
    // Fractions of the times, mode, links, owner, device, block size, flags.
    [numbers, bytes_of(&[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0])].concat()
}

impl State {
    fn release(&mut self) {
        self.is_held = false;
        for (unique, answer) in std::mem::take(&mut self.waiting) {
            self.answer(unique, 0, &answer);
        }
    }

    fn answer(&mut self, unique: u64, error: i32, answer: &[u8]) {
        let len = u32::try_from(16 + answer.len()).unwrap_or(u32::MAX);
        let head = [&len.to_ne_bytes()[..], &error.to_ne_bytes(), &unique.to_ne_bytes()].concat();
        // The caller may have been killed.
        let _ = self.device.write(&[&head, answer].concat());
    }

    /// Answers a request, now or later.
    fn take(&mut self, bytes: &[u8]) {
        let word = |at: usize| {
            let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
            word.map_or(0, u32::from_ne_bytes)
        };
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let (unique, node) = (long(8), long(16));
        // The range of bytes in requests to read and to write.
        let from = usize::try_from(long(48)).unwrap_or(SIZE).min(SIZE);
        let to = from.saturating_add(word(56) as usize).min(SIZE);
        // Names and attributes are valid for an hour, in seconds.
        let valid = 3600u64.to_ne_bytes();
        let answer = match word(4) {
            request::INIT => {
                // Version, read ahead, flags, requests at a time, bytes of a write, 1 ns.
                let words = [7, 31, 0, 0, 64 | 48 << 16, 128 << 10, 1];
                [bytes_of(&words), vec![0; 36]].concat()
            }
            request::LOOKUP => {
                let name = [2, 0].map(u64::to_ne_bytes).concat();
                [name, valid.into(), valid.into(), vec![0; 8], attributes(2)].concat()
            }
            request::GETATTR => [valid.into(), vec![0; 8], attributes(node)].concat(),
            // Without the page cache, so that a second read asks again.
            request::OPEN => [1u64.to_ne_bytes().into(), bytes_of(&[1, 0])].concat(),
            request::READ => self.data[from..to].into(),
            request::WRITE => {
                let written = bytes.get(80..80 + (to - from)).unwrap_or_default();
                self.data[from..from + written.len()].copy_from_slice(written);
                bytes_of(&[word(56), 0])
            }
            request::STATFS => vec![0; 80],
            request::FLUSH | request::FSYNC | request::RELEASE => Vec::new(),
            request::FORGET | request::INTERRUPT | request::BATCH_FORGET => return,
            _ => return self.answer(unique, NO_SUCH_REQUEST, &[]),
        };
        match word(4) {
            request::READ | request::FLUSH if self.is_held => self.waiting.push((unique, answer)),
            _ => self.answer(unique, 0, &answer),
        }
    }
}

/// A disk that hangs, mounted over a folder. Each request waits until this value is dropped, and fails then.
///
/// It is a FUSE file system whose server never answers. Make it in a mount namespace of the test's own.
#[derive(Debug)]
pub struct HungDisk {
    /// The server's descriptor. Closing it ends all waiting.
    server: Option<File>,
    folder: PathBuf,
}

impl HungDisk {
    /// Mounts it over a folder.
    ///
    /// # Errors
    /// The kernel has no FUSE, or this user may not mount.
    pub fn over(folder: &Path) -> io::Result<Self> {
        Ok(Self { server: Some(mount_fuse(folder, "hung")?), folder: folder.to_owned() })
    }
}

/// Mounts a FUSE file system over a folder. Returns the server's descriptor.
fn mount_fuse(folder: &Path, name: &str) -> io::Result<File> {
    let server = File::options().read(true).write(true).open("/dev/fuse")?;
    let mut mount = Command::new("mount");
    // Descriptor 0 is standard input.
    let options = "fd=0,rootmode=40000,user_id=0,group_id=0";
    mount.args(["-i", "-t", "fuse", "-o", options, name]).arg(folder);
    let status = mount.stdin(server.try_clone()?).status()?;
    match status.success() {
        true => Ok(server),
        false => Err(io::Error::other(format!("mount: {status}"))),
    }
}

/// Unmounts a file system lazily: files that are open stay open.
fn unmount(folder: &Path) -> io::Result<()> {
    let status = Command::new("umount").arg("--lazy").arg(folder).status()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("umount: {status}"))),
    }
}

impl Drop for HungDisk {
    fn drop(&mut self) {
        drop(self.server.take());
        if let Err(error) = unmount(&self.folder) {
            eprintln!("clean-up: {}: {error}", self.folder.display());
        }
    }
}

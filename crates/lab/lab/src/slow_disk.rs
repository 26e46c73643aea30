//! A disk whose answers come when a test wants them, and swap on it.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::TempDir;
use crate::hung_disk::mount_fuse;

/// Bytes of its one file.
const SIZE: usize = 16 << 20;
/// The longest request: as much as the kernel writes at once, and what says so.
const REQUEST_MAX: usize = (128 << 10) + 4096;

/// How often pages are taken out, and what may be left of a group's memory: the kernel's own.
const TRIES: u32 = 500;
const SMALL: u64 = 128 << 10;

/// Requests of FUSE, `FUSE_LOOKUP` and so on of `linux/fuse.h`.
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

/// A file system of FUSE with one file. While it is [held](Self::hold), whoever reads the file, or closes it, waits.
///
/// It is taken out of the tree at once: only [`path`](Self::path) leads to the file.
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
    /// What is answered later.
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
        let device = mount_fuse(folder.path())?;
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
                    // A request that was given up.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => return,
                }
            }
        })?;
        let file = File::options().read(true).write(true).open(folder.path().join("file"));
        let status = Command::new("umount").arg("--lazy").arg(folder.path()).status()?;
        if !status.success() {
            return Err(io::Error::other(format!("umount: {status}")));
        }
        Ok(Self { state, file: file?, is_over, server: Some(server) })
    }

    /// The path of its file, for this process and for those that it starts.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }

    /// From here on nobody gets an answer.
    pub fn hold(&self) {
        lock(&self.state).is_held = true;
    }

    /// All get their answers.
    pub fn release(&self) {
        lock(&self.state).release();
    }

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        lock(&self.state).waiting.len()
    }
}

impl Drop for SlowDisk {
    /// Nobody waits any more, not even whoever still has the file: without a server the kernel refuses what is asked.
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
        // Whoever asked may have been killed.
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
        // In requests to read and to write.
        let from = usize::try_from(long(48)).unwrap_or(SIZE).min(SIZE);
        let to = from.saturating_add(word(56) as usize).min(SIZE);
        // An hour, for names and attributes.
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
            // Without the page cache: a second read asks again.
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

/// Swap on a slow disk, of 16 MiB. While it is there, the whole machine swaps to it first; a test that is killed leaves it behind (`swapoff`
/// of the loop device that `swapon` shows).
#[derive(Debug)]
pub struct SlowSwap {
    disk: SlowDisk,
    /// The loop device.
    device: String,
    /// The control group whose memory is taken out.
    group: PathBuf,
}

impl SlowSwap {
    /// Begins to swap to it.
    ///
    /// # Errors
    /// The kernel has no FUSE, no loop devices, no swap or no control group of memory, or this user may not use them.
    pub fn new() -> io::Result<Self> {
        let group = new_group()?;
        let disk = SlowDisk::new()?;
        let device = run("losetup", &["--find", "--show"], &disk.path())?;
        run("mkswap", &["--quiet"], Path::new(&device))?;
        let swaps = run("swapon", &["--priority", "32767"], Path::new(&device));
        // Once nobody uses it any more.
        run("losetup", &["--detach"], Path::new(&device))?;
        swaps?;
        Ok(Self { disk, device, group })
    }

    /// Does what a process asks for that it says a word per line on its standard output, [`Wish`], and answers a line to each.
    ///
    /// Whoever sleeps in memory that is swapped out should be another process than the one that has the disk: a process of which a thread sleeps so
    /// cannot be killed, and would keep the disk, which keeps the thread asleep.
    ///
    /// # Errors
    /// The process cannot be spoken with, or what it wished for failed.
    pub fn serve(&self, process: &mut Child) -> io::Result<()> {
        let pipes = process.stdout.take().zip(process.stdin.take());
        let (said, mut answers) = pipes.ok_or_else(|| io::Error::other("no pipes"))?;
        for line in BufReader::new(said).lines() {
            let line = line?;
            let Some(wish) = line.strip_prefix(WISH) else { continue };
            let mut words = wish.split(' ');
            match words.next() {
                Some("hold") => self.disk.hold(),
                Some("release") => self.disk.release(),
                Some("take-out") => {
                    let numbers: Vec<usize> = words.filter_map(|word| word.parse().ok()).collect();
                    let [fd, len] = numbers[..] else { continue };
                    let file = format!("/proc/{}/fd/{fd}", process.id());
                    self.take_out(Path::new(&file), len)?;
                }
                _ => {}
            }
            writeln!(answers, "{}", self.disk.waiting())?;
        }
        Ok(())
    }

    /// Fills the first `len` bytes of a file in memory, and has them swapped out.
    ///
    /// # Errors
    /// They were not.
    pub fn take_out(&self, file: &Path, len: usize) -> io::Result<()> {
        let before = self.used()?;
        let path = format!("of={}", file.display());
        let mut writer = Command::new("dd");
        writer
            .args(["bs=4096", "iflag=fullblock", "conv=notrunc", "status=none", &path])
            .stdin(Stdio::piped());
        let mut writer = writer.spawn()?;
        // The pages belong to the group of whoever touches them first.
        fs::write(self.group.join("cgroup.procs"), writer.id().to_string())?;
        // Pages of zeroes, or of equal words, need no disk; those that are written in parts count as used.
        let page: Vec<u8> = (0..4096u32).map(|n| (n % 251) as u8).collect();
        if let Some(mut input) = writer.stdin.take() {
            (0..len / page.len()).try_for_each(|_| input.write_all(&page))?;
        }
        writer.wait()?;
        for _ in 0..TRIES {
            // What the kernel has not done it says in one way or another.
            let _ = fs::write(self.group.join("memory.force_empty"), "0");
            let _ = fs::write(self.group.join("memory.reclaim"), len.to_string());
            let is_out = self.used()? - before >= len as u64;
            // Pages that are being written are still there too.
            if is_out && self.held_by_group()? < SMALL {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(io::Error::other("the pages are not swapped out"))
    }

    /// Bytes of memory that its group has.
    fn held_by_group(&self) -> io::Result<u64> {
        let counts = ["memory.usage_in_bytes", "memory.current"];
        let texts = counts.iter().filter_map(|file| fs::read_to_string(self.group.join(file)).ok());
        let mut bytes = texts.filter_map(|text| text.trim().parse().ok());
        bytes.next().ok_or_else(|| io::Error::other("a control group without a count"))
    }

    /// Bytes of it that are in use.
    fn used(&self) -> io::Result<u64> {
        let swaps = fs::read_to_string("/proc/swaps")?;
        let line = swaps.lines().find(|line| line.split_whitespace().next() == Some(&self.device));
        let used = line.and_then(|line| line.split_whitespace().nth(3)?.parse().ok());
        used.map(|kib: u64| kib * 1024).ok_or_else(|| io::Error::other("no such swap"))
    }
}

impl Drop for SlowSwap {
    fn drop(&mut self) {
        self.disk.release();
        let ended = run("swapoff", &[], Path::new(&self.device));
        let removed = fs::remove_dir(&self.group);
        if let Err(error) = ended.and(removed) {
            eprintln!("clean-up: swap on {}: {error}", self.device);
        }
    }
}

/// What begins a line by which a process asks for something of a disk that another one has.
const WISH: &str = "disk: ";

/// What a process wishes of the disk on which it is swapped out ([`SlowSwap::serve`]).
#[derive(Clone, Copy, Debug)]
pub enum Wish {
    /// Fill this many bytes of the file of this descriptor, and have them swapped out.
    TakeOut(i32, usize),
    /// Whoever reads from now on waits.
    Hold,
    /// Nobody waits any more.
    Release,
    /// Nothing.
    Nothing,
}

impl Wish {
    /// Asks, and waits until it is done. Returns how many reads wait then.
    ///
    /// # Errors
    /// The process that has the disk is gone.
    pub fn ask(self) -> io::Result<usize> {
        let wish = match self {
            Self::TakeOut(fd, len) => format!("take-out {fd} {len}"),
            Self::Hold => "hold".to_owned(),
            Self::Release => "release".to_owned(),
            Self::Nothing => "nothing".to_owned(),
        };
        // A test's name may be on the line before.
        println!("\n{WISH}{wish}");
        let mut answer = String::new();
        io::stdin().read_line(&mut answer)?;
        answer.trim().parse().map_err(io::Error::other)
    }
}

/// A control group of memory, in whichever version the machine has.
fn new_group() -> io::Result<PathBuf> {
    let name = format!("pvnet-test-{}", std::process::id());
    let roots = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(Path::new);
    for root in roots {
        let group = root.join(&name);
        if fs::create_dir(&group).is_err() {
            continue;
        }
        if ["memory.force_empty", "memory.reclaim"].iter().any(|file| group.join(file).exists()) {
            return Ok(group);
        }
        fs::remove_dir(&group)?;
    }
    Err(io::Error::other("no control groups of memory"))
}

/// Runs a tool on a device or a file. Returns what it says.
fn run(tool: &str, arguments: &[&str], on: &Path) -> io::Result<String> {
    let output = Command::new(tool).args(arguments).arg(on).output()?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("{tool}: {}", why.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

//! Swap on a disk that answers when a test wants it.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::slow_disk::SlowDisk;

/// How often the kernel is asked to swap pages out.
const TRIES: u32 = 500;
/// Bytes that may be left of a group's memory: the kernel's own.
const SMALL: u64 = 128 << 10;
/// How long a tool may take.
const LIMIT: Duration = Duration::from_secs(30);
/// With this much free memory, only pages that a test takes out are swapped out.
const SPARE: u64 = 1 << 30;

/// Swap of 16 MiB on a slow disk. While it exists, the whole machine swaps to it first: so it is made only if there is no other swap, and memory to
/// spare. A test that is killed leaves it behind; `swapoff` of the loop device that `swapon` shows removes it.
#[derive(Debug)]
pub struct SlowSwap {
    disk: SlowDisk,
    /// The loop device.
    device: String,
    /// The control group whose memory is swapped out.
    group: PathBuf,
}

impl SlowSwap {
    /// Makes the swap, and switches it on.
    ///
    /// # Errors
    /// The kernel lacks FUSE, loop devices, swap or control groups of memory, or this user may not use them; or other programs might be
    /// swapped to it.
    pub fn new() -> io::Result<Self> {
        let is_swapping = fs::read_to_string("/proc/swaps")?.lines().count() > 1;
        if is_swapping || available()? < SPARE {
            return Err(io::Error::other("this machine swaps, or is short of memory"));
        }
        let disk = SlowDisk::new()?;
        let device = run("losetup", &["--find", "--show"], &disk.path())?;
        let on = Path::new(&device);
        let swaps = run("mkswap", &["--quiet"], on)
            .and_then(|_| run("swapon", &["--priority", "32767"], on));
        // The device is detached once nobody uses it any more.
        run("losetup", &["--detach"], on)?;
        swaps?;
        match new_group() {
            Ok(group) => Ok(Self { disk, device, group }),
            Err(error) => {
                run("swapoff", &[], on)?;
                Err(error)
            }
        }
    }

    /// Serves a child's requests: each [`Wish`] is a line of its standard output, and gets a line as its answer.
    ///
    /// The process whose threads sleep in swapped-out memory should not be the one that has the disk. Such a process cannot be killed: it would
    /// keep the disk, and the disk would keep its threads asleep.
    ///
    /// # Errors
    /// The process's pipes failed, or a wish did.
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
    /// They were not swapped out.
    pub fn take_out(&self, file: &Path, len: usize) -> io::Result<()> {
        let before = self.used()?;
        let path = format!("of={}", file.display());
        let mut writer = Command::new("dd");
        writer
            .args(["bs=4096", "iflag=fullblock", "conv=notrunc", "status=none", &path])
            .stdin(Stdio::piped());
        let mut writer = writer.spawn()?;
        // A page belongs to the group of the process that touches it first.
        fs::write(self.group.join("cgroup.procs"), writer.id().to_string())?;
        // Pages of equal words need no disk. Pages that are written in parts count as recently used.
        let page: Vec<u8> = (0..4096u32).map(|n| (n % 251) as u8).collect();
        if let Some(mut input) = writer.stdin.take() {
            (0..len / page.len()).try_for_each(|_| input.write_all(&page))?;
        }
        writer.wait()?;
        for _ in 0..TRIES {
            // Errors are ignored: the loop checks what the kernel has done. Each of the two files is of one version of control groups.
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

    /// Bytes of memory that the control group has.
    fn held_by_group(&self) -> io::Result<u64> {
        let counts = ["memory.usage_in_bytes", "memory.current"];
        let texts = counts.iter().filter_map(|file| fs::read_to_string(self.group.join(file)).ok());
        let mut bytes = texts.filter_map(|text| text.trim().parse().ok());
        bytes.next().ok_or_else(|| io::Error::other("a control group without a count"))
    }

    /// Bytes of the swap that are in use.
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

/// Begins a line by which a process asks for something of another process's disk.
const WISH: &str = "disk: ";

/// What a process asks of the disk to which it is swapped out ([`SlowSwap::serve`]).
#[derive(Clone, Copy, Debug)]
pub enum Wish {
    /// Fill a number of bytes of a descriptor's file, and have them swapped out.
    TakeOut(i32, usize),
    /// Reads wait from now on.
    Hold,
    /// Answer all reads.
    Release,
    /// Only say how many requests wait.
    Nothing,
}

impl Wish {
    /// Asks, and waits until it is done. Returns how many requests wait then.
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
        // The test runner may have begun the line with a test's name.
        println!("\n{WISH}{wish}");
        let mut answer = String::new();
        io::stdin().read_line(&mut answer)?;
        answer.trim().parse().map_err(io::Error::other)
    }
}

/// Bytes of memory that programs can get without swap.
fn available() -> io::Result<u64> {
    let info = fs::read_to_string("/proc/meminfo")?;
    let kib =
        info.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.split_whitespace().next());
    let kib = kib.and_then(|kib| kib.parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| io::Error::other("no MemAvailable"))
}

/// Makes a control group of memory, in the version that the machine has.
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
    let mut command = Command::new(tool);
    command.args(arguments).arg(on);
    crate::run(command, LIMIT).map(|said| said.trim().to_owned()).map_err(io::Error::other)
}

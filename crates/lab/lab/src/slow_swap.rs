//! Swap on a disk whose answers come when a test wants them.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::slow_disk::SlowDisk;

/// How often pages are taken out, and what may be left of a group's memory: the kernel's own.
const TRIES: u32 = 500;
const SMALL: u64 = 128 << 10;
/// How long a tool may take.
const LIMIT: Duration = Duration::from_secs(30);
/// With this much free memory, nothing is swapped out but what a test takes out.
const SPARE: u64 = 1 << 30;

/// Swap on a slow disk, of 16 MiB. While it is there, the whole machine swaps to it first: so it is made only where there is no other swap and memory
/// to spare. A test that is killed leaves it behind (`swapoff` of the loop device that `swapon` shows).
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
    /// The kernel has no FUSE, no loop devices, no swap or no control group of memory, or this user may not use them. Or other programs might be
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
        // Once nobody uses it any more.
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

    /// Serves a child's requests: one [`Wish`] per line on its standard output, one line of answer each.
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

/// Bytes of memory that programs can have without swap.
fn available() -> io::Result<u64> {
    let info = fs::read_to_string("/proc/meminfo")?;
    let kib =
        info.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.split_whitespace().next());
    let kib = kib.and_then(|kib| kib.parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| io::Error::other("no MemAvailable"))
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
    let mut command = Command::new(tool);
    command.args(arguments).arg(on);
    crate::run(command, LIMIT).map(|said| said.trim().to_owned()).map_err(io::Error::other)
}

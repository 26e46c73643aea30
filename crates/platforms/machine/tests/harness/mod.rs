//! A machine whose guests are separate processes: a test runs itself again as a guest.

#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hypervisor::DomId;
use machine::{Admitted, Applicant, Listener, Machine, MemorySize, Share, Toolstack};

/// Tells a process that it is the guest, and where to join.
pub const SOCKET: &str = "PVNET_TEST_SOCKET";

/// Admits every guest, with this much memory.
pub struct AdmitAll(pub MemorySize);

impl Toolstack for AdmitAll {
    type Guest = ();

    fn admit(&self, _: &Applicant) -> Result<Admitted<()>, String> {
        Ok(Admitted { size: self.0, share: Share::default(), guest: () })
    }

    fn created(&self, _: DomId, _: &()) -> Result<(), String> {
        Ok(())
    }

    fn destroyed(&self, _: DomId, _: &()) {}
}

/// A machine whose guests are processes that run the test called `test` again.
pub struct Host {
    pub machine: Machine,
    listener: Arc<Listener>,
    /// Where guests join.
    pub path: PathBuf,
}

impl Host {
    pub fn new(test: &str, size: MemorySize) -> Self {
        // An earlier host may still be removing its socket.
        static HOSTS: AtomicUsize = AtomicUsize::new(0);
        let number = HOSTS.fetch_add(1, Ordering::Relaxed);
        let name = format!("pvnet-{test}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let (machine, listener) = (Machine::new(), Arc::new(Listener::bind(&path, 0o600).unwrap()));
        let (ours, theirs) = (listener.clone(), machine.clone());
        std::thread::spawn(move || ours.serve(&theirs, &Arc::new(AdmitAll(size))));
        Self { machine, listener, path }
    }

    pub fn guest(&self, test: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(SOCKET, &self.path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        let hears = child.stdin.take();
        Process { child, says, hears }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.listener.stop();
    }
}

/// The guest's process, and a line of numbers each way. The guest's begin with `>`, unlike the test harness's.
pub struct Process {
    pub child: Child,
    says: BufReader<ChildStdout>,
    hears: Option<ChildStdin>,
}

impl Process {
    pub fn hear(&mut self) -> Vec<u32> {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.says.read_line(&mut line).unwrap(), 0, "the guest has ended");
            // The harness writes the test's name in front of the first.
            if let Some((_, numbers)) = line.split_once('>') {
                return numbers.split_whitespace().map(|n| n.parse().unwrap()).collect();
            }
        }
    }

    pub fn tell(&mut self) {
        writeln!(self.hears.as_mut().unwrap(), "go on").unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In the guest's process: prints numbers and waits for the other side.
pub fn say(numbers: &[u32]) {
    let words: Vec<_> = numbers.iter().map(u32::to_string).collect();
    println!("> {}", words.join(" "));
    assert_ne!(std::io::stdin().read_line(&mut String::new()).unwrap(), 0, "the host has ended");
}

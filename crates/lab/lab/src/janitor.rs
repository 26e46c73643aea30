//! One place that remembers what to undo, and undoes it last first.

use crate::{Error, Namespace, Process, Result};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A registry of clean-up: processes to stop and wait for, namespaces to delete, files to remove. Runs in reverse
/// order of registration when dropped; failures are then printed to standard error.
///
/// Together with [`crate::Interrupt`] it also runs after Ctrl-C. SIGKILL of this process is the one way round it:
/// processes die even then (see [`crate::command`]), names of namespaces stay.
#[derive(Debug, Default)]
pub struct Janitor {
    duties: Vec<Duty>,
}

#[derive(Debug)]
enum Duty {
    Process(Process),
    Namespace(Namespace),
    File(PathBuf),
}

impl Janitor {
    /// Nothing to clean yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a process to stop and wait for; returns its id.
    pub fn process(&mut self, process: Process) -> u32 {
        let pid = process.pid();
        self.duties.push(Duty::Process(process));
        pid
    }

    /// Takes a namespace to delete; returns a handle to use meanwhile.
    pub fn namespace(&mut self, namespace: Namespace) -> Namespace {
        let handle = namespace.handle();
        self.duties.push(Duty::Namespace(namespace));
        handle
    }

    /// Takes a file or socket to remove; it need not exist, now or then.
    pub fn file(&mut self, path: impl Into<PathBuf>) {
        self.duties.push(Duty::File(path.into()));
    }

    /// The registered process with this id.
    #[cfg(test)]
    fn process_mut(&mut self, pid: u32) -> Option<&mut Process> {
        self.duties.iter_mut().find_map(|duty| match duty {
            Duty::Process(process) if process.pid() == pid => Some(process),
            _ => None,
        })
    }

    /// Cleans everything now and returns what failed. What failed is not tried again.
    pub fn clean(&mut self) -> Vec<Error> {
        let last_first = std::iter::from_fn(|| self.duties.pop());
        last_first.filter_map(|duty| duty.perform().err()).collect()
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        for error in self.clean() {
            eprintln!("clean-up: {error}");
        }
    }
}

impl Duty {
    fn perform(self) -> Result<()> {
        match self {
            Self::Process(mut process) => process.stop().map(drop),
            Self::Namespace(mut namespace) => namespace.delete(),
            Self::File(path) => remove(&path),
        }
    }
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(cause) if cause.kind() != ErrorKind::NotFound => {
            Err(Error::Io { what: format!("cannot remove {}", path.display()), cause })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("pvnet-janitor-{}-{name}", std::process::id()))
    }

    #[test]
    fn files_go_and_absent_ones_are_no_failure() {
        let path = scratch("file");
        fs::write(&path, b"x").expect("write");
        let mut janitor = Janitor::new();
        janitor.file(&path);
        janitor.file(scratch("never-made"));
        assert!(janitor.clean().is_empty());
        assert!(!path.exists());
    }

    #[test]
    fn the_last_duty_comes_first() {
        // A folder can be removed only after what lies in it; as a file it cannot be removed at all, which shows.
        let folder = scratch("folder");
        fs::create_dir(&folder).expect("folder");
        fs::write(folder.join("inside"), b"x").expect("write");
        let mut janitor = Janitor::new();
        janitor.file(&folder);
        janitor.file(folder.join("inside"));
        let failures = janitor.clean();
        assert_eq!(failures.len(), 1);
        assert!(
            failures[0].to_string().starts_with(&format!("cannot remove {}: ", folder.display()))
        );
        fs::remove_dir(&folder).expect("it is empty by now");
    }

    #[test]
    fn processes_are_stopped_and_waited_for() {
        let mut sleep = command("sleep").expect("sleep");
        sleep.arg("60");
        let mut janitor = Janitor::new();
        let pid = janitor.process(Process::spawn(sleep).expect("start"));
        assert!(janitor.process_mut(pid).expect("registered").ended().expect("wait").is_none());
        drop(janitor);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }
}

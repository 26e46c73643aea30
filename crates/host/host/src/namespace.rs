//! Network namespaces.

use crate::process::run_to_the_end;
use crate::{Error, Result, preflight, run, tools};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Far more than `ip` needs, so that a stuck kernel does not hang a test.
pub const LIMIT: Duration = Duration::from_secs(20);

/// The default congestion control of the namespace that the reader or writer is in.
const CONGESTION: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// A named network namespace with `lo` up. Deleted on drop if it was [created](Self::create) here. Programs still
/// inside keep the namespace, without its name, until they end.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    owned: bool,
}

impl Namespace {
    /// Makes a namespace called `PREFIX-PID-NUMBER`. The name is unique among running programs.
    ///
    /// # Errors
    /// [`Error::NotRoot`], [`Error::MissingTool`], or [`Error::Failed`] from `ip`.
    pub fn create(prefix: &str) -> Result<Self> {
        static CREATED: AtomicU64 = AtomicU64::new(0);
        preflight(&[])?;
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        let name = format!("{prefix}-{}-{number}", std::process::id());
        let added = ip(&["netns", "add", &name]);
        let mut namespace = Self { name, owned: false };
        // Ctrl-C may have stopped `ip` after it made the namespace.
        namespace.owned = namespace.path().exists();
        added?;
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// The namespace of this name. Deleted on drop if there was none before.
    pub fn ensure(name: &str) -> Result<Self> {
        preflight(&[])?;
        let mut namespace = Self { name: name.to_owned(), owned: false };
        if !namespace.path().exists() {
            ip(&["netns", "add", name])?;
            namespace.owned = true;
        }
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// A namespace that another program made and deletes.
    ///
    /// # Errors
    /// [`Error::Io`] if there is none of that name.
    pub fn open(name: &str) -> Result<Self> {
        let namespace = Self { name: name.to_owned(), owned: false };
        namespace.file().map(|_| namespace)
    }

    /// Its name, as `ip netns` knows it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its file.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.name)
    }

    /// A command that runs `program` inside; the caller adds arguments. It dies with the thread that starts it (see
    /// [`crate::command`]).
    ///
    /// # Errors
    /// [`Error::MissingTool`] if there is no such program.
    pub fn exec(&self, program: &str) -> Result<Command> {
        tools::wrapped(&["ip", "netns", "exec", &self.name], program)
    }

    /// Runs `ip` with these arguments inside and returns its output.
    ///
    /// # Errors
    /// [`Error::Failed`] with its output.
    pub fn ip(&self, arguments: &[&str]) -> Result<String> {
        ip(&[&["-n", self.name.as_str()], arguments].concat())
    }

    /// Runs `work` on a new thread inside: the sockets that it opens belong to the namespace.
    ///
    /// # Errors
    /// [`Error::Io`] if the namespace is gone or the thread cannot start. A failure to enter is part of the thread's
    /// result.
    pub fn thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<JoinHandle<Result<T>>> {
        let file = self.file()?;
        let name = self.name.clone();
        let inside = move || enter(&file, &name).and_then(|()| work());
        let builder = thread::Builder::new().name("lab".to_owned());
        builder.spawn(inside).map_err(Error::io("cannot start a thread"))
    }

    /// Runs `work` to its end inside, on a thread of its own.
    ///
    /// # Errors
    /// Those of `work`, and [`Error::Io`] if the namespace is gone, cannot be entered, or the thread cannot start.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let inside = || self.enter().and_then(|()| work());
        thread::scope(|scope| {
            let thread = thread::Builder::new().spawn_scoped(scope, inside);
            let done = thread.map_err(Error::io("cannot start a thread"))?.join();
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Moves the calling thread, and its later children, into the namespace.
    ///
    /// # Errors
    /// [`Error::Io`] if the namespace is gone or cannot be entered.
    pub fn enter(&self) -> Result<()> {
        enter(&self.file()?, &self.name)
    }

    /// Makes `name` the congestion control of TCP connections that begin inside from now on. A kernel may refuse one that is
    /// not in `tcp_allowed_congestion_control`; then it is Reno: a connection that begins with BBR keeps its timers, whatever is chosen later.
    ///
    /// # Errors
    /// [`Error::Io`] if the kernel has none of that name, or the namespace is gone.
    pub fn set_congestion(&self, name: &str) -> Result<()> {
        let (what, name) = (format!("congestion control {name}"), name.to_owned());
        self.inside(move || match std::fs::write(CONGESTION, name) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                std::fs::write(CONGESTION, "reno").map_err(Error::io("congestion control reno"))
            }
            written => written.map_err(Error::io(what)),
        })
    }

    /// Deletes the namespace now, if it was created here.
    ///
    /// # Errors
    /// [`Error::Failed`] from `ip`. The drop does not try again.
    pub fn delete(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.owned) {
            return Ok(());
        }
        let mut command = tools::command("ip")?;
        command.args(["netns", "delete", &self.name]);
        run_to_the_end(command, LIMIT)
    }

    fn file(&self) -> Result<File> {
        File::open(self.path()).map_err(Error::io(format!("no network namespace {}", self.name)))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = self.delete() {
            eprintln!("clean-up: {error}");
        }
    }
}

fn enter(file: &File, name: &str) -> Result<()> {
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(Error::io(format!("cannot enter namespace {name}, which needs root")))
}

/// Waits for a thread. Its panic continues here.
pub fn join<T>(thread: JoinHandle<Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Runs `ip` on the host.
pub fn ip(arguments: &[&str]) -> Result<String> {
    let mut command = tools::command("ip")?;
    command.args(arguments);
    run(command, LIMIT)
}

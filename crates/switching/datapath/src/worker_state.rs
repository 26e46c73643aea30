//! What of a worker outlives its thread.
//!
//! The memory of guests can make a thread sleep for as long as its owner likes: a page fault in a range of a memfd that is being punched
//! waits, uninterruptibly, until all of the range is punched. So a thread that sleeps in a turn is replaced ([`sleepers`](crate::sleepers)). It
//! keeps the queue of that turn, and the lock of the egress queue to which it delivered, until it wakes up; all else goes on with the new one.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tracing::error;

use crate::activity::Activity;
use crate::command::Command;
use crate::shared::{Cause, Shared};
use crate::slot::Entry;
use crate::times::Times;

/// A worker's queues and tasks, its commands, and the thread that serves them.
pub(crate) struct WorkerState {
    pub(crate) number: usize,
    commands: Mutex<mpsc::Receiver<Command>>,
    /// By the numbers of the thread's slots.
    entries: Mutex<Vec<Option<Arc<Entry>>>>,
    /// How many threads it has had before this one. A thread that finds another number than its own ends. Changes while `commands` is
    /// locked.
    replacements: AtomicU64,
    /// How many replaced threads have ended.
    ended: AtomicU64,
    /// Whether it takes commands and does nothing else. Changes while `commands` is locked.
    is_paused: AtomicBool,
    thread: Mutex<Option<WorkerThread>>,
    /// What became of its time.
    pub(crate) times: Times,
}

pub(crate) struct WorkerThread {
    /// The kernel's number of it.
    pub(crate) id: u32,
    /// `/proc/thread-self/stat`, as it was opened by the thread itself.
    pub(crate) stat: File,
    /// The same for `wchan` and `schedstat`, if the kernel has them.
    pub(crate) wchan: Option<File>,
    pub(crate) schedstat: Option<File>,
    pub(crate) activity: Arc<Activity>,
    pub(crate) join: JoinHandle<()>,
}

impl WorkerThread {
    /// Whether it sleeps where no signal wakes it.
    pub(crate) fn is_asleep(&self) -> bool {
        let mut stat = [0; 512];
        let len = self.stat.read_at(&mut stat, 0).unwrap_or(0);
        // "1234 (a name) D ...": the name may have brackets too.
        let state = stat[..len].iter().rposition(|byte| *byte == b')').map(|end| end + 2);
        state.and_then(|state| stat.get(state)) == Some(&b'D')
    }

    /// What it waits for, if it is asleep, by the kernel's function that sleeps.
    pub(crate) fn cause(&self) -> Cause {
        let mut name = [0; 64];
        let len = self.wchan.as_ref().and_then(|wchan| wchan.read_at(&mut name, 0).ok());
        // Behind a dot the compiler says what it has made of it.
        let name = name[..len.unwrap_or(0)].split(|byte| *byte == b'.').next();
        match name.unwrap_or_default() {
            b"shmem_fault" | b"shmem_falloc_wait" => Cause::Hole,
            b"do_user_addr_fault" | b"lock_mm_and_find_vma" | b"do_page_fault" => Cause::Lock,
            _ => Cause::Unknown,
        }
    }

    /// The CPU time that it has used, as of the kernel's last tick.
    pub(crate) fn cpu_time(&self) -> Option<Duration> {
        let mut text = [0; 64];
        let len = self.schedstat.as_ref()?.read_at(&mut text, 0).ok()?;
        let first = text[..len].split(|byte| *byte == b' ').next()?;
        Some(Duration::from_nanos(str::from_utf8(first).ok()?.parse().ok()?))
    }
}

impl WorkerState {
    pub(crate) fn new(number: usize, commands: mpsc::Receiver<Command>) -> Self {
        Self {
            number,
            commands: Mutex::new(commands),
            entries: Mutex::default(),
            replacements: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            is_paused: AtomicBool::new(false),
            thread: Mutex::default(),
            times: Times::default(),
        }
    }

    /// How many threads it has had before the one that serves it.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.replacements.load(Ordering::Relaxed)
    }

    /// Has another thread, which `spawn` starts, take the place of this one. Returns false if a command is being taken or executed just now: who does that is
    /// awake.
    pub(crate) fn succeed(
        &self,
        spawn: impl FnOnce() -> io::Result<WorkerThread>,
    ) -> io::Result<bool> {
        let Some(_none_is_taken) = self.commands.try_lock() else { return Ok(false) };
        let generation = self.generation();
        // Before the new thread reads it.
        self.replacements.store(generation + 1, Ordering::SeqCst);
        match spawn() {
            Ok(thread) => *self.thread.lock() = Some(thread),
            Err(error) => {
                self.replacements.store(generation, Ordering::SeqCst);
                return Err(error);
            }
        }
        Ok(true)
    }

    /// The next command for a thread of this generation, which waits for it if it is paused. None for a thread whose place another one has
    /// taken: what it would do with its queues, and its end, are not that thread's. The guard is dropped when the command is executed: until
    /// then nobody takes the thread's place.
    pub(crate) fn next_command(
        &self,
        generation: u64,
    ) -> Option<(Command, MutexGuard<'_, mpsc::Receiver<Command>>)> {
        // Before the lock too, for which it might wait while the thread in its place is paused.
        if self.generation() != generation {
            return None;
        }
        let commands = self.commands.lock();
        let command = match self.is_paused() {
            _ if self.generation() != generation => None,
            true => commands.recv().ok(),
            false => commands.try_recv().ok(),
        }?;
        match command {
            Command::Pause { .. } => self.is_paused.store(true, Ordering::Relaxed),
            Command::Resume => self.is_paused.store(false, Ordering::Relaxed),
            _ => {}
        }
        Some((command, commands))
    }

    /// Whether it is paused.
    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::Relaxed)
    }

    /// A thread that was replaced has ended.
    pub(crate) fn note_end(&self) {
        self.ended.fetch_add(1, Ordering::Release);
    }

    /// How many of them have ended.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }

    /// Adds a queue or a task. Returns its number.
    pub(crate) fn add(&self, entry: Arc<Entry>) -> usize {
        let mut entries = self.entries.lock();
        let free = entries.iter().position(Option::is_none).unwrap_or(entries.len());
        if free == entries.len() {
            entries.push(None);
        }
        entries[free] = Some(entry);
        free
    }

    /// Removes the queues that the predicate selects, and returns them with their numbers.
    pub(crate) fn remove(&self, is_its: impl Fn(&Entry) -> bool) -> Vec<(usize, Arc<Entry>)> {
        let mut entries = self.entries.lock();
        let entries = entries.iter_mut().enumerate();
        let taken =
            entries.filter_map(|(n, entry)| Some((n, entry.take_if(|entry| is_its(entry))?)));
        taken.collect()
    }

    /// The queue or task of this number, if nobody is in a turn of it.
    pub(crate) fn idle(&self, number: usize) -> Option<Arc<Entry>> {
        let entry = self.entries.lock().get(number)?.clone()?;
        // Nor may reading it make it seem busy to another one.
        (!entry.work.is_locked()).then_some(entry)
    }

    /// The egress queue for whose room the ingress queue in this thread's turn waits.
    pub(crate) fn queue_in_turn(&self, port: u64) -> Option<usize> {
        let entries = self.entries.lock();
        let is_its = |entry: &&Arc<Entry>| entry.port.serial() == port && entry.work.is_locked();
        entries.iter().flatten().find(is_its)?.room_of
    }

    /// The numbers of the queues and tasks that the predicate selects.
    pub(crate) fn find(&self, is_its: impl Fn(&Entry) -> bool) -> Vec<usize> {
        let entries = self.entries.lock();
        let found =
            entries.iter().enumerate().filter(|(_, entry)| entry.as_deref().is_some_and(&is_its));
        found.map(|(number, _)| number).collect()
    }

    /// Puts a queue in the place of another one, which ends with the thread that is in its turn.
    pub(crate) fn replace(&self, number: usize, entry: Arc<Entry>) {
        if let Some(place) = self.entries.lock().get_mut(number) {
            *place = Some(entry);
        }
    }

    /// Its queues and tasks.
    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        self.entries.lock().iter().flatten().cloned().collect()
    }

    /// How many numbers are in use, or were.
    pub(crate) fn len(&self) -> usize {
        self.entries.lock().len()
    }

    /// The first thread that serves it.
    pub(crate) fn set_thread(&self, thread: WorkerThread) {
        *self.thread.lock() = Some(thread);
    }

    /// Asks something of its thread.
    pub(crate) fn with_thread<T>(&self, ask: impl FnOnce(&WorkerThread) -> T) -> Option<T> {
        self.thread.lock().as_ref().map(ask)
    }

    /// Waits for the end of its thread.
    pub(crate) fn join(&self) -> std::thread::Result<()> {
        let thread = self.thread.lock().take();
        thread.map_or(Ok(()), |thread| thread.join.join())
    }
}

/// A worker, for its datapath.
pub(crate) struct WorkerHandle {
    state: Arc<WorkerState>,
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
}

impl WorkerHandle {
    pub(crate) fn new(
        state: Arc<WorkerState>,
        shared: Arc<Shared>,
        commands: mpsc::Sender<Command>,
    ) -> Self {
        Self { state, shared, commands }
    }

    pub(crate) fn send(&self, command: Command) {
        // This fails after the worker has got `Stop`. Then the command needs no effect.
        let _ = self.commands.send(command);
        self.shared.doorbells[self.state.number].ring();
    }

    pub(crate) fn state(&self) -> &Arc<WorkerState> {
        &self.state
    }

    /// Waits for the end of its thread, after [`Command::Stop`].
    pub(crate) fn join(&self) {
        if self.state.join().is_err() {
            error!(worker = self.state.number, "worker panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_takes_no_command_from_the_one_in_its_place() {
        let (sender, commands) = mpsc::channel();
        let state = WorkerState::new(0, commands);
        let (done, _answers) = mpsc::channel();
        for command in [Command::Pause { done }, Command::Resume, Command::Stop] {
            sender.send(command).unwrap();
        }
        let next = |generation| state.next_command(generation).map(|(command, _)| command);
        assert!(matches!(next(0), Some(Command::Pause { .. })) && state.is_paused());
        let failed = state.succeed(|| Err(io::ErrorKind::WouldBlock.into()));
        assert!(failed.is_err() && state.generation() == 0);
        let thread = || {
            let stat = File::open("/proc/thread-self/stat")?;
            let (activity, join) = (Arc::default(), std::thread::spawn(|| ()));
            Ok(WorkerThread { id: 0, stat, wchan: None, schedstat: None, activity, join })
        };
        assert!(state.succeed(thread).unwrap());
        assert!(next(0).is_none());
        assert!(matches!(next(1), Some(Command::Resume)) && !state.is_paused());
        assert!(matches!(next(1), Some(Command::Stop)));
        // Nobody is replaced who waits for a command, or executes one.
        sender.send(Command::Stop).unwrap();
        let _executes = state.next_command(1).unwrap();
        assert!(!state.succeed(thread).unwrap());
    }
}

//! The descriptors by which guest and device notify each other.

use std::ffi::CString;
use std::fmt;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use poller::Dozer;
use port::{Doorbell, Event};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fs::{OFlags, readlink};
use rustix::time::{ClockId, clock_gettime};

use crate::lock;

/// The thread that watches all writes of this process ([`watchdog`](crate::watchdog)): it sleeps while there are none.
pub(crate) static WATCHER: Dozer = Dozer::new();

/// One notification in `TIMED`, at random, is timed: a front-end that knew it could exchange the descriptor in time.
const TIMED: u32 = 8;
/// A notification that takes more CPU time is slow: it wakes thousands that wait for the eventfd. One that wakes a virtual machine takes some microseconds.
const SLOW: Duration = Duration::from_micros(500);

/// Hears that notifications have held up whoever sent them, for some such time.
pub(crate) type HeldUp = Arc<dyn Fn(Duration) + Send + Sync>;

/// A descriptor of a front-end that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DoorbellError {
    /// It is not an eventfd.
    #[error("a descriptor for notifications that is no eventfd")]
    NoEventfd,
    /// The system's error.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// What begins the line with an eventfd's counter, in hexadecimal digits.
const COUNT: &str = "eventfd-count:";
/// What the kernel's link to an eventfd says.
const EVENTFD: &[u8] = b"anon_inode:[eventfd]";
/// Bytes that are read of what the kernel says of an eventfd, which are some hundred. Of another descriptor it may say much more: a line
/// for each descriptor that an epoll instance watches.
const INFO_MAX: u64 = 1024;

/// The kernel's link to a descriptor's file, which says what an anonymous one is. Whoever sent the descriptor cannot choose it: the path
/// of a file that has one begins with a slash.
fn link_of(fd: &impl AsRawFd) -> io::Result<CString> {
    Ok(readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new())?)
}

/// What the kernel says of an eventfd, up to a bound.
fn fd_info(fd: &impl AsRawFd) -> io::Result<String> {
    let mut info = String::new();
    let file = File::open(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
    file.take(INFO_MAX).read_to_string(&mut info)?;
    Ok(info)
}

/// Checks that a descriptor is an eventfd, which a write of 1 cannot fill up, and makes it non-blocking.
///
/// The check costs the same whatever the descriptor is. Its fdinfo would not: a front-end chooses how long that of an epoll instance is, and
/// the kernel makes it whole, with a lock held, before the first byte is read.
fn eventfd(file: File) -> Result<OwnedFd, DoorbellError> {
    if link_of(&file)?.as_bytes() != EVENTFD {
        return Err(DoorbellError::NoEventfd);
    }
    let flags = rustix::fs::fcntl_getfl(&file).map_err(io::Error::from)?;
    rustix::fs::fcntl_setfl(&file, flags | OFlags::NONBLOCK).map_err(io::Error::from)?;
    Ok(file.into())
}

/// How the guest announces chains: an event that stays the same while the front-end exchanges the descriptor behind it.
///
/// It is an epoll instance with the present eventfd in it. Nobody reads the eventfd: each write of the guest makes an edge.
#[derive(Debug)]
pub struct Kick {
    epoll: OwnedFd,
    present: Mutex<Option<OwnedFd>>,
    /// For what this process announces itself.
    doorbell: Doorbell,
}

impl Kick {
    /// A kick without a descriptor.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let doorbell = Doorbell::new()?;
        watch(&epoll, &doorbell)?;
        Ok(Self { epoll, present: Mutex::default(), doorbell })
    }

    /// Sets the descriptor, or takes it away.
    ///
    /// # Errors
    /// It is no eventfd.
    pub fn set(&self, file: Option<File>) -> Result<(), DoorbellError> {
        let fd = file.map(eventfd).transpose()?;
        // Declared first: it is closed without the lock, on errors too (see `Call`).
        let before;
        let mut present = lock(&self.present);
        before = present.take();
        if let Some(before) = &before {
            epoll::delete(&self.epoll, before).map_err(io::Error::from)?;
        }
        if let Some(fd) = &fd {
            watch(&self.epoll, fd)?;
        }
        *present = fd;
        drop(present);
        // A notification may have come by the descriptor before, or to this one before it was watched.
        self.doorbell.ring();
        Ok(())
    }

    /// Wakes up whoever waits, as if the guest had announced something.
    pub(crate) fn ring(&self) {
        self.doorbell.ring();
    }

    /// How often the guest has announced something by the present descriptor; none without one, and if the kernel does not say it.
    pub(crate) fn count(&self) -> Option<u64> {
        let present = lock(&self.present);
        let info = fd_info(present.as_ref()?).ok()?;
        let count = info.lines().find_map(|line| line.strip_prefix(COUNT))?;
        u64::from_str_radix(count.trim(), 16).ok()
    }

    /// Whether there is a descriptor. Without one the guest announces nothing, and its ring must be checked.
    #[must_use]
    pub fn is_set(&self) -> bool {
        lock(&self.present).is_some()
    }
}

/// The CPU time of the calling thread. While it has lost its CPU, also to the guest that it woke, this stands still.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

fn watch(epoll: &OwnedFd, fd: impl AsFd) -> io::Result<()> {
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    Ok(epoll::add(epoll, fd, epoll::EventData::new_u64(0), flags)?)
}

impl AsFd for Kick {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Event for Kick {
    /// Does nothing: each notification makes a new edge.
    fn take(&self) {}
}

/// How the guest is notified. The front-end may exchange the descriptor at any time, as QEMU does to mask an interrupt.
///
/// One thread notifies at a time: the worker that owns the ring. Nobody but [`set`](Self::set) closes a descriptor while this lives, and without the
/// lock: whoever closes a file waits for each epoll instance that watches it, and the front-end may keep one locked for as long as it likes.
#[derive(Default)]
pub struct Call {
    fds: Mutex<CallFds>,
    /// Writes that began, and those that ended, see [`watchdog`](crate::watchdog).
    began: AtomicU64,
    ended: AtomicU64,
    /// The front-end filled the counter.
    is_refused: AtomicBool,
    /// Who hears of slow notifications, and the random numbers that say which ones are timed.
    held_up: Option<HeldUp>,
    random: RandomState,
}

#[derive(Debug, Default)]
struct CallFds {
    present: Option<Arc<OwnedFd>>,
    /// The one that was written last, which another one may have replaced since.
    written: Option<Arc<OwnedFd>>,
    /// What is neither any more, for the session to close.
    left: Vec<Arc<OwnedFd>>,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("fds", &self.fds).finish_non_exhaustive()
    }
}

impl Call {
    /// One of which somebody hears if notifications take long.
    pub(crate) fn of(held_up: HeldUp) -> Self {
        Self { held_up: Some(held_up), ..Self::default() }
    }

    /// Sets the descriptor, or takes it away: the guest then wants no notifications.
    ///
    /// # Errors
    /// It is no eventfd.
    pub fn set(&self, file: Option<File>) -> Result<(), DoorbellError> {
        let fd = file.map(eventfd).transpose()?.map(Arc::new);
        let mut fds = lock(&self.fds);
        let present = std::mem::replace(&mut fds.present, fd);
        let written = fds.written.take_if(|_| self.write_under_way().is_none());
        let left = std::mem::take(&mut fds.left);
        drop(fds);
        drop((present, written, left));
        Ok(())
    }

    /// Notes that a write begins, to this descriptor and with this number.
    pub(crate) fn begin(&self) -> Option<(Arc<OwnedFd>, u64)> {
        let mut fds = lock(&self.fds);
        let fd = fds.present.clone().filter(|_| !self.is_refused.load(Ordering::Relaxed))?;
        if let Some(before) = fds.written.replace(fd.clone())
            && !Arc::ptr_eq(&before, &fd)
        {
            fds.left.push(before);
        }
        let write = self.began.load(Ordering::Relaxed) + 1;
        self.began.store(write, Ordering::Release);
        Some((fd, write))
    }

    /// Notifies the guest.
    pub fn notify(&self) {
        // The lock is not held while a write may block.
        let Some((fd, write)) = self.begin() else { return };
        WATCHER.wake();
        let is_timed =
            self.held_up.is_some() && self.random.hash_one(write) % u64::from(TIMED) == 0;
        let start = is_timed.then(cpu_time);
        // This fails only if the counter is full, and then the guest has a notification to take.
        let _ = rustix::io::write(&fd, &1u64.to_ne_bytes());
        let time = start.map_or(Duration::ZERO, |start| cpu_time().saturating_sub(start));
        if let Some(held_up) = self.held_up.as_ref().filter(|_| time > SLOW) {
            // Those that were not timed took as long.
            held_up(time * TIMED);
        }
        // Until the write has ended another one has it too.
        drop(fd);
        self.ended.store(write, Ordering::Release);
    }

    fn written(&self) -> Option<Arc<OwnedFd>> {
        lock(&self.fds).written.clone()
    }

    /// Writes that have begun.
    pub(crate) fn writes(&self) -> u64 {
        self.began.load(Ordering::Acquire)
    }

    /// The number of the write that has not ended.
    pub(crate) fn write_under_way(&self) -> Option<u64> {
        let ended = self.ended.load(Ordering::Acquire);
        let began = self.began.load(Ordering::Acquire);
        (began > ended).then_some(began)
    }

    /// Whether the counter has no room.
    pub(crate) fn is_full(&self) -> bool {
        let Some(fd) = self.written() else { return false };
        let mut fds = [PollFd::new(&*fd, PollFlags::OUT)];
        let is_full = matches!(poll(&mut fds, Some(&Timespec::default())), Ok(0));
        self.let_go(fd);
        is_full
    }

    /// Sends no more notifications. A write is under way, or will never be.
    pub(crate) fn refuse(&self) {
        let _fds = lock(&self.fds);
        self.is_refused.store(true, Ordering::Relaxed);
    }

    /// Empties the counter until no write waits for room.
    pub(crate) fn drain(&self) {
        let Some(fd) = self.written() else { return };
        while self.write_under_way().is_some() {
            let flags = rustix::fs::fcntl_getfl(&*fd).unwrap_or(OFlags::empty());
            let _ = rustix::fs::fcntl_setfl(&*fd, flags | OFlags::NONBLOCK);
            if rustix::io::read(&*fd, &mut [0; 8]).is_err() {
                std::thread::yield_now();
            }
        }
        self.let_go(fd);
    }

    /// Drops a descriptor that others have too, or leaves it to the session.
    fn let_go(&self, fd: Arc<OwnedFd>) {
        let mut fds = lock(&self.fds);
        let is_kept = |kept: &Arc<OwnedFd>| Arc::ptr_eq(kept, &fd);
        if ![&fds.present, &fds.written].into_iter().flatten().any(is_kept) {
            fds.left.push(fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::EventfdFlags;

    use super::*;

    fn new() -> File {
        rustix::event::eventfd(0, EventfdFlags::empty()).unwrap().into()
    }

    fn waits(epoll: &OwnedFd) -> bool {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 4];
        epoll::wait(epoll, &mut events, Some(&Timespec::default())).unwrap() == 0
    }

    #[test]
    fn every_kick_makes_an_edge_whatever_descriptor_it_comes_by() {
        let outer = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let kick = Kick::new().unwrap();
        watch(&outer, &kick).unwrap();
        assert!(waits(&outer));
        let first = new();
        kick.set(Some(first.try_clone().unwrap())).unwrap();
        assert!(!waits(&outer) && waits(&outer), "a change is announced once");
        for _ in 0..3 {
            rustix::io::write(&first, &1u64.to_ne_bytes()).unwrap();
            assert!(!waits(&outer) && waits(&outer));
        }
        assert_eq!(kick.count(), Some(3));
        let second = new();
        kick.set(Some(second.try_clone().unwrap())).unwrap();
        assert_eq!(kick.count(), Some(0));
        assert!(!waits(&outer) && waits(&outer));
        rustix::io::write(&second, &1u64.to_ne_bytes()).unwrap();
        assert!(!waits(&outer) && waits(&outer));
        rustix::io::write(&first, &1u64.to_ne_bytes()).unwrap();
        assert!(waits(&outer), "the first one is not watched any more");
    }

    #[test]
    fn whoever_notifies_or_watches_closes_no_descriptor() {
        let call = Call::default();
        call.set(Some(new())).unwrap();
        let (fd, write) = call.begin().unwrap();
        let first = Arc::downgrade(&fd);
        // The front-end exchanges it during the write.
        call.set(Some(new())).unwrap();
        drop(fd);
        call.ended.store(write, Ordering::Release);
        call.notify();
        assert!(first.upgrade().is_some(), "the worker closes it");
        call.set(Some(new())).unwrap();
        assert!(first.upgrade().is_none());
        call.notify();
        let fd = call.written().unwrap();
        let third = Arc::downgrade(&fd);
        call.set(None).unwrap();
        call.let_go(fd);
        assert!(third.upgrade().is_some(), "the watchdog closes it");
        call.set(None).unwrap();
        assert!(third.upgrade().is_none());
        // A ring goes while the watchdog checks it, and a worker has its queue.
        let ring = crate::vring::Vring::new(Arc::new(|_| ())).unwrap();
        let (call, kick) = (ring.call.clone(), ring.kick.clone());
        call.set(Some(new())).unwrap();
        kick.set(Some(new())).unwrap();
        call.notify();
        let fourth = Arc::downgrade(&call.written().unwrap());
        drop(ring);
        assert!(fourth.upgrade().is_none() && !kick.is_set(), "the watchdog or a worker closes it");
    }

    /// Its fdinfo has a line for each descriptor that it watches: the check would cost its time and memory.
    #[test]
    fn the_check_of_a_descriptor_does_not_read_what_its_sender_made_long() {
        const WATCHED: usize = 500;
        let crowd = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let one = new();
        let others: Vec<_> = (0..WATCHED).map(|_| one.try_clone().unwrap()).collect();
        others.iter().for_each(|fd| watch(&crowd, fd).unwrap());
        let crowd = File::from(crowd);
        assert!(fd_info(&crowd).unwrap().len() as u64 <= INFO_MAX);
        // Bytes that this thread has read.
        let read = || {
            let io = std::fs::read_to_string("/proc/thread-self/io").unwrap();
            io.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse::<u64>().ok()).unwrap()
        };
        let before = read();
        assert!(matches!(eventfd(crowd), Err(DoorbellError::NoEventfd)));
        assert!(read() - before < INFO_MAX, "its fdinfo was read");
        // The name of a file is not taken for the kernel's word.
        let folder = lab::TempDir::new().unwrap();
        let path = folder.path().join("anon_inode:[eventfd]");
        let named = File::create(path).unwrap();
        assert!(matches!(eventfd(named), Err(DoorbellError::NoEventfd)));
        let named = rustix::fs::memfd_create("eventfd-count: 0", rustix::fs::MemfdFlags::CLOEXEC);
        assert!(matches!(eventfd(named.unwrap().into()), Err(DoorbellError::NoEventfd)));
    }

    #[test]
    fn only_an_eventfd_is_taken_and_a_full_one_blocks_nobody() {
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        for file in [File::open("/dev/null").unwrap(), reader.into()] {
            assert!(matches!(Call::default().set(Some(file)), Err(DoorbellError::NoEventfd)));
        }
        let call = Call::default();
        call.notify();
        let fd = new();
        call.set(Some(fd.try_clone().unwrap())).unwrap();
        rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        call.notify();
    }

    /// Descriptors of an eventfd that an epoll instance watches, as many as this process may have beside the tests' own: a write wakes each.
    fn crowd(fd: &File) -> (OwnedFd, Vec<File>) {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        let most = limit.maximum.unwrap_or(u64::MAX).min(20_000);
        let current = limit.current.map(|current| current.max(most));
        setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let watched = |_| {
            let own = fd.try_clone().unwrap();
            watch(&epoll, &own).unwrap();
            own
        };
        let all = (0..most.saturating_sub(1000)).map(watched).collect();
        (epoll, all)
    }

    #[test]
    fn who_makes_notifications_slow_is_charged_for_them() {
        let charged = |crowded: bool| {
            let sum = Arc::<Mutex<Duration>>::default();
            let charged = sum.clone();
            let (call, fd) = (Call::of(Arc::new(move |time| *lock(&charged) += time)), new());
            call.set(Some(fd.try_clone().unwrap())).unwrap();
            let _crowd = crowded.then(|| crowd(&fd));
            let start = cpu_time();
            (0..400).for_each(|_| call.notify());
            let spent = cpu_time() - start;
            (*lock(&sum), spent)
        };
        let (few, spent) = charged(false);
        assert!(few < Duration::from_millis(100), "{few:?} of {spent:?}");
        let (many, spent) = charged(true);
        if spent < 800 * SLOW {
            eprintln!("skipped: {spent:?} are too few for this test");
            return;
        }
        // One in eight stands for eight.
        assert!(many > spent / 3 && many < spent * 3, "{many:?} of {spent:?}");
    }
}

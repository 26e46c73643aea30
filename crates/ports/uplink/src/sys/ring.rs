//! io_uring (`linux/io_uring.h`): several writes by one system call.

#![expect(clippy::cast_possible_truncation, reason = "sizes, offsets and constants here are small")]

use std::ffi::c_void;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

/// Most writes of one call: the entries of a ring.
pub(crate) const WRITES_MAX: usize = 64;

/// `IORING_SETUP_R_DISABLED` and `IORING_SETUP_SUBMIT_ALL`: it takes no operation before its restrictions are set, and goes on behind one that fails.
const SETUP: u32 = 1 << 6 | 1 << 7;
const FEAT_SINGLE_MMAP: u32 = 1;
const OFF_SQ_RING: i64 = 0;
const OFF_SQES: i64 = 0x1000_0000;
const ENTER_GETEVENTS: u32 = 1;
const REGISTER_RESTRICTIONS: u32 = 11;
const REGISTER_ENABLE_RINGS: u32 = 12;
const RESTRICTION_SQE_OP: u16 = 1;

/// How a frame is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Operation {
    /// `IORING_OP_WRITE`, as `write`.
    Write = 23,
    /// `IORING_OP_SEND` without waiting, as `send`.
    Send = 26,
}

/// The operations that a ring takes: whoever took the process over could do nothing else by it, and nothing that the filter of system
/// calls forbids.
const OPERATIONS: [Operation; 2] = [Operation::Write, Operation::Send];

/// `struct io_sqring_offsets`
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct SubmissionOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    flags: u32,
    dropped: u32,
    array: u32,
    reserved: u32,
    address: u64,
}

/// `struct io_cqring_offsets`
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CompletionOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    overflow: u32,
    entries: u32,
    flags: u32,
    reserved: u32,
    address: u64,
}

/// `struct io_uring_params`
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Parameters {
    submission_entries: u32,
    completion_entries: u32,
    flags: u32,
    thread_cpu: u32,
    thread_idle: u32,
    features: u32,
    workqueue: u32,
    reserved: [u32; 3],
    submission: SubmissionOffsets,
    completion: CompletionOffsets,
}

/// `struct io_uring_sqe`
#[repr(C)]
#[derive(Clone, Copy)]
struct Submission {
    opcode: u8,
    flags: u8,
    priority: u16,
    fd: i32,
    offset: u64,
    address: u64,
    len: u32,
    operation_flags: u32,
    user_data: u64,
    rest: [u64; 3],
}

/// `struct io_uring_cqe`
#[repr(C)]
#[derive(Clone, Copy)]
struct Completion {
    user_data: u64,
    result: i32,
    flags: u32,
}

/// `struct io_uring_restriction`
#[repr(C)]
#[derive(Clone, Copy)]
struct Restriction {
    opcode: u16,
    operation: u8,
    reserved: u8,
    rest: [u32; 3],
}

const _: () = {
    assert!(size_of::<Parameters>() == 120);
    assert!(size_of::<Submission>() == 64);
    assert!(size_of::<Completion>() == 16);
    assert!(size_of::<Restriction>() == 16);
};

/// Memory of the kernel's.
struct Mapping {
    start: NonNull<c_void>,
    len: usize,
}

// SAFETY: it is memory of the process, which any thread may use; `Ring` says who does.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(ring: &OwnedFd, len: usize, offset: i64) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice touches none that is there.
        let start = unsafe {
            libc::mmap(ptr::null_mut(), len, protection, flags, ring.as_raw_fd(), offset)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { start, len })
    }

    /// The object at this offset, if it lies within.
    fn at<T>(&self, offset: u32, count: u32) -> io::Result<NonNull<T>> {
        let end = offset as usize + count as usize * size_of::<T>();
        let is_aligned =
            (self.start.addr().get() + offset as usize).is_multiple_of(align_of::<T>());
        if end > self.len || !is_aligned {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: the offset lies within the mapping.
        Ok(unsafe { self.start.byte_add(offset as usize) }.cast())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's, and nobody has a pointer into it any more.
        unsafe { libc::munmap(self.start.as_ptr(), self.len) };
    }
}

/// Writes that are under way at the same time, which it waits for.
pub(crate) struct Ring {
    fd: OwnedFd,
    submission_tail: NonNull<AtomicU32>,
    submissions: NonNull<Submission>,
    completion_head: NonNull<AtomicU32>,
    completion_tail: NonNull<AtomicU32>,
    completions: NonNull<Completion>,
    completions_mask: u32,
    /// What the pointers lead to, after the descriptor.
    _memory: [Mapping; 2],
    _entries: PhantomData<(Submission, Completion)>,
}

// SAFETY: all methods take it by a mutable reference, and the pointers lead to its own mappings.
unsafe impl Send for Ring {}

fn answer(answer: libc::c_long) -> io::Result<u32> {
    u32::try_from(answer).map_err(|_| io::Error::last_os_error())
}

impl Ring {
    /// A ring that takes [`Operation`]s and nothing else.
    pub(crate) fn open() -> io::Result<Self> {
        let entries = WRITES_MAX as u32;
        let mut parameters = Parameters { flags: SETUP, ..Parameters::default() };
        // SAFETY: the call reads and writes one `struct io_uring_params`.
        let fd = answer(unsafe {
            libc::syscall(libc::SYS_io_uring_setup, entries, &raw mut parameters)
        })?;
        // SAFETY: the call returned a descriptor, which nobody else has.
        let fd = unsafe { OwnedFd::from_raw_fd(fd.cast_signed()) };
        let Parameters { features, submission, completion, .. } = parameters;
        if features & FEAT_SINGLE_MMAP == 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let of_submissions = submission.array as usize + parameters.submission_entries as usize * 4;
        let count = parameters.completion_entries;
        let of_completions = completion.entries as usize + count as usize * size_of::<Completion>();
        let rings = Mapping::new(&fd, of_submissions.max(of_completions), OFF_SQ_RING)?;
        let len = parameters.submission_entries as usize * size_of::<Submission>();
        let submissions = Mapping::new(&fd, len, OFF_SQES)?;
        // Entry by entry, in the order of the submissions.
        let array = rings.at::<u32>(submission.array, parameters.submission_entries)?;
        for n in 0..parameters.submission_entries {
            // SAFETY: `at` has checked that all entries lie within the mapping; the kernel reads them later.
            unsafe { array.add(n as usize).write_volatile(n) };
        }
        if parameters.submission_entries != entries || !count.is_power_of_two() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut ring = Self {
            submission_tail: rings.at(submission.tail, 1)?,
            submissions: submissions.at(0, entries)?,
            completion_head: rings.at(completion.head, 1)?,
            completion_tail: rings.at(completion.tail, 1)?,
            completions: rings.at(completion.entries, count)?,
            completions_mask: count - 1,
            fd,
            _memory: [rings, submissions],
            _entries: PhantomData,
        };
        ring.restrict()?;
        Ok(ring)
    }

    fn restrict(&mut self) -> io::Result<()> {
        let restrictions = OPERATIONS.map(|operation| Restriction {
            opcode: RESTRICTION_SQE_OP,
            operation: operation as u8,
            reserved: 0,
            rest: [0; 3],
        });
        let fd = self.fd.as_raw_fd();
        let (first, count) = (restrictions.as_ptr(), restrictions.len());
        // SAFETY: the call reads so many `struct io_uring_restriction`.
        answer(unsafe {
            libc::syscall(libc::SYS_io_uring_register, fd, REGISTER_RESTRICTIONS, first, count)
        })?;
        let none = ptr::null::<c_void>();
        // SAFETY: the call takes no argument.
        answer(unsafe {
            libc::syscall(libc::SYS_io_uring_register, fd, REGISTER_ENABLE_RINGS, none, 0)
        })?;
        Ok(())
    }

    /// Writes each of these, [`WRITES_MAX`] at most, to the descriptor, in order, and sets the result of each: bytes, or a negative error number. The descriptor
    /// does not block. It returns when all are done with.
    pub(crate) fn write(
        &mut self,
        fd: BorrowedFd<'_>,
        operation: Operation,
        writes: &[&[u8]],
        results: &mut [i32; WRITES_MAX],
    ) {
        results.fill(-libc::EAGAIN);
        let writes = &writes[..writes.len().min(WRITES_MAX)];
        // SAFETY: the pointer leads into the mapping, to a number that the kernel only reads.
        let tail = unsafe { self.submission_tail.as_ref() };
        let first = tail.load(Ordering::Relaxed);
        for (n, bytes) in (0_u32..).zip(writes) {
            let operation_flags = match operation {
                Operation::Write => 0,
                Operation::Send => (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL).cast_unsigned(),
            };
            let submission = Submission {
                opcode: operation as u8,
                flags: 0,
                priority: 0,
                fd: fd.as_raw_fd(),
                offset: 0,
                address: bytes.as_ptr().addr() as u64,
                len: bytes.len() as u32,
                operation_flags,
                user_data: n.into(),
                rest: [0; 3],
            };
            let place = (first.wrapping_add(n) as usize) % WRITES_MAX;
            // SAFETY: there are as many entries, and the kernel has taken all that were there before.
            unsafe { self.submissions.add(place).write_volatile(submission) };
        }
        let (mut waiting, mut running) = (writes.len() as u32, 0);
        tail.store(first.wrapping_add(waiting), Ordering::Release);
        while waiting + running > 0 {
            match self.enter(waiting, waiting + running) {
                // It took none, as if it were short of memory.
                Ok(0) if waiting > 0 => self.withdraw(&mut waiting),
                Ok(taken) => {
                    waiting -= taken.min(waiting);
                    running += taken;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if waiting > 0 => self.withdraw(&mut waiting),
                // The kernel still reads memory that the caller has lent for this call only. Such a call does not fail.
                Err(_) => std::process::abort(),
            }
            running -= self.reap(results).min(running);
        }
    }

    fn enter(&mut self, submit: u32, complete: u32) -> io::Result<u32> {
        let fd = self.fd.as_raw_fd();
        let (set, size) = (ptr::null::<c_void>(), 0_usize);
        let flags = ENTER_GETEVENTS;
        // SAFETY: what the submissions point to is borrowed until `write` returns, which is after the last of them is complete. The
        // kernel only reads it. The call itself takes no memory.
        answer(unsafe {
            libc::syscall(libc::SYS_io_uring_enter, fd, submit, complete, flags, set, size)
        })
    }

    /// Takes back what the kernel has not taken.
    #[cold]
    fn withdraw(&mut self, waiting: &mut u32) {
        // SAFETY: as in `write`.
        let tail = unsafe { self.submission_tail.as_ref() };
        tail.store(tail.load(Ordering::Relaxed).wrapping_sub(*waiting), Ordering::Release);
        *waiting = 0;
    }

    /// Takes the completions that are there. Returns how many.
    fn reap(&mut self, results: &mut [i32; WRITES_MAX]) -> u32 {
        // SAFETY: the pointers lead into the mapping, to numbers that are accessed atomically on both sides.
        let (head, tail) =
            unsafe { (self.completion_head.as_ref(), self.completion_tail.as_ref()) };
        let (first, end) = (head.load(Ordering::Relaxed), tail.load(Ordering::Acquire));
        let count = end.wrapping_sub(first);
        for n in 0..count {
            let place = first.wrapping_add(n) & self.completions_mask;
            // SAFETY: the mask keeps the place within the ring, and the kernel wrote the entry before the tail.
            let completion = unsafe { self.completions.add(place as usize).read_volatile() };
            let number = usize::try_from(completion.user_data).unwrap_or(usize::MAX);
            if let Some(result) = results.get_mut(number) {
                *result = completion.result;
            }
        }
        head.store(end, Ordering::Release);
        count
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    /// None where the kernel, or a filter, has no io_uring.
    fn ring() -> Option<Ring> {
        match Ring::open() {
            Ok(ring) => Some(ring),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn datagrams() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    #[test]
    fn writes_come_in_order_also_beyond_the_end_of_the_ring() {
        let Some(mut ring) = ring() else { return };
        let mut results = [0; WRITES_MAX];
        for operation in OPERATIONS {
            let (to, from) = datagrams();
            for count in [1, 5, 60, 7] {
                let frames: Vec<_> = (0..count).map(|n| vec![n; usize::from(n) + 1]).collect();
                let writes: Vec<_> = frames.iter().map(Vec::as_slice).collect();
                ring.write(to.as_fd(), operation, &writes, &mut results);
                for (frame, result) in frames.iter().zip(&results) {
                    assert_eq!(usize::try_from(*result), Ok(frame.len()));
                    let mut seen = [0; 100];
                    let len = rustix::io::read(&from, &mut seen).unwrap();
                    assert_eq!(&seen[..len], &frame[..]);
                }
            }
        }
    }

    #[test]
    fn each_write_that_fails_has_its_error_and_those_behind_it_are_done() {
        let Some(mut ring) = ring() else { return };
        let counter = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let mut results = [0; WRITES_MAX];
        let (one, short) = (1_u64.to_ne_bytes(), [0; 4]);
        let writes = [&one[..], &short, &one];
        ring.write(counter.as_fd(), Operation::Write, &writes, &mut results);
        assert_eq!(results[..4], [8, -libc::EINVAL, 8, -libc::EAGAIN]);
    }

    #[test]
    fn a_socket_without_room_answers_and_does_not_wait() {
        let Some(mut ring) = ring() else { return };
        let (to, _from) = datagrams();
        let frame = vec![0; 16 << 10];
        let mut results = [0; WRITES_MAX];
        ring.write(to.as_fd(), Operation::Send, &[&frame[..]; WRITES_MAX], &mut results);
        let sent = results.iter().filter(|result| **result == 16 << 10).count();
        assert!((1..WRITES_MAX).contains(&sent), "{results:?}");
        assert!(results[sent..].iter().all(|result| *result == -libc::EAGAIN));
    }

    #[test]
    fn it_takes_no_other_operation() {
        let Some(mut ring) = ring() else { return };
        // SAFETY: as in `write`; IORING_OP_NOP has no memory.
        let tail = unsafe { ring.submission_tail.as_ref() };
        let nop = Submission {
            opcode: 0,
            flags: 0,
            priority: 0,
            fd: -1,
            offset: 0,
            address: 0,
            len: 0,
            operation_flags: 0,
            user_data: 0,
            rest: [0; 3],
        };
        // SAFETY: as in `write`.
        unsafe { ring.submissions.write_volatile(nop) };
        tail.store(1, Ordering::Release);
        let mut results = [0; WRITES_MAX];
        ring.enter(1, 1).unwrap();
        assert_eq!(ring.reap(&mut results), 1);
        assert_eq!(results[0], -libc::EACCES);
    }
}

//! io_uring: several reads or writes by one system call.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use arrayvec::ArrayVec;
use io_uring::register::Restriction;
use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};
use shm::{Iovec, Region};

/// Most writes of one call: the entries of a ring.
pub(crate) const WRITES_MAX: usize = 64;
const ENTRIES: u32 = 64;
/// Most reads of one call.
pub(crate) const READS_MAX: usize = 16;
/// The operations that a ring takes.
const OPERATIONS: [u8; 3] = [opcode::Write::CODE, opcode::Send::CODE, opcode::Readv::CODE];

/// How a frame is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// As `write`.
    Write,
    /// As `send` without waiting.
    Send,
}

/// Where a frame is read to: its start, and the rest of it.
pub(crate) struct Read<'a> {
    pub(crate) head: &'a mut [u8],
    pub(crate) body: (&'a Region, usize, usize),
}

/// Reads or writes that are under way at the same time, which it waits for. None after the kernel took no more.
pub(crate) struct Ring(Option<IoUring>);

impl Ring {
    /// A ring that takes reads and [`Operation`]s and nothing else: whoever took the process over could do nothing else by it, and nothing that the filter of
    /// system calls forbids.
    pub(crate) fn open() -> io::Result<Self> {
        // It takes no operation before its restrictions are set, and goes on behind one that fails.
        let ring = IoUring::builder().setup_r_disabled().setup_submit_all().build(ENTRIES)?;
        let mut operations = OPERATIONS.map(Restriction::sqe_op);
        ring.submitter().register_restrictions(&mut operations)?;
        ring.submitter().register_enable_rings()?;
        Ok(Self(Some(ring)))
    }

    /// Whether it takes writes.
    pub(crate) fn is_usable(&self) -> bool {
        self.0.is_some()
    }

    /// Writes each of these, [`WRITES_MAX`] at most, to the descriptor, in order, and sets the result of each: bytes, or a negative error number. The descriptor
    /// does not block. It returns when all are done. Where the kernel takes no more, for example for want of memory, the rest has `EAGAIN`.
    pub(crate) fn write(
        &mut self,
        fd: BorrowedFd<'_>,
        operation: Operation,
        writes: &[Iovec<'_>],
        results: &mut [i32; WRITES_MAX],
    ) {
        let fd = types::Fd(fd.as_raw_fd());
        let entries = writes.iter().map(|iovec| {
            let (bytes, len) = match *iovec {
                Iovec::Private(bytes) => (bytes.as_ptr(), bytes.len()),
                // What is not there has no bytes.
                Iovec::Shared { region, offset, len } => match region.address(offset, len) {
                    Ok(bytes) => (bytes.cast_const(), len),
                    Err(_) => (std::ptr::null(), 0),
                },
            };
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            match operation {
                Operation::Write => opcode::Write::new(fd, bytes, len).build(),
                Operation::Send => opcode::Send::new(fd, bytes, len)
                    .flags(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
                    .build(),
            }
        });
        // SAFETY: what the entries point to is borrowed by `writes` until this returns.
        unsafe { self.perform(entries, results) }
    }

    /// Reads a frame to each of these, [`READS_MAX`] at most, from the descriptor, in order, as [`write`](Self::write) writes. Those behind the last frame have
    /// `EAGAIN`. The kernel would wait for a frame even on a descriptor that does not block, so each read forbids it (`RWF_NOWAIT`). All
    /// have `EOPNOTSUPP` where the kernel cannot read the device without waiting.
    pub(crate) fn read(
        &mut self,
        fd: BorrowedFd<'_>,
        reads: &mut [Read<'_>],
        results: &mut [i32; READS_MAX],
    ) {
        let fd = types::Fd(fd.as_raw_fd());
        let mut vectors = ArrayVec::<[libc::iovec; 2], READS_MAX>::new();
        for Read { head, body: (region, offset, len) } in reads.iter_mut().take(READS_MAX) {
            let head = libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() };
            let body = match region.address(*offset, *len) {
                Ok(body) => libc::iovec { iov_base: body.cast(), iov_len: *len },
                Err(_) => libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 },
            };
            vectors.push([head, body]);
        }
        let entries = vectors.iter().map(|vectors| {
            opcode::Readv::new(fd, vectors.as_ptr(), 2).rw_flags(libc::RWF_NOWAIT).build()
        });
        // SAFETY: the vectors live until this returns, and so do the heads, which `reads` borrows mutably, and the regions. No reference covers these.
        unsafe { self.perform(entries, results) }
    }

    /// Performs operations that do not wait for anything, [`ENTRIES`] at most, in order.
    ///
    /// # Safety
    /// The kernel may use what the entries point to as they say until this returns.
    unsafe fn perform(&mut self, entries: impl Iterator<Item = Entry>, results: &mut [i32]) {
        results.fill(-libc::EAGAIN);
        let Some(ring) = &mut self.0 else { return };
        let (mut waiting, mut done) = (0, 0);
        let mut submissions = ring.submission();
        for (n, entry) in (0_u64..).zip(entries) {
            // SAFETY: by the time this returns the operation is complete, or the ring has gone with it.
            let pushed = unsafe { submissions.push(&entry.user_data(n)) };
            waiting += usize::from(pushed.is_ok());
        }
        drop(submissions);
        let all = waiting;
        while done < all {
            match ring.submitter().submit_and_wait(all - done) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(taken) if taken > 0 || waiting == 0 => waiting -= taken.min(waiting),
                // An operation that does not wait is complete when it is taken. Otherwise the kernel would still use memory that was lent for this call only.
                Ok(_) | Err(_) if done + waiting < all => std::process::abort(),
                Ok(_) | Err(_) => {
                    self.0 = None;
                    return;
                }
            }
            for completion in ring.completion() {
                done += 1;
                let number = usize::try_from(completion.user_data()).unwrap_or(usize::MAX);
                if let Some(result) = results.get_mut(number) {
                    *result = completion.result();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

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
        for operation in [Operation::Write, Operation::Send] {
            let (to, from) = datagrams();
            for count in [1, 5, 60, 7] {
                let frames: Vec<_> = (0..count).map(|n| vec![n; usize::from(n) + 1]).collect();
                let writes: Vec<_> = frames.iter().map(|frame| Iovec::Private(frame)).collect();
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
        let writes = [&one[..], &short, &one].map(Iovec::Private);
        ring.write(counter.as_fd(), Operation::Write, &writes, &mut results);
        assert_eq!(results[..4], [8, -libc::EINVAL, 8, -libc::EAGAIN]);
    }

    #[test]
    fn a_socket_without_room_answers_and_does_not_wait() {
        let Some(mut ring) = ring() else { return };
        let (to, _from) = datagrams();
        let frame = vec![0; 16 << 10];
        let mut results = [0; WRITES_MAX];
        ring.write(
            to.as_fd(),
            Operation::Send,
            &[Iovec::Private(&frame); WRITES_MAX],
            &mut results,
        );
        let sent = results.iter().filter(|result| **result == 16 << 10).count();
        assert!((1..WRITES_MAX).contains(&sent), "{results:?}");
        assert!(results[sent..].iter().all(|result| *result == -libc::EAGAIN));
    }

    #[test]
    fn frames_are_read_in_order_until_there_are_no_more() {
        let Some(mut ring) = ring() else { return };
        let (to, from) = datagrams();
        let region = Region::anonymous(READS_MAX * 4096).unwrap();
        let mut results = [0; READS_MAX];
        for count in [3, 1, 0, 9] {
            for n in 0..count {
                rustix::io::write(&to, &vec![n; usize::from(n) + 1]).unwrap();
            }
            let mut heads = [[0; 2]; READS_MAX];
            let mut reads = Vec::new();
            for (n, head) in heads.iter_mut().enumerate() {
                reads.push(Read { head, body: (&region, n * 4096, 4096) });
            }
            ring.read(from.as_fd(), &mut reads, &mut results);
            for (n, result) in (0..count).zip(&results) {
                assert_eq!(*result, i32::from(n) + 1);
                let last = usize::from(n)
                    .checked_sub(2)
                    .map(|at| region.read::<u8>(usize::from(n) * 4096 + at).unwrap());
                assert_eq!(last.unwrap_or(heads[usize::from(n)][usize::from(n).min(1)]), n);
            }
            assert!(results[count.into()..].iter().all(|result| *result == -libc::EAGAIN));
        }
    }

    #[test]
    fn it_takes_no_other_operation() {
        let Some(mut ring) = ring() else { return };
        let ring = ring.0.as_mut().unwrap();
        // SAFETY: this operation has no memory.
        unsafe { ring.submission().push(&opcode::Nop::new().build()) }.unwrap();
        ring.submit_and_wait(1).unwrap();
        assert_eq!(ring.completion().next().unwrap().result(), -libc::EACCES);
    }
}

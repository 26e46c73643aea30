//! Bytes of a socket with the descriptors that come with them, and with who sent them.
//!
//! rustix cannot say that the sender's process is in another namespace: the kernel then gives the number 0, which its type for processes excludes.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{AtFlags, FileType, StatxFlags};
use rustix::net::{AddressFamily, sockopt};

/// The process that sent bytes, as the kernel says. Privileges over its own namespace let it name another process of that namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// The number of the process; 0 or less for one that this process's namespace does not show.
    pub process: i32,
    /// The number of its user.
    pub user: u32,
}

/// What came at once.
#[derive(Debug, Default)]
pub struct Received {
    /// How many bytes; 0 at the end of the connection.
    pub bytes: usize,
    /// Descriptors that came with them.
    pub descriptors: Vec<OwnedFd>,
    /// Who sent them, if the socket asks for it (`SO_PASSCRED`).
    pub sender: Option<Sender>,
}

/// The most descriptors that come at once. A kernel that has more closes those.
pub const DESCRIPTORS_MAX: usize = 33;

/// Room for the headers, the descriptors and the sender, each aligned as the kernel aligns them.
const CONTROL: usize = {
    let descriptors = (DESCRIPTORS_MAX * size_of::<RawFd>()).next_multiple_of(16);
    let header = size_of::<libc::cmsghdr>();
    2 * header + descriptors + size_of::<libc::ucred>().next_multiple_of(16)
};

#[repr(C, align(16))]
struct Control([u8; CONTROL]);

/// Receives what is there, without waiting. The kernel puts bytes of one sender into it.
///
/// # Errors
/// The system's: [`WouldBlock`](io::ErrorKind::WouldBlock) if nothing is there.
pub fn receive(socket: impl AsFd, into: &mut [u8]) -> io::Result<Received> {
    let mut control = Control([0; CONTROL]);
    let mut part = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: all members are numbers or pointers, which may be 0; some libraries have members that only pad.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = CONTROL as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header names the bytes of `into` and of `control`, which outlive the call, with their lengths.
    let bytes = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut header, flags) };
    let bytes = usize::try_from(bytes).map_err(|_| io::Error::last_os_error())?;
    let mut received = Received { bytes, ..Received::default() };
    // SAFETY: the kernel has filled in the header, whose buffer is alive.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    while !next.is_null() {
        // SAFETY: it points to a header within `control`, which is aligned for it.
        let libc::cmsghdr { cmsg_len, cmsg_level, cmsg_type, .. } = unsafe { *next };
        // SAFETY: the same; the data follow it.
        let data = unsafe { libc::CMSG_DATA(next) };
        #[allow(clippy::unnecessary_cast, reason = "musl's length is a u32")]
        let len = (cmsg_len as usize).saturating_sub(data as usize - next as usize);
        match (cmsg_level, cmsg_type) {
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                for n in 0..len / size_of::<RawFd>() {
                    // SAFETY: the kernel has written as many descriptors here as the length says, which this process has got and
                    // nobody else knows.
                    let fd = unsafe {
                        OwnedFd::from_raw_fd(data.cast::<RawFd>().add(n).read_unaligned())
                    };
                    received.descriptors.push(fd);
                }
            }
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if len >= size_of::<libc::ucred>() => {
                // SAFETY: the kernel has written them here, as the length says.
                let libc::ucred { pid, uid, .. } =
                    unsafe { data.cast::<libc::ucred>().read_unaligned() };
                received.sender = Some(Sender { process: pid, user: uid });
            }
            _ => {}
        }
        // SAFETY: both belong to each other, and `control` is alive.
        next = unsafe { libc::CMSG_NXTHDR(&raw const header, next) };
    }
    Ok(received)
}

/// The major number of `/dev/null`, `/dev/zero` and their like.
const MEMORY_DEVICES: u32 = 1;

/// Whether a descriptor that somebody else has sent can be closed, and asked about, without waiting for a server of FUSE or of a network file system.
/// The kernel flushes such a file whenever a descriptor of it is closed, and nothing ends that wait but the server, which may be whoever sent the
/// descriptor. The sender needs no permission for the file, and the thread that waits cannot be killed.
///
/// This asks the kernel only. It knows memory, eventfds, epoll, sockets of this machine (those of a network may linger), `/dev/null` and its
/// like, and files on block devices. Anything else counts as slow: a pipe too, whose other end may be in the middle of a write out of memory that
/// does not come.
pub fn closes_at_once(fd: impl AsFd) -> bool {
    let fd = fd.as_fd();
    if rustix::fs::fcntl_get_seals(fd).is_ok() {
        return true;
    }
    let link = rustix::fs::readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new());
    let Ok(link) = link else { return false };
    match link.as_bytes() {
        b"anon_inode:[eventfd]" | b"anon_inode:[eventpoll]" => return true,
        link if link.starts_with(b"socket:") => {
            return sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX);
        }
        link if !link.starts_with(b"/") => return false,
        _ => {}
    }
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(fd, "", flags, StatxFlags::TYPE).is_ok_and(|stat| {
        match FileType::from_raw_mode(stat.stx_mode.into()) {
            // Not any: the driver of one may be a program (CUSE), or wait until a line has sent all.
            FileType::CharacterDevice => stat.stx_rdev_major == MEMORY_DEVICES,
            FileType::Fifo => false,
            _ => stat.stx_dev_major != 0,
        }
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    #[test]
    fn bytes_come_with_their_descriptors_and_their_sender() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        rustix::net::sockopt::set_socket_passcred(&ours, true).unwrap();
        let (file, another) =
            (std::fs::File::open("/dev/null").unwrap(), UnixStream::pair().unwrap());
        let mut space =
            [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let mut fds = vec![file.as_fd(); DESCRIPTORS_MAX - 1];
        fds.push(another.0.as_fd());
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        let parts = [io::IoSlice::new(b"ten bytes.")];
        sendmsg(&theirs, &parts, &mut ancillary, SendFlags::empty()).unwrap();
        let mut bytes = [0; 10];
        let received = receive(&ours, &mut bytes).unwrap();
        assert_eq!((received.bytes, &bytes), (10, b"ten bytes."));
        assert_eq!(received.descriptors.len(), DESCRIPTORS_MAX);
        let process = i32::try_from(std::process::id()).unwrap();
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(received.sender, Some(Sender { process, user }));
        // The last one is the socket that was sent.
        let last = received.descriptors.last().unwrap();
        rustix::io::write(last, b"x").unwrap();
        assert_eq!(receive(&another.1, &mut bytes).unwrap().bytes, 1);
        let none = receive(&ours, &mut bytes).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
        drop(theirs);
        assert_eq!(receive(&ours, &mut bytes).unwrap().bytes, 0);
    }

    #[test]
    fn only_what_is_known_to_close_at_once_does() {
        use rustix::event::{EventfdFlags, epoll, eventfd};
        let file = |path| OwnedFd::from(std::fs::File::open(path).unwrap());
        let known: [OwnedFd; 5] = [
            crate::create_memfd("test", 1, crate::PageSize::Small).unwrap(),
            UnixStream::pair().unwrap().0.into(),
            file("/dev/null"),
            epoll::create(epoll::CreateFlags::CLOEXEC).unwrap(),
            eventfd(0, EventfdFlags::CLOEXEC).unwrap(),
        ];
        let others: [OwnedFd; 4] = [
            rustix::pipe::pipe().unwrap().0,
            // It may linger.
            std::net::TcpListener::bind("127.0.0.1:0").unwrap().into(),
            // A driver's.
            file("/dev/ptmx"),
            // On a file system without a device, as those of servers are.
            file("/proc/self/maps"),
        ];
        assert_eq!(known.each_ref().map(closes_at_once), [true; 5]);
        assert_eq!(others.each_ref().map(closes_at_once), [false; 4]);
    }

    #[test]
    fn a_socket_that_does_not_ask_hears_of_no_sender() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        rustix::io::write(&theirs, b"x").unwrap();
        let received = receive(&ours, &mut [0; 4]).unwrap();
        assert_eq!((received.bytes, received.sender), (1, None));
    }
}

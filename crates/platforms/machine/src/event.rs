//! Event channels between the driver domain and a guest process.
//!
//! From guest to driver domain a channel is an eventfd. The driver domain only ever polls it,
//! edge-triggered: every write is an edge, and nothing has to be read. From driver domain to guest
//! it is a socket pair. An eventfd would share one open file between both processes, and with it
//! the `O_NONBLOCK` flag: a guest that clears the flag and fills the counter would block the worker
//! in its notification, and with it all traffic. A pipe has two open files but one lock, which a
//! guest can hold for any time by reading into memory whose page fault it serves itself. A socket's
//! sender takes no lock that its reader holds while it sleeps. See docs/decisions/0003-events.md.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use hypervisor::{Error, EventChannel};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, send, shutdown, socketpair,
};

/// The driver domain's end. While there is one, the channel is bound.
#[derive(Debug)]
pub struct HostEvent(Arc<HostEnd>);

/// The part of a channel that the machine keeps, so that the driver domain can bind it again.
#[derive(Debug)]
pub(crate) struct HostEnd {
    incoming: OwnedFd,
    outgoing: OwnedFd,
}

impl HostEnd {
    /// Binds the channel; fails if it is bound.
    pub(crate) fn bind(self: &mut Arc<Self>) -> Option<HostEvent> {
        Arc::get_mut(self).is_some().then(|| HostEvent(self.clone()))
    }

    /// Whether the guest has closed its end.
    pub(crate) fn is_abandoned(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.outgoing, PollFlags::empty())];
        let polled = poll(&mut fds, Some(&now));
        polled.is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }
}

/// The guest's end.
#[derive(Debug)]
pub struct GuestEvent {
    incoming: OwnedFd,
    outgoing: OwnedFd,
}

/// A new channel.
pub(crate) fn pair() -> io::Result<(Arc<HostEnd>, GuestEvent)> {
    let to_host = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (guest_incoming, host_outgoing) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    // One way only: nobody reads here, so nothing may pile up.
    shutdown(&host_outgoing, Shutdown::Read)?;
    let guest_outgoing = to_host.try_clone()?;
    Ok((
        Arc::new(HostEnd { incoming: to_host, outgoing: host_outgoing }),
        GuestEvent { incoming: guest_incoming, outgoing: guest_outgoing },
    ))
}

/// A new channel with both its ends: for a guest that gets its end in another way than by an offer.
///
/// # Errors
/// The system's.
pub fn channel() -> io::Result<(HostEvent, GuestEvent)> {
    let (host, guest) = pair()?;
    Ok((HostEvent(host), guest))
}

impl GuestEvent {
    /// The guest's end of a channel, whose [`fds`](Self::fds) came over a socket.
    #[must_use]
    pub fn from_fds(incoming: OwnedFd, outgoing: OwnedFd) -> Self {
        Self { incoming, outgoing }
    }

    /// The descriptors (incoming events, outgoing events) for the guest's process, which may misuse
    /// them.
    #[must_use]
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.incoming.as_fd(), self.outgoing.as_fd()]
    }
}

/// The result of a notification. A full channel has an event pending, which is enough.
fn sent(result: rustix::io::Result<usize>) -> Result<(), Error> {
    match result {
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(error) => Err(Error::os("event channel")(error)),
    }
}

impl AsFd for HostEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.incoming.as_fd()
    }
}

impl EventChannel for HostEvent {
    fn notify(&self) -> Result<(), Error> {
        sent(send(&self.0.outgoing, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL))
    }

    /// Nothing to clear: every write to an eventfd is an edge.
    fn take(&self) -> Result<(), Error> {
        Ok(())
    }
}

impl AsFd for GuestEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.incoming.as_fd()
    }
}

impl EventChannel for GuestEvent {
    fn notify(&self) -> Result<(), Error> {
        sent(rustix::io::write(&self.outgoing, &1u64.to_ne_bytes()))
    }

    fn take(&self) -> Result<(), Error> {
        // Every notification is a message; a full socket bounds how many there are.
        loop {
            match rustix::io::read(&self.incoming, &mut [0u8; 1]) {
                Ok(0) => return Err(Error::Gone),
                Ok(_) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(Error::os("event channel")(error)),
            }
        }
    }
}

//! Event channels: one descriptor of `/dev/xen/evtchn` for each.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hypervisor::{DomId, Error, EventChannel, EvtchnPort};
use rustix::io::Errno;

use crate::device::{Device, open};
use crate::sys::evtchn;

/// One end of an event channel.
///
/// Each channel has its own descriptor, so a waiting thread sees from the descriptor which channel
/// has an event, and channels do not delay each other. Closing the descriptor closes the channel.
#[derive(Debug)]
pub struct XenEvent {
    fd: OwnedFd,
    port: u32,
}

impl XenEvent {
    /// Binds to a port that `domain` offered.
    pub(crate) fn bind_interdomain(domain: DomId, port: EvtchnPort) -> Result<Self, Error> {
        Self::bind(domain, |fd| {
            evtchn::bind_interdomain(fd, domain.0, port.0).map_err(|error| match error {
                Errno::SRCH => Error::NoDomain(domain),
                Errno::INVAL | Errno::PERM => Error::BadPort { dom: domain, port },
                error => failure(error),
            })
        })
    }

    /// Offers a new port to `domain`.
    pub(crate) fn alloc_unbound(domain: DomId) -> Result<Self, Error> {
        Self::bind(domain, |fd| {
            evtchn::bind_unbound_port(fd, domain.0).map_err(|error| match error {
                Errno::SRCH => Error::NoDomain(domain),
                error => failure(error),
            })
        })
    }

    fn bind(
        domain: DomId,
        bind: impl FnOnce(BorrowedFd<'_>) -> Result<u32, Error>,
    ) -> Result<Self, Error> {
        let fd = open(Device::Evtchn)
            .map_err(|error| Error::os("event channel")(std::io::Error::other(error)))?;
        let port = bind(fd.as_fd())?;
        // The descriptor needs no other domain from here on. Old kernels cannot restrict it, and no
        // kernel can restrict it to domain 0.
        let _ = evtchn::restrict_domid(fd.as_fd(), domain.0);
        Ok(Self { fd, port })
    }

    /// The port at this end.
    pub(crate) fn port(&self) -> EvtchnPort {
        EvtchnPort(self.port)
    }
}

fn failure(error: Errno) -> Error {
    match error {
        Errno::NOSPC | Errno::NOMEM => Error::Exhausted("event channels"),
        error => Error::os("event channel")(error),
    }
}

impl AsFd for XenEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl EventChannel for XenEvent {
    fn notify(&self) -> Result<(), Error> {
        evtchn::notify(self.fd.as_fd(), self.port).map_err(Error::os("event channel"))
    }

    /// The kernel masks a port when its event comes, and queues the port for this descriptor. The
    /// port is read first and written back (unmasked) second: Xen keeps an event that comes between
    /// the two until the port is unmasked, and then queues it, which is a new edge. A port that is
    /// not written back gets no more events.
    fn take(&self) -> Result<(), Error> {
        let mut port = [0; size_of::<u32>()];
        let unmask = |port: [u8; 4]| rustix::io::write(&self.fd, &port).map(drop);
        match rustix::io::read(&self.fd, &mut port) {
            Ok(_) => unmask(port),
            Err(Errno::AGAIN) => Ok(()),
            // The queue has an entry per port, so one port cannot overflow it. But after an
            // overflow the queue is useless until it is reset.
            Err(Errno::FBIG) => {
                evtchn::reset(self.fd.as_fd()).and_then(|()| unmask(self.port.to_ne_bytes()))
            }
            Err(error) => Err(error),
        }
        .map_err(Error::os("event channel"))
    }
}

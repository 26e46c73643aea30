//! The events of one thread's connections.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Bytes to read.
    Read,
    /// Room to write.
    Write,
    /// Only the connection's end.
    Nothing,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        match self {
            Self::Read => epoll::EventFlags::IN,
            Self::Write => epoll::EventFlags::OUT,
            Self::Nothing => epoll::EventFlags::empty(),
        }
    }
}

/// Sockets that are waited for, each with a number.
#[derive(Debug)]
pub struct Events {
    epoll: OwnedFd,
}

impl Events {
    /// None yet.
    pub fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Waits for a socket too.
    pub fn add(&self, socket: impl AsFd, number: u64, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number);
        Ok(epoll::add(&self.epoll, socket, data, interest.flags())?)
    }

    /// Waits for something else of a socket.
    pub fn change(&self, socket: impl AsFd, number: u64, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number);
        Ok(epoll::modify(&self.epoll, socket, data, interest.flags())?)
    }

    /// The numbers of ready sockets, after `limit` at most.
    pub fn wait(&self, limit: Duration, ready: &mut Vec<u64>) -> io::Result<()> {
        let timeout = Timespec::try_from(limit).map_err(io::Error::other)?;
        let mut space = [MaybeUninit::uninit(); 64];
        ready.clear();
        match epoll::wait(&self.epoll, &mut space, Some(&timeout)) {
            Ok((events, _)) => ready.extend(events.iter().map(|event| { event.data }.u64())),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

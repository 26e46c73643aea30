//! Events that are readable descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use port::Event;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::retry_on_intr;

use crate::call_page::CallError;
use crate::call_page::CallEvents;

/// An event whose every notification can be read: from an eventfd, or as a message of a socket. The descriptor does
/// not block.
#[derive(Debug)]
pub struct FdEvent(pub OwnedFd);

impl AsFd for FdEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Event for FdEvent {
    fn take(&self) {
        // One read of 8 bytes clears an eventfd. Messages are shorter, and there may be several.
        while rustix::io::read(&self.0, &mut [0; 8]).is_ok_and(|len| (1..8).contains(&len)) {}
    }
}

/// The notifications of a call page: a call takes two system calls of its guest.
#[derive(Debug)]
pub struct CallChannel {
    /// An eventfd, which the hypervisor polls.
    doorbell: OwnedFd,
    /// A socket with a message for each answer.
    answers: OwnedFd,
}

impl CallChannel {
    /// The guest's end. `answers` blocks from now on.
    ///
    /// # Errors
    /// The system's.
    pub fn new(answers: OwnedFd, doorbell: OwnedFd) -> io::Result<Self> {
        fcntl_setfl(&answers, fcntl_getfl(&answers)? - OFlags::NONBLOCK)?;
        Ok(Self { doorbell, answers })
    }
}

impl CallEvents for CallChannel {
    fn notify(&mut self) -> Result<(), CallError> {
        let written = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
        written.map(drop).map_err(|_| CallError::Gone)
    }

    /// Takes one message. It may be an earlier call's, whose answer was seen before its message.
    fn wait(&mut self) -> Result<(), CallError> {
        match retry_on_intr(|| rustix::io::read(&self.answers, &mut [0; 1])) {
            Ok(1..) => Ok(()),
            Ok(0) | Err(_) => Err(CallError::Gone),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn a_call_waits_for_a_message_and_not_for_a_hypervisor_that_has_gone() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let doorbell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let mut channel = CallChannel::new(ours, doorbell.try_clone().unwrap()).unwrap();
        channel.notify().unwrap();
        assert_eq!(rustix::io::read(&doorbell, &mut [0; 8]), Ok(8));
        // Two messages: the first one is of an earlier call.
        for _ in 0..2 {
            rustix::io::write(&theirs, &[1]).unwrap();
        }
        channel.wait().unwrap();
        channel.wait().unwrap();
        let later = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            rustix::io::write(&theirs, &[1]).unwrap();
        });
        channel.wait().unwrap();
        later.join().unwrap();
        assert_eq!(channel.wait(), Err(CallError::Gone));
    }
}

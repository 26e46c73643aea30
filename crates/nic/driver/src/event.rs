//! Events that are readable descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hypervisor::EventChannel;
use port::Event;
use rustix::event::{PollFd, PollFlags, poll};

use crate::call::CallError;
use crate::call_page::CallEvents;

/// An event of which every notification can be read: from an eventfd, or as a message of a socket. The descriptor does
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

impl<E: EventChannel> CallEvents for E {
    fn notify(&mut self) -> Result<(), CallError> {
        EventChannel::notify(self).map_err(|_| CallError::Gone)
    }

    fn wait(&mut self) -> Result<(), CallError> {
        let mut fds = [PollFd::new(&*self, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut fds, None)).map_err(|_| CallError::Gone)?;
        EventChannel::take(self).map_err(|_| CallError::Gone)
    }
}

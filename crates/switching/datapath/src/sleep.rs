//! How a worker sleeps.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// From here on a timeout may be rounded up to whole milliseconds.
const COARSE: Duration = Duration::from_millis(20);

/// Waits for events, for `timeout` at most. `epoll_wait(2)` rounds up to milliseconds, which would make each coalesced wake-up
/// late, and `epoll_pwait2(2)` needs Linux 5.11; `ppoll(2)` counts in nanoseconds.
pub(crate) fn wait_for_events(
    epoll: &OwnedFd,
    timeout: Option<Duration>,
    events: &mut Vec<epoll::Event>,
) -> Result<(), Errno> {
    let is_fine = timeout.is_some_and(|timeout| !timeout.is_zero() && timeout < COARSE);
    let mut timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    if is_fine {
        poll(&mut [PollFd::new(epoll, PollFlags::IN)], timeout.as_ref())?;
        timeout = Some(Timespec::default());
    }
    epoll::wait(epoll, spare_capacity(events), timeout.as_ref()).map(drop)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rustix::event::epoll::{CreateFlags, EventData, EventFlags};
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn a_wait_of_less_than_a_millisecond_is_not_rounded_up() {
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let mut events = Vec::with_capacity(1);
        let wait = Duration::from_micros(100);
        let mut took = || {
            let start = Instant::now();
            wait_for_events(&epoll, Some(wait), &mut events).unwrap();
            start.elapsed()
        };
        // A busy machine may be late, but hardly each time.
        let least = (0..200).map(|_| took()).min().unwrap();
        assert!(least >= wait && least < Duration::from_micros(900), "{least:?}");
    }

    #[test]
    fn a_fine_wait_returns_the_events() {
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let event = eventfd(1, EventfdFlags::empty()).unwrap();
        epoll::add(&epoll, &event, EventData::new_u64(7), EventFlags::IN).unwrap();
        let mut events = Vec::with_capacity(1);
        wait_for_events(&epoll, Some(Duration::from_micros(100)), &mut events).unwrap();
        assert_eq!({ events[0].data }.u64(), 7);
    }
}

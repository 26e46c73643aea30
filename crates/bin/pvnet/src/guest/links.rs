//! All interfaces of a process, from when they are up until they are closed.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use tracing::warn;

use super::link::Link;
use crate::error::text;

/// Waits until there is a signal or no interface is left, and closes what is open then. An interface
/// that ends earlier is closed, and the others go on. `follow` is called once, and again after each
/// change. The error is why an interface ended early.
pub(super) fn run(
    mut links: Vec<Link>,
    signals: impl AsFd,
    mut follow: impl FnMut(),
) -> Result<(), String> {
    let mut result = Ok(());
    while !links.is_empty() {
        follow();
        let closing: Vec<_> = if wait(&links, &signals)? {
            std::mem::take(&mut links)
        } else {
            links.extract_if(.., |link| !link.is_open()).collect()
        };
        for link in closing {
            let name = link.name().to_owned();
            let closed = link.close();
            if !links.is_empty() {
                let reason = closed.as_ref().err().map_or("the other end has closed it", |s| s);
                warn!(interface = name, reason, "closed; the others stay up");
            }
            result = result.and(closed);
        }
    }
    result
}

/// Waits for a signal or a change. Returns whether it is a signal.
fn wait(links: &[Link], signals: &impl AsFd) -> Result<bool, String> {
    let changes = links.iter().flat_map(Link::changes);
    let fds = std::iter::once(signals.as_fd()).chain(changes);
    let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    rustix::io::retry_on_intr(|| poll(&mut fds, None)).map_err(text)?;
    Ok(!fds[0].revents().is_empty())
}

//! The daemon's threads other than its workers.

use crate::daemon::error::Error;

/// Starts a thread.
pub(super) fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> Result<std::thread::JoinHandle<()>, Error> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    builder.spawn(work).map_err(Error::system("start a thread"))
}

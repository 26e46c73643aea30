//! The cost of a transfer.

use accounting::Measured;
use lab::{Children, CpuMeter};

use super::subject::Subject;
use crate::error::Result;

/// Runs `work` and measures what it costs on the whole machine.
pub fn measure<T>(
    subject: &dyn Subject,
    work: impl FnOnce() -> lab::Result<T>,
) -> Result<Measured<T>> {
    let daemon: Vec<u32> = subject.daemon().into_iter().collect();
    let before = subject.carried()?;
    let meter = CpuMeter::start(&daemon, Children::Ignored)?;
    let result = match work() {
        // If the subject has failed, its own error says more.
        Err(error) if !matches!(error, lab::Error::Interrupted) => {
            subject.carried()?;
            return Err(error.into());
        }
        result => result?,
    };
    let usage = meter.read()?;
    let carried = subject.carried()? - before;
    Ok(Measured::new(result, carried, &usage))
}

//! A CPU for the daemon, and one for the generator.

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use crate::error::{Error, Result};

/// Two of the CPUs that this thread may use, and all of them to restore.
pub struct Cpus {
    two: [usize; 2],
    all: CpuSet,
}

impl Cpus {
    /// Finds them.
    pub fn take_two() -> Result<Self> {
        let all = sched_getaffinity(None::<Pid>).map_err(affinity)?;
        let mut allowed = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu));
        match (allowed.next(), allowed.next()) {
            (Some(one), Some(two)) => Ok(Self { two: [one, two], all }),
            _ => {
                Err(Error::Failed("two CPUs are needed: one for pvnet, one for the guests".into()))
            }
        }
    }

    /// The number of one of them.
    pub fn number(&self, n: usize) -> usize {
        self.two[n]
    }

    /// Binds the calling thread and the processes that it starts.
    pub fn enter(&self, n: usize) -> Result<()> {
        let mut one = CpuSet::new();
        one.set(self.two[n]);
        sched_setaffinity(None::<Pid>, &one).map_err(affinity)
    }

    /// Lets the calling thread use all CPUs again.
    pub fn leave(&self) -> Result<()> {
        sched_setaffinity(None::<Pid>, &self.all).map_err(affinity)
    }
}

fn affinity(errno: rustix::io::Errno) -> Error {
    Error::Failed(format!("binding to a CPU: {errno}"))
}

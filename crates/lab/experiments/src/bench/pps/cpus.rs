//! A CPU for the daemon, and one for the generator.

use cpus::{CpuList, bind, bound};

use crate::error::{Error, Result};

/// Two of the CPUs that this thread may use, and all of them to restore.
pub struct Cpus {
    two: [usize; 2],
    all: CpuList,
}

impl Cpus {
    /// Finds them.
    pub fn take_two() -> Result<Self> {
        let all = bound().map_err(|error| affinity(&error))?;
        let allowed: Vec<_> = all.iter().take(2).collect();
        match allowed[..] {
            [one, two] => Ok(Self { two: [one, two], all }),
            _ => {
                Err(Error::Failed("two CPUs are needed: one for pvnet, one for the guests".into()))
            }
        }
    }

    /// The number of one of them.
    pub fn number(&self, n: usize) -> usize {
        self.two[n]
    }

    /// Nanoseconds that a cache line takes from one to the other.
    pub fn distance(&self) -> Result<f64> {
        let [one, two] = self.two;
        let distance = cpus::distance(one, two).map_err(|error| affinity(&error))?;
        distance.ok_or_else(|| {
            Error::Failed(format!("CPUs {one} and {two} are too busy for a measurement"))
        })
    }

    /// Binds the calling thread and the processes that it starts.
    pub fn enter(&self, n: usize) -> Result<()> {
        bind(&CpuList::from_iter([self.two[n]])).map_err(|error| affinity(&error))
    }

    /// Lets the calling thread use all CPUs again.
    pub fn leave(&self) -> Result<()> {
        bind(&self.all).map_err(|error| affinity(&error))
    }
}

fn affinity(error: &std::io::Error) -> Error {
    Error::Failed(format!("binding to a CPU: {error}"))
}

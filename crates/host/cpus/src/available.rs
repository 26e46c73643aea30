//! Which CPUs a process may use, and which it should leave alone.

use std::fs;
use std::io;

use crate::{CpuList, bind, bound};

/// The CPUs of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Available {
    /// Those that it may be bound to.
    allowed: CpuList,
    /// Those of them that the kernel's command line keeps for programs which name them (`isolcpus`, `nohz_full`).
    isolated: CpuList,
    /// Where it runs unless it binds itself.
    usual: CpuList,
}

/// A process was told to use CPUs that it may not use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("CPU {missing} {is} not there or not allowed: this process may use {allowed} (cpuset of its cgroup, CPUAffinity of its unit, taskset)",
    is = if missing.len() == 1 { "is" } else { "are" })]
pub struct NotAvailable {
    /// The CPUs.
    pub missing: CpuList,
    /// Those that it may use.
    pub allowed: CpuList,
}

impl Available {
    /// Asks the kernel.
    ///
    /// # Errors
    /// It does not say.
    pub fn read() -> io::Result<Self> {
        // The kernel binds a thread to those CPUs of a set that its cpuset has. The thread ends at once.
        let of_cpuset = || {
            bind(&(0..rustix::thread::CpuSet::MAX_CPU).collect())?;
            bound()
        };
        let cpuset = std::thread::scope(|scope| scope.spawn(of_cpuset).join());
        let cpuset = cpuset.unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))?;
        let of_kernel = |name: &str| {
            let file = format!("/sys/devices/system/cpu/{name}");
            CpuList::of_kernel(&fs::read_to_string(file).unwrap_or_default())
        };
        Ok(Self::of(bound()?, &cpuset, &of_kernel("isolated"), &of_kernel("nohz_full")))
    }

    /// Of a process that was started with this affinity, in this cpuset.
    fn of(affinity: CpuList, cpuset: &CpuList, isolated: &CpuList, nohz_full: &CpuList) -> Self {
        // The first process has all CPUs but the isolated ones, and others inherit that. Whoever was given another affinity keeps to it.
        let is_inherited = affinity == cpuset.without(isolated);
        let allowed = if is_inherited { cpuset.clone() } else { affinity.clone() };
        let kept = |cpu: &usize| isolated.contains(*cpu) || nohz_full.contains(*cpu);
        let isolated: CpuList = allowed.iter().filter(kept).collect();
        let usual = affinity.without(&isolated);
        let usual = if usual.is_empty() { affinity } else { usual };
        Self { allowed, isolated, usual }
    }

    /// Those that it may be bound to, isolated ones too.
    #[must_use]
    pub fn allowed(&self) -> &CpuList {
        &self.allowed
    }

    /// Where threads run that were not given a CPU: not on isolated ones, unless the process has no others.
    #[must_use]
    pub fn usual(&self) -> &CpuList {
        &self.usual
    }

    /// Whether a CPU is isolated.
    #[must_use]
    pub fn is_isolated(&self, cpu: usize) -> bool {
        self.isolated.contains(cpu)
    }

    /// Where threads run while `named` CPUs are kept for others: beside them, if there is room.
    ///
    /// # Errors
    /// The process may not use some of the named ones.
    pub fn beside(&self, named: &CpuList) -> Result<CpuList, NotAvailable> {
        let missing = named.without(&self.allowed);
        if !missing.is_empty() {
            return Err(NotAvailable { missing, allowed: self.allowed.clone() });
        }
        let rest = self.usual.without(named);
        Ok(if rest.is_empty() { self.usual.clone() } else { rest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> CpuList {
        CpuList::of_kernel(text)
    }

    fn available(affinity: &str, cpuset: &str, isolated: &str, nohz_full: &str) -> Available {
        Available::of(list(affinity), &list(cpuset), &list(isolated), &list(nohz_full))
    }

    #[test]
    fn isolated_cpus_are_used_only_if_they_are_named() {
        let isolated = available("0-1", "0-5", "2-5", "");
        assert_eq!((isolated.allowed(), isolated.usual()), (&list("0-5"), &list("0-1")));
        assert_eq!(isolated.beside(&list("2-3")), Ok(list("0-1")));
        assert!(isolated.is_isolated(2) && !isolated.is_isolated(1));
        // `nohz_full` alone leaves them in the first process's affinity.
        let full = available("0-5", "0-5", "", "4-5");
        assert_eq!((full.allowed(), full.usual()), (&list("0-5"), &list("0-3")));
        assert_eq!(full.beside(&list("4")), Ok(list("0-3")));
    }

    #[test]
    fn an_affinity_that_somebody_has_set_is_the_limit() {
        let bound = available("0-1", "0-7", "6-7", "");
        let error = bound.beside(&list("1,6")).unwrap_err();
        assert_eq!(error, NotAvailable { missing: list("6"), allowed: list("0-1") });
        // CPUAffinity names isolated ones.
        let named = available("6-7", "0-7", "6-7", "");
        assert_eq!((named.allowed(), named.usual()), (&list("6-7"), &list("6-7")));
    }

    #[test]
    fn the_error_names_what_is_allowed() {
        let error = available("0-1", "0-1", "", "").beside(&list("1-3")).unwrap_err().to_string();
        assert!(error.starts_with("CPU 2-3 are not there or not allowed"), "{error}");
        assert!(error.contains("may use 0-1 "), "{error}");
    }

    #[test]
    fn others_run_beside_what_is_named_if_there_is_room() {
        let all = available("0-3", "0-3", "", "");
        assert_eq!(all.beside(&list("2-3")), Ok(list("0-1")));
        assert_eq!(all.beside(&list("0-3")), Ok(list("0-3")));
    }

    #[test]
    fn this_process_may_use_what_it_is_bound_to() {
        let available = Available::read().unwrap();
        let bound = bound().unwrap();
        assert!(bound.without(available.allowed()).is_empty(), "{available:?}");
        assert!(!available.usual().is_empty());
    }

    /// In a thread that is bound, as a process of a unit with `CPUAffinity` is.
    #[test]
    fn a_process_that_is_bound_may_not_use_other_cpus() {
        let all = bound().unwrap();
        if all.len() < 2 {
            return;
        }
        let first: CpuList = all.iter().take(1).collect();
        let others = all.without(&first);
        let inside = std::thread::spawn({
            let first = first.clone();
            move || {
                bind(&first).unwrap();
                Available::read().unwrap()
            }
        });
        let inside = inside.join().unwrap();
        assert_eq!(inside.allowed(), &first);
        assert_eq!(inside.beside(&others).unwrap_err().missing, others);
    }
}

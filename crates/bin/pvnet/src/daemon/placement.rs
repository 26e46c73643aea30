//! Where the daemon's threads run.

use cpus::{Available, CpuList};
use tracing::info;

use crate::config::Config;
use crate::daemon::error::Error;

/// The CPUs of the workers, by number; none if the scheduler places them. Binds the calling thread, and all that it starts, to the CPUs beside
/// these, and to none that are isolated: workers bind themselves.
///
/// # Errors
/// The configuration names CPUs that this process may not use.
pub(super) fn take(config: &Config) -> Result<Vec<usize>, Error> {
    let available = Available::read().map_err(Error::system("ask for the CPUs of this process"))?;
    let named = config.daemon.cpus.clone().unwrap_or_default();
    let beside = available.beside(&named)?;
    let bound = cpus::bound().map_err(Error::system("ask for the CPUs of this process"))?;
    if beside != bound {
        cpus::bind(&beside).map_err(Error::system("leave the workers' CPUs to them"))?;
    }
    if !named.is_empty() {
        let isolated: CpuList = named.iter().filter(|cpu| available.is_isolated(*cpu)).collect();
        info!(workers = %named, isolated = %isolated, others = %beside, "CPUs");
    }
    Ok(named.iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(cpus: &str) -> Config {
        Config::parse(&format!("[daemon]\ncpus = \"{cpus}\"\n")).unwrap()
    }

    /// What the calling thread is bound to after it.
    fn taken(config: Config) -> Result<(Vec<usize>, CpuList), Error> {
        let take = move || Ok((take(&config)?, cpus::bound().unwrap()));
        std::thread::spawn(take).join().unwrap()
    }

    #[test]
    fn other_threads_leave_the_workers_cpus_to_them() {
        let all = cpus::bound().unwrap();
        if all.len() < 2 {
            return;
        }
        let last = all.iter().last().unwrap();
        let (workers, others) = taken(config(&last.to_string())).unwrap();
        assert_eq!((workers, others), (vec![last], all.without(&CpuList::from_iter([last]))));
        let (workers, others) = taken(config(&all.to_string())).unwrap();
        assert_eq!((workers, others), (all.iter().collect(), all.clone()), "there is no room");
        assert_eq!(taken(Config::parse("").unwrap()).unwrap(), (Vec::new(), all));
    }

    #[test]
    fn the_error_for_a_cpu_that_is_not_there_names_those_that_are() {
        let error = taken(config("1022")).unwrap_err().to_string();
        assert!(error.starts_with("daemon.cpus: CPU 1022 is not there or not allowed"), "{error}");
        assert!(error.contains(&format!("may use {} ", cpus::bound().unwrap())), "{error}");
    }
}

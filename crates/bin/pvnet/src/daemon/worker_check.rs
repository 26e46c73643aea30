//! Whether the workers take turns, for the status.

use std::time::Instant;

use control_socket::WorkerStatus;
use datapath::{Datapath, LivenessCheck};

/// A question to the workers that the last status asked.
#[derive(Default)]
pub(super) struct WorkerCheck(Option<(Instant, LivenessCheck)>);

impl WorkerCheck {
    /// How long each worker has not answered. Asks all again if each has.
    pub(super) fn read(&mut self, datapath: &Datapath) -> Vec<WorkerStatus> {
        let now = Instant::now();
        let (asked, check) = self.0.get_or_insert_with(|| (now, datapath.check_liveness()));
        let silent = u64::try_from((now - *asked).as_nanos()).unwrap_or(u64::MAX);
        let missing = check.missing();
        let silent_nanoseconds = |is_missing: &bool| if *is_missing { silent } else { 0 };
        let status = missing
            .iter()
            .map(|is_missing| WorkerStatus { silent_nanoseconds: silent_nanoseconds(is_missing) })
            .collect();
        if !missing.contains(&true) {
            self.0 = Some((now, datapath.check_liveness()));
        }
        status
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use port::{Outcome, Queue};
    use port_testing::{FakeEgress, supply};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// Has one worker hang until the returned sender is dropped.
    pub(in crate::daemon) fn hang_one(datapath: &Datapath) -> mpsc::Sender<()> {
        let (entered, hangs) = mpsc::channel();
        let (release, until) = mpsc::channel::<()>();
        let ingress = supply(std::iter::from_fn(move || {
            let _ = entered.send(());
            let _ = until.recv();
            None
        }));
        let egress = Box::new(FakeEgress::new(|_, _| Ok(Outcome::Delivered)));
        datapath.attach("red", vec![Queue { ingress, egress }], Vec::new());
        hangs.recv_timeout(LIMIT).unwrap();
        release
    }

    #[test]
    fn a_worker_that_hangs_is_silent_until_it_goes_on() {
        let config = datapath::Config { workers: 2, ..datapath::Config::default() };
        let datapath = Datapath::start(&config, Box::new(|_| ())).unwrap();
        let release = hang_one(&datapath);
        let (mut check, begin) = (WorkerCheck::default(), Instant::now());
        let silent = |check: &mut WorkerCheck| -> Vec<bool> {
            // The other worker needs a moment for its answer.
            std::thread::sleep(Duration::from_millis(1));
            let workers = check.read(&datapath);
            workers.iter().map(|worker| worker.silent_nanoseconds > 0).collect()
        };
        while silent(&mut check).iter().filter(|silent| **silent).count() != 1
            || begin.elapsed() < Duration::from_millis(50)
        {
            assert!(begin.elapsed() < LIMIT, "nobody is silent");
        }
        let longest = check.read(&datapath).iter().map(|worker| worker.silent_nanoseconds).max();
        assert!(longest > Some(20_000_000), "it is one question all the time: {longest:?}");
        drop(release);
        while silent(&mut check) != [false; 2] {
            assert!(begin.elapsed() < LIMIT, "it is silent for ever");
        }
    }
}

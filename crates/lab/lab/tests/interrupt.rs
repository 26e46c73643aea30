//! A stop request is for the whole process, so this test has its own.

use lab::{Error, Interrupt, Namespace, Process, able, command, run};
use rustix::process::{Signal, getpid, kill_process};
use std::path::Path;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(600);

fn sleep() -> std::process::Command {
    let mut sleep = command("sleep").expect("sleep");
    sleep.arg("600");
    sleep
}

#[test]
fn a_signal_ends_every_wait_and_clean_up_still_works() {
    Interrupt::install().expect("handlers");
    Interrupt::sleep(Duration::from_millis(1)).expect("nobody asked yet");
    let mut process = Process::spawn(sleep()).expect("start");
    let namespace = able(&[]).then(|| Namespace::create("lab-interrupt").expect("create"));

    // The wait may or may not have begun when the signal arrives. It must end in both cases.
    let waiting = std::thread::spawn(|| run(sleep(), LONG));
    kill_process(getpid(), Signal::TERM).expect("signal");
    assert!(matches!(waiting.join().expect("no panic"), Err(Error::Interrupted)));
    assert!(Interrupt::requested());
    assert!(matches!(Interrupt::sleep(LONG), Err(Error::Interrupted)));

    process.stop().expect("stop");
    assert!(!Path::new(&format!("/proc/{}", process.pid())).exists());
    if let Some(mut namespace) = namespace {
        namespace.delete().expect("delete");
        assert!(!namespace.path().exists());
    }
}

//! Taps that are guests' interfaces on the host.

use std::os::fd::AsFd;
use std::process::Command;

use super::network::{in_own_network, ip};
use crate::GuestTap;
use crate::tap::{Tap, TapError, TapOffload, TapQueue};

/// Waits for what follows when a tap was closed: the child of another test's fork holds its descriptors until it runs its program.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if is_so() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("not within 10 s: {what}");
}

/// Waits until a deleted tap is gone.
fn wait_for_its_end(name: &str) {
    until("a deleted tap is gone", || !GuestTap::exists(name));
}

/// What `ip` says of an interface.
fn show(name: &str) -> String {
    let output = Command::new("ip").args(["-d", "link", "show", "dev", name]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Opens a tap, once whoever had it has closed it.
fn open(name: &str, queues: usize) -> GuestTap {
    let mut tap = None;
    until("a tap that was closed can be opened", || {
        match GuestTap::open(name, queues) {
            Err(TapError::NameTaken { .. }) => {}
            opened => tap = Some(opened.unwrap()),
        }
        tap.is_some()
    });
    tap.unwrap()
}

#[test]
fn a_new_one_waits_for_its_place_and_an_old_one_keeps_it() {
    in_own_network(|| {
        ip("link add br0 type bridge");
        for queues in [1, 2, 1] {
            let tap = open("vif1.0", queues);
            let shown = show("vif1.0");
            if tap.is_new() {
                assert!(
                    shown.contains("fe:ff:ff:ff:ff:ff") && shown.contains("state DOWN"),
                    "{shown}"
                );
                assert_eq!((tap.is_up().unwrap(), tap.mtu().unwrap()), (false, 1500));
                tap.set_mtu(1442).unwrap();
                ip("link set vif1.0 master br0 address fe:ff:ff:ff:ff:01 up");
            } else {
                assert!(shown.contains("master br0") && shown.contains("ff:ff:ff:01"), "{shown}");
                assert_eq!((tap.is_up().unwrap(), tap.mtu().unwrap()), (true, 1442));
            }
            assert_eq!(tap.queues().len(), queues);
            assert!(show("vif1.0").contains("NO-CARRIER"), "{}", show("vif1.0"));
            tap.set_carrier(true).unwrap();
            assert!(!show("vif1.0").contains("NO-CARRIER"), "{}", show("vif1.0"));
        }
        until("a device without a guest has no carrier", || show("vif1.0").contains("NO-CARRIER"));
        open("vif1.0", 1).delete().unwrap();
        wait_for_its_end("vif1.0");
    });
}

/// xen's scripts give a device the name that the toolstack has for it.
#[test]
fn its_name_may_change() {
    in_own_network(|| {
        let tap = open("vif1.0", 1);
        ip("link set vif1.0 name web");
        assert_eq!(tap.name().as_deref(), Some("web"));
        assert!(!tap.is_up().unwrap());
        ip("link set web up");
        assert!(tap.is_up().unwrap());
        ip("link delete web");
        assert_eq!(tap.name(), None);
        assert!(tap.queues()[0].is_deleted() && tap.is_up().is_err());
    });
}

#[test]
fn frames_of_a_guest_are_shared_with_nobody() {
    in_own_network(|| {
        let first = open("vif1.0", 1);
        let second = GuestTap::open("vif1.0", 1).unwrap_err();
        assert!(matches!(second, TapError::NameTaken { .. }), "{second}");
        drop(first);
        assert!(!open("vif1.0", 2).is_new());
        // What another program has made.
        let other = Tap::open("tap0", 1, TapOffload::NONE).unwrap();
        other.iter().try_for_each(TapQueue::persist).unwrap();
        drop(other);
        ip("link add br0 type bridge");
        for (name, queues) in [("tap0", 1), ("tap0", 2), ("br0", 1)] {
            let error = GuestTap::open(name, queues).unwrap_err().to_string();
            assert!(error.contains(&format!("ip link delete {name}")), "{error}");
        }
        ip("tuntap add dev tap1 mode tap multi_queue");
        let tap = GuestTap::open("tap1", 1).unwrap();
        assert!(!tap.is_new() && tap.queues()[0].as_fd().try_clone_to_owned().is_ok());
    });
}

/// The features of `vif1.0` that are on, of those that decide what its reader gets.
fn features() -> Vec<String> {
    let output = Command::new("ethtool").args(["-k", "vif1.0"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let names = ["tx-checksum-ip-generic", "tx-tcp-segmentation", "tx-tcp6-segmentation"];
    let is_on = |name: &&&str| text.contains(&format!("\t{name}: on"));
    names.iter().filter(is_on).map(|name| (*name).to_owned()).collect()
}

fn ethtool(arguments: &str) {
    let command = Command::new("ethtool").args(arguments.split(' ')).output().unwrap();
    assert!(command.status.success(), "ethtool {arguments}");
}

/// `ethtool -K vif1.0 tx off` is the cure for guests that forward frames as they got them.
#[test]
fn what_an_operator_has_switched_off_stays_off() {
    in_own_network(|| {
        let all = ["tx-checksum-ip-generic", "tx-tcp-segmentation", "tx-tcp6-segmentation"];
        drop(open("vif1.0", 2));
        assert_eq!(features(), all);
        for (switched, left) in [("tso off", &all[..1]), ("tx off", &[]), ("tx on tso on", &all)] {
            let arguments = format!("-K vif1.0 {switched}");
            // While it is served, and while it is not.
            let tap = open("vif1.0", 2);
            ethtool(&arguments);
            drop(tap);
            for queues in [1, 2] {
                let tap = open("vif1.0", queues);
                assert_eq!(features(), left, "{switched}");
                drop(tap);
            }
        }
    });
}

/// What a reader cannot take is off, and comes back for one that can.
#[test]
fn a_reader_does_not_decide_for_the_next_one() {
    in_own_network(|| {
        let csum = TapOffload { csum: true, ..TapOffload::NONE };
        let all = ["tx-checksum-ip-generic", "tx-tcp-segmentation", "tx-tcp6-segmentation"];
        for (offload, on) in [(csum, &all[..1]), (TapOffload::NONE, &[]), (TapOffload::ALL, &all)] {
            let tap = Tap::open_multi_queue("vif1.0", 1, offload).unwrap();
            assert_eq!(features(), on);
            tap[0].persist().unwrap();
        }
    });
}

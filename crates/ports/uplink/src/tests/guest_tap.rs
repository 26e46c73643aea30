//! Taps that are guests' interfaces on the host.

use std::os::fd::AsFd;
use std::process::Command;

use super::network::{in_own_network, ip};
use crate::GuestTap;
use crate::tap::{Tap, TapError, TapOffload, TapQueue};

/// What `ip` says of an interface.
fn show(name: &str) -> String {
    let output = Command::new("ip").args(["-d", "link", "show", "dev", name]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_new_one_waits_for_its_place_and_an_old_one_keeps_it() {
    in_own_network(|| {
        ip("link add br0 type bridge");
        for queues in [1, 2, 1] {
            let tap = GuestTap::open("vif1.0", queues).unwrap();
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
        assert!(show("vif1.0").contains("NO-CARRIER"), "its guest is gone: {}", show("vif1.0"));
        GuestTap::open("vif1.0", 1).unwrap().delete().unwrap();
        assert!(!GuestTap::exists("vif1.0"));
    });
}

/// xen's scripts give a device the name that the toolstack has for it.
#[test]
fn its_name_may_change() {
    in_own_network(|| {
        let tap = GuestTap::open("vif1.0", 1).unwrap();
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
        let first = GuestTap::open("vif1.0", 1).unwrap();
        let second = GuestTap::open("vif1.0", 1).unwrap_err();
        assert!(matches!(second, TapError::NameTaken { .. }), "{second}");
        drop(first);
        assert!(!GuestTap::open("vif1.0", 2).unwrap().is_new());
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

//! Mirrors and snooping that come and go by a reload.

use crate::testbed::{PING_PAUSE, Testbed, able, wait};
use crate::{change, file, status, steps};

/// Answers to two pings from the first guest to another one.
fn answers(testbed: &Testbed, to: usize) -> u64 {
    let (from, to) = (&testbed.guests[0], &testbed.guests[to]);
    lab::ping(&from.namespace, to.ipv4, 2, PING_PAUSE).unwrap().received
}

#[test]
fn a_guest_becomes_a_mirrors_target_and_is_put_back() {
    if !able(&["ping"]) {
        return;
    }
    let mut testbed = Testbed::start(3, "workers = 1");
    (0..3).for_each(|guest| testbed.join(guest, &[]));
    assert_eq!([answers(&testbed, 1), answers(&testbed, 2)], [2, 2]);
    let text = std::fs::read_to_string(file(&testbed)).unwrap();
    let [red, probe] = [0, 2].map(|n: usize| testbed.guests[n].namespace.name().to_owned());
    let mirror = |to: &str| {
        let span = format!("[[mirror]]\nname = \"span\"\nfrom = [\"{red}\"]\nto = \"{to}\"\n");
        format!("{text}{span}[switch]\nmulticast = \"snoop\"\n")
    };
    std::fs::write(file(&testbed), mirror("nobody")).unwrap();
    let error = change(&testbed, &["reload"]).unwrap_err();
    assert!(error.contains("no port \"nobody\""), "{error}");

    std::fs::write(file(&testbed), mirror(&probe)).unwrap();
    let report = change(&testbed, &["reload"]).unwrap();
    assert_eq!(steps(&report), ["change  multicast", "add span"]);
    let egress = || status(&testbed, &probe).unwrap()["egress"]["frames"].as_u64().unwrap();
    let before = egress();
    assert_eq!([answers(&testbed, 1), answers(&testbed, 2)], [2, 0]);
    wait("the copies", || egress() >= before + 4);
    let state = testbed.status();
    assert!(state["mirrors"][0]["copied"].as_u64() >= Some(4), "{state}");
    assert!(state["multicast"]["groups"].is_number(), "{state}");
    // It is in the switch as little when it comes again.
    testbed.leave(2);
    testbed.join(2, &[]);
    assert_eq!([answers(&testbed, 1), answers(&testbed, 2)], [2, 0]);

    std::fs::write(file(&testbed), &text).unwrap();
    let report = change(&testbed, &["reload"]).unwrap();
    assert_eq!(steps(&report), ["change  multicast", "remove span"]);
    wait("an answer", || answers(&testbed, 2) == 2);
    let state = testbed.status();
    assert!(state["mirrors"].is_null() && state["multicast"].is_null(), "{state}");
}

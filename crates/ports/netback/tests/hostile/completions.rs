//! A guest that asks to be notified of the answer to a lone frame, and polls for it by itself or does not.

use std::thread::sleep;
use std::time::Duration;

use machine::Machine;
use netback::Offered;
use offload::Features;
use port::{Armed, Ingress, Outcome, WINDOW};
use port_testing::receive;
use wire::netif::TxRequest;

use crate::common::guest::{DATA, OFFERED, REQ_PROD, RSP_EVENT, RSP_PROD, Raw, TX_RING};

#[test]
fn a_lone_frame_is_announced_late_unless_the_guest_polls() {
    let machine = Machine::new();
    let raw = Raw::new(&machine);
    // Longer than the test's own turns may take.
    let delay = Duration::from_millis(200);
    let offered = Offered { completion_delay: Some(delay), ..OFFERED };
    let mut vif = raw.announce_as(machine, offered);
    let mut tx = raw.connect(&mut vif, Features::ALL).tx;
    raw.is_notified();
    let mut sent = 0u32;
    let mut send = |count: u32| {
        for _ in 0..count {
            let request = TxRequest { gref: DATA, offset: 0, flags: 0, id: 7, size: 60 };
            raw.write(TX_RING, Raw::slot::<TxRequest>(sent), request);
            sent += 1;
        }
        raw.write(TX_RING, REQ_PROD, sent);
        assert_eq!(receive(&mut tx).unwrap().fresh, count as usize);
        tx.finish(&[Outcome::Delivered; WINDOW]);
        assert_eq!(raw.read::<u32>(TX_RING, RSP_PROD), sent);
        (sent, tx.arm().unwrap())
    };
    raw.write(TX_RING, RSP_EVENT, 1u32);
    let (sent, armed) = send(1);
    assert!(matches!(armed, Armed::AsleepPast(_)) && !raw.is_notified());
    // It sends again, and asks for the next answer.
    raw.write(TX_RING, RSP_EVENT, sent + 1);
    let (_, armed) = send(1);
    assert!(matches!(armed, Armed::AsleepPast(_)) && !raw.is_notified());
    // Many are announced at once, and so is what was held back.
    let (sent, armed) = send(10);
    assert!(armed == Armed::Asleep && raw.is_notified());
    raw.write(TX_RING, RSP_EVENT, sent + 1);
    let _ = send(1);
    assert!(!raw.is_notified());
    sleep(delay);
    assert_eq!(tx.arm().unwrap(), Armed::Asleep);
    assert!(raw.is_notified(), "it has not polled");
}

#[test]
fn a_queue_is_drained_once_the_requests_that_it_knows_are_taken() {
    let machine = Machine::new();
    let raw = Raw::new(&machine);
    let mut vif = raw.announce_as(machine, OFFERED);
    let mut tx = raw.connect(&mut vif, Features::ALL).tx;
    let count = WINDOW + 1;
    for n in 0..count {
        let request = TxRequest { gref: DATA, offset: 0, flags: 0, id: 7, size: 60 };
        raw.write(TX_RING, Raw::slot::<TxRequest>(u32::try_from(n).unwrap()), request);
    }
    raw.write(TX_RING, REQ_PROD, u32::try_from(count).unwrap());
    for (fresh, is_drained) in [(WINDOW, false), (1, true)] {
        assert_eq!(receive(&mut tx).unwrap().fresh, fresh);
        tx.finish(&[Outcome::Delivered; WINDOW]);
        assert_eq!(tx.is_drained(), is_drained);
    }
}

//! What a hostile receiver can gain.

use super::*;

const GOOD: u64 = 1;
const SLOW: u64 = 2;
/// All slots of a window.
fn all() -> Vec<u8> {
    (0u8..).take(WINDOW).collect()
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A queue that has delivered these bytes.
fn after(good: u64, slow: u64) -> Waits {
    let mut waits = Waits::new(true);
    waits.delivered(GOOD, good, ms(0));
    waits.delivered(SLOW, slow, ms(0));
    waits
}

#[test]
fn an_only_destination_may_let_frames_wait() {
    let mut waits = Waits::new(true);
    for now in [0, 1, 100, 500] {
        waits.begin(ms(now));
        assert_eq!(waits.admit(GOOD, &all(), ms(now)), WINDOW);
        assert_eq!(waits.due(), Some(ms(500)));
    }
    assert_eq!(waits.admit(GOOD, &all(), ms(501)), 0, "another's may be behind them");
}

/// A window in which these slots' frames stay.
fn staying(slots: u8) -> Window {
    let mut window = Window::new();
    (0..slots).for_each(|_| assert!(window.push().is_some()));
    window
}

#[test]
fn frames_from_a_wire_hold_half_of_its_window_together() {
    let mut waits = Waits::new(false);
    waits.delivered(GOOD, 1000, ms(0));
    // One that takes little, too: a guest's first burst.
    assert_eq!(waits.admit(SLOW, &all(), ms(0)), SHARED);
    assert_eq!(waits.due(), Some(ms(200)));
    assert_eq!(waits.admit(GOOD, &[40, 41], ms(0)), 0, "the rest is for frames that are delivered");
    waits.end(&staying(10));
    // The same ones, and more of them.
    assert_eq!(waits.admit(SLOW, &all()[..12], ms(150)), 12);
    assert_eq!(waits.admit(GOOD, &all()[12..], ms(150)), SHARED - 12);
}

#[test]
fn frames_from_a_wire_wait_for_a_while_only() {
    let mut waits = Waits::new(false);
    assert_eq!(waits.admit(SLOW, &[0, 1], ms(0)), 2);
    waits.end(&staying(2));
    assert_eq!(waits.admit(SLOW, &[0, 1], ms(200)), 2);
    assert_eq!(waits.admit(SLOW, &[0, 1], ms(201)), 0, "late");
    assert_eq!(waits.admit(GOOD, &all()[2..], ms(201)), SHARED, "whose slots are free at once");
    waits.end(&Window::new());
    assert_eq!(waits.admit(SLOW, &all(), ms(380)), 0);
    assert_eq!(waits.admit(GOOD, &all(), ms(380)), SHARED, "nobody else is");
    waits.end(&Window::new());
    assert_eq!(waits.admit(SLOW, &[0], ms(381)), 1);
}

#[test]
fn a_port_holds_no_more_than_its_share() {
    let mut waits = after(900, 100);
    assert_eq!(waits.admit(GOOD, &all(), ms(0)), WINDOW, "its main destination");
    assert_eq!(waits.due(), Some(ms(18)));
    assert_eq!(waits.admit(SLOW, &all(), ms(0)), 7);
    assert_eq!(waits.due(), Some(ms(2)), "the one that is due first");
    assert_eq!(after(1000, 0).admit(SLOW, &all(), ms(0)), 0, "who took nothing has no share");
}

#[test]
fn a_willing_receiver_loses_nothing_while_its_sender_also_sends_to_others() {
    let mut waits = Waits::new(true);
    for now in (0..10_000).map(ms) {
        waits.begin(now);
        waits.delivered(GOOD, 1_000_000, now);
        waits.delivered(SLOW, 10_000, now);
        // It takes a window of frames in 15 ms: each slot gets a new frame that often.
        let window = all();
        assert_eq!(waits.admit(GOOD, &window, now), WINDOW);
        if now.as_millis() % 15 == 0 {
            waits.end(&Window::new());
        }
    }
}

#[test]
fn a_late_port_loses_its_frames_at_once_for_a_while() {
    let mut waits = after(900, 100);
    assert_eq!(waits.admit(SLOW, &[0], ms(0)), 1);
    assert_eq!(waits.admit(SLOW, &[0], ms(2)), 1, "in time");
    assert_eq!(waits.admit(SLOW, &[0], ms(3)), 0, "late");
    waits.end(&Window::new());
    assert_eq!(waits.admit(SLOW, &[0], ms(182)), 0);
    assert_eq!(waits.admit(SLOW, &[0], ms(183)), 1);
    assert_eq!(waits.admit(GOOD, &[0], ms(3)), 1, "nobody else is");
}

#[test]
fn waits_are_a_tenth_of_the_time_however_the_receiver_behaves() {
    let mut waits = Waits::new(true);
    let (mut waited, mut waiting) = (0u32, false);
    for now in (0..60_000).map(ms) {
        waits.begin(now);
        // Nearly all goes to the slow one, so its share is as large as it can be.
        waits.delivered(SLOW, 1_000_000, now);
        waits.delivered(GOOD, 1, now);
        waiting = waits.admit(SLOW, &all(), now) > 0;
        waited += u32::from(waiting);
        if !waiting {
            waits.end(&Window::new());
        }
    }
    assert!(!waiting || waited < 6000);
    assert!((20..6000).contains(&waited), "{waited} of 60000 ms");
}

#[test]
fn a_port_that_is_in_time_again_is_forgiven() {
    let mut waits = after(500, 500);
    for (begin, period) in [(0, 180), (200, 360), (2000, 180)] {
        waits.begin(ms(begin));
        waits.delivered(SLOW, 1000, ms(begin));
        waits.delivered(GOOD, 1000, ms(begin));
        assert!(waits.admit(SLOW, &[0], ms(begin)) > 0);
        assert_eq!(waits.admit(SLOW, &[0], ms(begin + 19)), 0, "late");
        waits.end(&Window::new());
        let until = begin + 19 + period;
        assert_eq!(waits.admit(SLOW, &[0], ms(until - 1)), 0);
        assert_eq!(waits.admit(SLOW, &[0], ms(until)), 1);
        waits.end(&Window::new());
    }
}

#[test]
fn a_port_that_is_not_sent_to_any_more_is_forgotten() {
    let mut waits = after(500, 500);
    waits.begin(ms(6000));
    waits.delivered(SLOW, 1, ms(6000));
    assert_eq!(waits.admit(SLOW, &all(), ms(9000)), WINDOW);
}

#[test]
fn many_ports_take_no_more_memory() {
    let mut waits = Waits::new(true);
    for serial in 0..1000 {
        waits.delivered(serial, serial, ms(0));
    }
    assert_eq!(waits.ports.len(), PORTS_MAX);
    assert!(waits.ports.iter().any(|port| port.serial == 998));
}

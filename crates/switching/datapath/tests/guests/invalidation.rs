//! Guests that want pages back which the backend keeps mapped: they ask, and wait for the confirmation.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hypervisor::Guest as _;
use machine::{DRIVER_DOMAIN, toolstack};
use netdev::Queue as _;
use netfront::{Config, ConnectError, Frontend};
use wire::netif::GrefMapping;
use xenstore::Store;

use crate::common::{A, B, Guest, Host, frame, receive, send, wait_until};

/// Pages that a guest wants back at a time.
const PAGES: usize = 32;
/// Far more than the backend needs to confirm.
const ENOUGH: Duration = Duration::from_secs(10);
/// Far more than anybody may wait for a backend that does not answer.
const LIMIT: Duration = Duration::from_secs(5);

/// Sends frames from `a` to `b` until `next`; each arrives whole and in order.
fn cross(a: &mut Guest, b: &mut Guest, sent: &mut u32, next: u32) {
    let mut arrived = *sent;
    while arrived < next {
        let bytes = |n| frame(B, A, 200 + n as usize * 37 % 9000, n);
        while *sent < next && send(&mut a.queues[0], &bytes(*sent)) {
            *sent += 1;
        }
        wait_until("a frame", || {
            receive(&mut b.queues[0]).is_some_and(|got| {
                assert!(got == bytes(arrived), "frame {arrived} differs");
                arrived += 1;
                true
            })
        });
    }
}

/// What a balloon does, between frames that flow.
#[test]
fn pages_that_were_mapped_are_free_after_the_confirmation_and_frames_flow() {
    let host = Host::new(1, 1);
    let [mut a, mut b] = host.pair(Config::default());
    let pinned = a.domain.pinned();
    let reservation = a.inside.reservation();
    let mut sent = 0;
    cross(&mut a, &mut b, &mut sent, 300);
    let mut freed = 0;
    for round in 1..=6 {
        // Frames are in the backend's hands meanwhile.
        (0..20).for_each(|_| assert!(send(&mut a.queues[0], &frame(B, A, 3000, 7))));
        let pages = a.queues[0].set_aside(PAGES);
        a.frontend.free_pages(0, &pages, ENOUGH).unwrap();
        freed += pages.len();
        assert_eq!(a.domain.pinned(), pinned - freed, "unmapped, so their grants could end");
        let mut drained = 0;
        wait_until("the frames before", || {
            while receive(&mut b.queues[0]).is_some() {
                drained += 1;
            }
            drained == 20
        });
        // Whatever the pages are used for now, frames arrive as they were sent.
        let (other, _) = a.inside.share(DRIVER_DOMAIN, PAGES).unwrap();
        other.write(0, [round; 4096]).unwrap();
        let next = sent + 50;
        cross(&mut a, &mut b, &mut sent, next);
        assert_eq!(other.read::<[u8; 4096]>(0), Ok([round; 4096]));
    }
    assert!(freed >= 3 * PAGES, "{freed} pages");
    // The rest of its memory is for the balloon too.
    a.inside.set_reservation(reservation - 512).unwrap();
    cross(&mut a, &mut b, &mut sent, 900);
    assert_eq!(a.queues[0].tx.take_errors() + b.queues[0].rx.take_errors(), 0);
    // It keeps what it needs to send.
    while !a.queues[0].set_aside(PAGES).is_empty() {}
    cross(&mut a, &mut b, &mut sent, 1000);
}

#[test]
fn a_frontend_that_leaves_has_all_its_pages_again() {
    let host = Host::new(1, 1);
    let [mut a, mut b] = host.pair(Config::default());
    let mut sent = 0;
    cross(&mut a, &mut b, &mut sent, 100);
    let Guest { domain, inside, mut frontend, queues, mut vif, port, .. } = a;
    let closing = std::thread::spawn(move || {
        let closed = frontend.close(ENOUGH);
        // Before the backend has unmapped the rings, if it were not for the order.
        drop((frontend, queues));
        closed
    });
    wait_until("the invalidation", || domain.pinned() < 20 || closing.is_finished());
    wait_until("the closing state", || match vif.frontend_changed().unwrap() {
        netback::VifChange::Disconnect => {
            host.datapath.detach(port.id());
            vif.disconnected().unwrap();
            true
        }
        _ => false,
    });
    closing.join().unwrap().unwrap();
    assert_eq!(domain.pinned(), 0);
    // A page that was still mapped when its queue was dropped would be lost for ever.
    inside.set_reservation(domain.size().grant_pages).unwrap();
}

/// The backend has gone, or is broken: it is connected in the store, and nobody serves its rings.
#[test]
fn a_guest_does_not_wait_for_ever_for_a_backend_that_never_confirms() {
    let host = Host::new(1, 1);
    let (domain, inside, mut vif) = host.domain("02:00:00:00:00:0a");
    let store: Arc<dyn Store> = Arc::new(host.machine.store().connect(domain.id()));
    let guest = inside.clone();
    let config = Config { persistent_grants: true, timeout: LIMIT, ..Config::default() };
    let frontend = std::thread::spawn(move || {
        Frontend::connect(&guest, store, &toolstack::device_path(0), &config).unwrap()
    });
    // Maps what the frontend asks for, and then answers nothing more.
    let mut connection = host.connect(&mut vif);
    let control = connection.control.as_mut().unwrap();
    wait_until("the mapping", || {
        while port::Task::step(control).unwrap() {}
        frontend.is_finished()
    });
    let (mut frontend, mut queues) = frontend.join().unwrap();
    let pinned = domain.pinned();
    assert!(pinned > 256, "{pinned}");
    let began = Instant::now();
    let pages = queues[0].set_aside(PAGES);
    let error = frontend.free_pages(0, &pages, LIMIT / 20).unwrap_err();
    assert_eq!(error.pages, pages, "none may be used for anything else");
    assert!(error.to_string().contains("no answer on the control ring"), "{error}");
    assert_eq!(domain.pinned(), pinned);
    queues[0].put_back(&error.pages);
    assert_eq!(queues[0].set_aside(PAGES).len(), PAGES, "the queue has them again");
    let error = frontend.close(LIMIT / 20).unwrap_err();
    assert!(matches!(error, ConnectError::Timeout { .. } | ConnectError::Invalidation(_)));
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
}

/// A late answer to an earlier list says nothing about a later one.
#[test]
fn only_the_answer_to_its_own_list_is_a_confirmation() {
    let host = Host::new(1, 1);
    let [mut a, _b] = host.pair(Config::default());
    let grefs = a.queues[0].tx.grefs();
    let entry = |n: usize| GrefMapping { gref: grefs[n].0, flags: 0, status: 0 };
    let (first, second) = (entry(0), entry(1));
    let control = a.frontend.control().unwrap();
    assert_eq!(control.remove(0, &[first]).unwrap(), [true]);
    assert_eq!(control.remove(0, &[first, second]).unwrap(), [false, true]);
}

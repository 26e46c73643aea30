//! Back-ends whose messages are not as they should be: each loses its connection, soon and with a reason.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use port::Doorbell;
use port_testing::{pass, tcp};
use proptest::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use vhost_user::shared::{Channel, Message};
use virtio_user::{Error, Options};
use virtqueue::Layout;

use crate::ALL;
use crate::connect;
use crate::fake::{Answer, GET_FEATURES, GET_PROTOCOL_FEATURES, GET_QUEUE_NUM, SET_MEM_TABLE};

fn message(request: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap();
    [&[request, flags, len].map(u32::to_le_bytes).concat(), payload].concat()
}

#[test]
fn a_malformed_reply_ends_the_connection() {
    let cases: [(Answer, &str); 6] = [
        (
            |said| (said.request() == GET_FEATURES).then(|| message(2, 5, &[0; 8])),
            "reply to GET_FEATURES is malformed",
        ),
        (
            |said| (said.request() == GET_FEATURES).then(|| message(1, 1, &[0; 8])),
            "reply to GET_FEATURES is malformed",
        ),
        (
            |said| (said.request() == GET_PROTOCOL_FEATURES).then(|| message(15, 5, &[0; 4])),
            "reply to GET_PROTOCOL_FEATURES is malformed",
        ),
        (
            |said| (said.request() == GET_FEATURES).then(|| message(1, 5, &[0; 4096])),
            "reply to GET_FEATURES is malformed",
        ),
        (
            |said| {
                (said.request() == GET_FEATURES)
                    .then(|| [1, 5, u32::MAX].map(u32::to_le_bytes).concat())
            },
            "reply to GET_FEATURES is malformed",
        ),
        (
            |said| (said.request() == SET_MEM_TABLE).then(|| message(5, 5, &7u64.to_le_bytes())),
            "refuses SET_MEM_TABLE (error 7)",
        ),
    ];
    for (answer, wanted) in cases {
        let (connected, _) = connect::connect(connect::features(Layout::Split), &ALL, answer);
        let error = connected.map(drop).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

/// The limit of a reply is 5 s; who waits for it can be stopped at any time.
#[test]
fn a_back_end_that_does_not_answer_keeps_nobody_from_stopping() {
    // An empty answer: none.
    let (ours, thread) = connect::start(0, |said| (said.request() == GET_FEATURES).then(Vec::new));
    let stop = Arc::new(Doorbell::new().unwrap());
    let rung = stop.clone();
    let ringer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        rung.ring();
    });
    let connected = virtio_user::connect(ours, &ALL, &Arc::default(), stop.as_fd());
    assert!(matches!(connected, Err(Error::Stopped)), "{:?}", connected.map(drop));
    ringer.join().unwrap();
    assert!(thread.join().unwrap().is_none());
}

#[test]
fn a_reply_that_never_ends_is_given_up() {
    // The header of a reply, and no more.
    let (ours, thread) = connect::start(0, |said| {
        (said.request() == GET_FEATURES).then(|| [1, 5, 8].map(u32::to_le_bytes).concat())
    });
    let stop = Doorbell::new().unwrap();
    let start = Instant::now();
    let connected = virtio_user::connect(ours, &ALL, &Arc::default(), stop.as_fd());
    assert!(matches!(connected, Err(Error::Silent("GET_FEATURES"))), "{:?}", connected.map(drop));
    assert!(start.elapsed() >= Duration::from_secs(2));
    assert!(thread.join().unwrap().is_none());
}

#[test]
fn a_session_ends_with_its_back_end_or_with_a_message_that_nobody_asked_for() {
    let stop = Doorbell::new().unwrap();
    let (mut session, _queue, fake) = connect::honest(Layout::Split);
    (&fake.stream).write_all(&message(1, 5, &[0; 8])).unwrap();
    assert!(matches!(session.wait(stop.as_fd()), Error::Unasked));
    let (mut session, _queue, fake) = connect::honest(Layout::Split);
    drop(fake);
    assert!(matches!(session.wait(stop.as_fd()), Error::Gone));
}

#[test]
fn a_back_end_that_blocks_a_worker_is_found_out() {
    let (mut session, mut queue, fake) = connect::honest(Layout::Split);
    let kick = &fake.kicks[1];
    let flags = fcntl_getfl(kick).unwrap();
    fcntl_setfl(kick, flags - OFlags::NONBLOCK).unwrap();
    rustix::io::write(kick, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let (source, mut ingress) = port_testing::Sender::new();
    source.send(tcp(100));
    // It would wait for ever.
    pass(&mut *ingress, &mut *queue.egress, Duration::ZERO).unwrap();
    let stop = Doorbell::new().unwrap();
    assert!(matches!(session.wait(stop.as_fd()), Error::Blocked));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever a back-end says, whenever, with whatever descriptors: the connection ends, or has rings that can be dropped.
    #[test]
    fn a_back_end_that_says_anything_ends_at_most_its_connection(
        answers in prop::collection::vec((0u32..24, 0u32..16, prop::collection::vec(any::<u8>(), 0..20), 0usize..3, prop::bool::weighted(0.98)), 0..80),
    ) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let back = std::thread::spawn(move || {
            let stop = Doorbell::new().unwrap();
            let mut channel = Channel::new(theirs).unwrap();
            // Then it closes the socket.
            for (other, flags, payload, descriptors, is_sane) in answers {
                let Ok(asked) = channel.receive(stop.as_fd()) else { return };
                let fds = (0..descriptors).map(|_| eventfd(0, EventfdFlags::empty()).unwrap());
                let is_question = [GET_FEATURES, GET_PROTOCOL_FEATURES, GET_QUEUE_NUM].contains(&asked.request());
                let answer = match is_sane {
                    true if is_question => {
                        let value: Vec<u8> = payload.into_iter().chain([0xff; 8]).take(8).collect();
                        Message::new(asked.request(), 5, &value, fds.collect())
                    }
                    true if asked.flags() & 8 != 0 => Message::new(asked.request(), 5, &[0; 8], Vec::new()),
                    true => continue,
                    false => Message::new(other, flags, &payload, fds.collect()),
                };
                if channel.send(&answer, stop.as_fd()).is_err() {
                    return;
                }
            }
        });
        let stop = Doorbell::new().unwrap();
        let options = Options { queues: 3, ..ALL };
        if let Ok((session, queues)) =
            virtio_user::connect(ours, &options, &Arc::default(), stop.as_fd())
        {
            prop_assert!((1..=3).contains(&session.agreed().queues));
            prop_assert_eq!(queues.len(), usize::from(session.agreed().queues));
            drop((session, queues));
        }
        back.join().unwrap();
    }
}

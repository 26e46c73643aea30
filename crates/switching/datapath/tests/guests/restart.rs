//! Backends are killed with frames in flight, and others continue. The frontends do not notice.

use std::collections::BTreeMap;
use std::time::Duration;

use netback::{RxChannel, TxChannel};
use offload::{Checksum, Gso, GsoKind};
use port::{Budget, Egress, Ingress, Offer, Outcome, Received, WINDOW};
use proptest::prelude::*;
use xenstore::XenbusState;

use crate::common::{A, ALL, B, Guest, Host, Platform, frame, receive, send, wait_until};

/// The backend's and the frontend's choice of header source.
const HEADER_SOURCES: [(TxChannel, bool); 3] =
    [(TxChannel::Header, true), (TxChannel::Header, false), (TxChannel::Remap, false)];

fn pair(host: &Host, header_channel: bool) -> [Guest; 2] {
    host.pair(netfront::Config { header_channel, ..netfront::Config::default() })
}

#[test]
fn traffic_goes_on_after_the_daemon_was_killed() {
    for (tx, header_channel) in HEADER_SOURCES {
        let host = Host::with_channels(1, 1, tx, RxChannel::Copy);
        let [mut a, mut b] = pair(&host, header_channel);
        let mut sent = 0;
        for round in 0..12 {
            // So many that some wait for free slots, on both sides of the backend.
            while sent < round * 150 && send(&mut a.queues[0], &frame(B, A, 200, sent)) {
                sent += 1;
            }
            for guest in [&mut a, &mut b] {
                let connection = host.restart(guest);
                guest.port = host.carry(guest.domain.id(), connection);
                assert!(guest.frontend.is_open().unwrap());
                assert_eq!(guest.vif.state(), XenbusState::Connected);
            }
            // Frames to everybody do not wait: those sent before would take the room of the next.
            wait_until("the answers to the frames sent before", || {
                while receive(&mut b.queues[0]).is_some() {}
                a.queues[0].tx.reclaim().unwrap();
                a.queues[0].tx.unanswered().is_empty()
            });
            // More than a ring: no frame of the earlier backends is still held.
            flow(&mut a, A, &mut b, 300);
            // The switch learns B's address: from here on, frames for B wait for it.
            flow(&mut b, B, &mut a, 300);
        }
    }
}

#[test]
fn frames_wait_for_a_paused_datapath_and_can_be_read_back() {
    for (tx, header_channel) in HEADER_SOURCES {
        let host = Host::with_channels(1, 1, tx, RxChannel::Copy);
        let [mut a, mut b] = pair(&host, header_channel);
        flow(&mut a, A, &mut b, 10);
        host.datapath.pause();
        let frames: Vec<_> = [60, 200, 9000, 60_000, 1514]
            .into_iter()
            .zip(0..)
            .map(|(len, n)| frame(ALL, A, len, n))
            .collect();
        assert!(frames.iter().all(|bytes| send(&mut a.queues[0], bytes)));
        let left = |a: &mut Guest| -> Vec<_> {
            a.queues[0].tx.reclaim().unwrap();
            a.queues[0].tx.unanswered().into_iter().map(|frame| frame.bytes).collect()
        };
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(left(&mut a), frames);
        assert!(receive(&mut b.queues[0]).is_none(), "it is paused");
        host.datapath.resume();
        let mut came = Vec::new();
        wait_until("the frames", || {
            came.extend(receive(&mut b.queues[0]));
            came.len() == frames.len()
        });
        assert_eq!(came, frames);
        wait_until("the answers", || left(&mut a).is_empty());
        // What is known of a frame beside its bytes.
        host.datapath.pause();
        let (checksum, gso) =
            (Checksum::from_flags(true, true), Gso { kind: GsoKind::TcpV4, size: 1448 });
        a.queues[0].tx.send(20_000, checksum, Some(gso)).unwrap();
        let [only] = &a.queues[0].tx.unanswered()[..] else { panic!("one frame") };
        assert_eq!((only.metadata.checksum, only.metadata.gso), (checksum, Some(gso)));
        assert_eq!((only.metadata.len, only.bytes.len()), (20_000, 20_000));
    }
}

/// Frames arrive in order, and never more at once than there are slots.
fn flow(from: &mut Guest, address: [u8; 6], to: &mut Guest, count: u32) {
    let bytes = |n| frame(ALL, address, 100, 1_000_000 + n);
    let (mut sent, mut came) = (0, 0);
    wait_until("the last frame", || {
        while sent < count.min(came + 32) && send(&mut from.queues[0], &bytes(sent)) {
            sent += 1;
        }
        while let Some(got) = receive(&mut to.queues[0]) {
            came += u32::from(got == bytes(came));
        }
        came == count
    });
}

/// The daemon's work for A's frames, and where it is killed.
struct Backend {
    a: netback::VifQueue<Platform>,
    b: netback::VifQueue<Platform>,
}

/// The last step of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Until {
    Received,
    Delivered,
    Finished,
}

impl Backend {
    /// Kills the backends, and starts others.
    fn restart(host: &Host, a: &mut Guest, b: &mut Guest) -> Self {
        let [a, b] = [a, b].map(|guest| host.restart(guest).queues.pop().unwrap());
        Self { a, b }
    }

    /// Takes A's frames, and delivers to B all but the frames in the slots of `held`.
    fn pass(&mut self, held: u64, until: Until) {
        self.a.tx.receive(&mut Budget::default(), &mut Received::default()).unwrap();
        if until < Until::Delivered {
            return;
        }
        let mut outcomes = [Outcome::Waiting; WINDOW];
        for slot in self.a.tx.window().order() {
            if held & (1 << slot) == 0 {
                let frame = self.a.tx.window().frame(*slot);
                let rx = &mut self.b.rx;
                self.a.tx.with_body(&mut |body| {
                    let mut offers = [Offer::new(frame)];
                    rx.deliver(body, &mut offers, Duration::ZERO).unwrap();
                    outcomes[usize::from(*slot)] = offers[0].outcome;
                });
            }
        }
        if until == Until::Finished {
            self.a.tx.finish(&outcomes);
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send(u16),
    Receive,
    Pass(u64, Until),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let until = prop::sample::select(vec![Until::Received, Until::Delivered]);
    let finished = prop_oneof![3 => any::<u64>(), 1 => Just(0)];
    prop_oneof![
        // Frames of one slot, of a few, of many.
        6 => prop_oneof![60u16..1000, 1000u16..9000, 9000u16..65535].prop_map(Step::Send),
        2 => Just(Step::Receive),
        4 => finished.prop_map(|held| Step::Pass(held, Until::Finished)),
        1 => (any::<u64>(), until).prop_map(|(held, until)| Step::Pass(held, until)),
        1 => Just(Step::Restart),
    ]
}

/// Takes the received frames. Every frame was sent, and is unchanged.
fn take(b: &mut Guest, sent: &[Vec<u8>], came: &mut BTreeMap<usize, u32>) {
    while let Some(got) = receive(&mut b.queues[0]) {
        let number = u32::from_be_bytes(got[14..18].try_into().unwrap()) as usize;
        assert!(got == sent[number], "frame {number} differs");
        *came.entry(number).or_default() += 1;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn every_frame_arrives_wherever_the_backend_is_killed(
        (tx, header_channel) in prop::sample::select(HEADER_SOURCES.to_vec()),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let host = Host::with_channels(1, 1, tx, RxChannel::Copy);
        let [mut a, mut b] = pair(&host, header_channel);
        let mut backend = Backend::restart(&host, &mut a, &mut b);
        let (mut sent, mut came) = (Vec::new(), BTreeMap::new());
        let mut finished = true;
        for step in steps {
            match step {
                Step::Send(len) => {
                    let bytes = frame(B, A, len.into(), u32::try_from(sent.len()).unwrap());
                    if send(&mut a.queues[0], &bytes) {
                        sent.push(bytes);
                    }
                }
                Step::Receive => take(&mut b, &sent, &mut came),
                Step::Pass(held, until) => {
                    // A pass that does not finish is the backend's last.
                    if !finished {
                        drop(backend);
                        backend = Backend::restart(&host, &mut a, &mut b);
                    }
                    backend.pass(held, until);
                    finished = until == Until::Finished;
                }
                Step::Restart => {
                    drop(backend);
                    backend = Backend::restart(&host, &mut a, &mut b);
                    finished = true;
                }
            }
        }
        drop(backend);
        backend = Backend::restart(&host, &mut a, &mut b);
        for _ in 0..30 {
            backend.pass(0, Until::Finished);
            take(&mut b, &sent, &mut came);
        }
        prop_assert_eq!(came.len(), sent.len(), "frames are lost");
        a.queues[0].tx.reclaim().unwrap();
        prop_assert_eq!(a.queues[0].tx.take_errors(), 0);
        // Every request is answered: all slots of the ring are free.
        let mut more = 0;
        while a.queues[0].tx.send(60, offload::Checksum::Unknown, None).is_ok() {
            more += 1;
        }
        prop_assert_eq!(more, 255);
    }
}

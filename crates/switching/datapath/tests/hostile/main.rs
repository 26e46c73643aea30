//! A hostile guest beside two honest ones, all on one worker.
//!
//! Each test breaks a rule of the protocol; many are the subject of an advisory. Each time the vif
//! is disabled with a reason, or the request answered with an error. The honest guests' traffic
//! arrives complete and in order, and none of it is found in the hostile guest's memory.

#[path = "../common/mod.rs"]
mod common;

mod control;
mod frames;
mod grants;
mod handshake;
mod lateness;
mod metadata;
mod races;
mod raw;
mod receive;
mod rings;

use std::sync::Arc;

use common::{A, ALL, B, Guest, Host, await_any, frame, receive, send, wait_for, wait_until};
use raw::{Hostile, PAGE};
use wire::netif::{TxRequest, status};

/// A secret in the honest guests' frames.
const SECRET: [u8; 16] = *b"between A and B.";

/// The host, two honest guests that the switch knows, and the hostile one.
struct World {
    host: Host,
    a: Guest,
    b: Guest,
    h: Hostile,
    sent: u32,
}

impl World {
    /// With the hostile guest connected, and known to the switch.
    fn new() -> Self {
        let mut world = Self::unconnected();
        world.h.connect(&world.host);
        world.h.memory.write(raw::DATA, 0, &frame(ALL, raw::MAC, 60, 0));
        world.h.send(&[raw::slot_of(0, 0, 60, 0)]);
        assert_eq!(world.h.await_answers(1)[0].status, status::OKAY);
        for guest in [&mut world.a, &mut world.b] {
            await_any(guest);
        }
        world
    }

    /// With a hostile guest that has written nothing yet.
    fn unconnected() -> Self {
        let host = Host::new(1, 4);
        let [mut a, mut b] = host.pair(netfront::Config::default());
        assert!(send(&mut a.queues[0], &frame(ALL, A, 60, 0)));
        await_any(&mut b);
        let h = Hostile::new(&host);
        Self { host, a, b, h, sent: 0 }
    }

    /// Sends frames both ways between A and B: all arrive, in order, and only there.
    fn traffic_flows(&mut self) {
        let Self { a, b, .. } = self;
        let numbers = self.sent..self.sent + 40;
        self.sent += 40;
        carry(a, b, numbers.clone().map(|n| secret(B, A, n)));
        carry(b, a, numbers.map(|n| secret(A, B, n)));
        assert!(!self.h.holds(&SECRET), "the hostile guest has what was not for it");
    }

    /// Waits until the hostile guest's vif has failed, removes it and returns the reason.
    fn disabled(&mut self) -> String {
        let failures = self.host.failures.lock().unwrap();
        let failure = wait_for("the failure", || failures.try_recv().ok());
        drop(failures);
        assert!(Arc::ptr_eq(&failure.port, self.h.port.as_ref().unwrap()));
        self.traffic_flows();
        self.h.detach(&self.host);
        self.traffic_flows();
        failure.reason
    }

    /// No vif has failed.
    fn all_live(&mut self) {
        self.traffic_flows();
        let failure = self.host.failures.lock().unwrap().try_recv();
        assert!(failure.is_err(), "{failure:?}");
    }

    /// The packet of these slots gets this answer, and a valid one after it is sent.
    fn answered(&mut self, slots: &[TxRequest], wanted: i16) {
        self.h.send(slots);
        for answer in self.h.await_answers(slots.len()) {
            assert!([wanted, status::NULL].contains(&answer.status), "{answer:?}: {slots:?}");
        }
        let sound = frame(B, raw::MAC, 60, 7);
        self.h.memory.write(raw::DATA + 255, 0, &sound);
        self.h.send(&[raw::slot_of(255, 0, 60, 0)]);
        assert_eq!(self.h.await_answers(1)[0].status, status::OKAY);
        await_frame(&mut self.b, &sound);
        self.all_live();
    }
}

/// A frame that only its sender and receiver may see.
fn secret(dst: [u8; 6], src: [u8; 6], n: u32) -> Vec<u8> {
    let mut bytes = frame(dst, src, 300, n);
    bytes[32..48].copy_from_slice(&SECRET);
    bytes[200..216].copy_from_slice(&SECRET);
    bytes
}

/// Sends frames, and checks that they are the next ones at the other end.
fn carry(from: &mut Guest, to: &mut Guest, frames: impl Iterator<Item = Vec<u8>> + Clone) {
    for bytes in frames.clone() {
        wait_until("room on the ring", || send(&mut from.queues[0], &bytes));
    }
    for bytes in frames {
        let got = wait_for("the frame", || {
            receive(&mut to.queues[0]).filter(|got| got.get(32..48) == Some(&SECRET[..]))
        });
        assert!(got == bytes, "another frame arrived");
    }
}

/// Waits for exactly this frame, and skips others.
fn await_frame(guest: &mut Guest, bytes: &[u8]) {
    wait_until("the frame", || receive(&mut guest.queues[0]).is_some_and(|got| got == bytes));
}

#[test]
fn a_secret_is_found_wherever_it_lies() {
    let world = World::unconnected();
    // Within a page, at its ends, and in two pages.
    for offset in [0, 5, PAGE - SECRET.len(), PAGE - 5] {
        assert!(!world.h.holds(&SECRET));
        world.h.memory.write(raw::DATA, offset, &SECRET);
        assert!(world.h.holds(&SECRET), "at {offset}");
        world.h.memory.write(raw::DATA, offset, &[0; SECRET.len()]);
    }
}

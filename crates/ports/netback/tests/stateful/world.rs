//! Two honest guests and a hostile one behind one switch, and the steps of an input.

use std::collections::VecDeque;
use std::time::Duration;

use machine::Machine;
use port::{DropReason, Ingress, Outcome, Task, WINDOW};
use port_testing::{offer, receive, with_body};

use crate::common::tampered::Tampered;
use crate::friend::{Backend, Friend, SECRET};
use crate::hostile::{Hostile, Write};

/// The time from one pass to the next.
const PASS: Duration = Duration::from_millis(20);
/// Passes in which an honest frame must arrive: more than a stalled receiver is waited for.
const PASSES: u32 = 40;
/// Steps of a control ring in one pass.
const SERVED: u32 = 64;
/// The hostile guest's port; those of the honest guests come before it.
const HOSTILE: usize = 2;
/// The hostile guest's address, and everybody's.
const HOSTILE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x66];
const ALL: [u8; 6] = [0xff; 6];

/// One thing that happens.
enum Step {
    /// The hostile guest writes at once.
    Now(Write),
    /// It writes between two checks of a backend, in the next pass.
    Meanwhile(Write),
    /// An honest guest sends a frame.
    Send { from: u8, to: u8, len: u16 },
    /// The toolstack says whether the hostile guest's interface is to stay.
    Online(bool),
    /// The daemon is killed, and another one starts.
    Restart,
    /// A worker takes and delivers the frames of a port, and the daemon is killed before it answers.
    Killed { port: u8 },
    /// The workers serve every port once.
    Pass,
}

/// Everything, from one input to the next.
pub struct World {
    hypervisor: Tampered,
    friends: [Friend; 2],
    /// None only while the daemon is dead.
    backends: [Option<Backend>; 2],
    hostile: Hostile,
    meanwhile: VecDeque<Write>,
    now: Duration,
}

impl World {
    pub fn new() -> Self {
        let machine = Machine::new();
        let hypervisor = Tampered::new(&machine);
        let hostile = Hostile::new(&machine, &hypervisor);
        let [(a, of_a), (b, of_b)] = [1, 2].map(|n| Friend::new(&machine, &hypervisor, n));
        let (friends, backends) = ([a, b], [Some(of_a), Some(of_b)]);
        let (meanwhile, now) = (VecDeque::new(), Duration::ZERO);
        Self { hypervisor, friends, backends, hostile, meanwhile, now }
    }

    /// Lives through an input: a byte of options, then steps.
    ///
    /// # Panics
    /// Something that must hold for any input does not.
    pub fn run(&mut self, mut input: &[u8]) {
        let Some([options]) = take(&mut input) else { return };
        self.hostile.start_over(options & 1 != 0, options & 2 != 0);
        while let Some(step) = step(&mut input) {
            self.perform(step);
        }
        self.pass();
        self.meanwhile.clear();
        self.check();
    }

    fn perform(&mut self, step: Step) {
        match step {
            Step::Now(write) => {
                self.hostile.inside.write(&write);
                if matches!(write, Write::Key { .. } | Write::State(_)) {
                    self.hostile.drive();
                }
            }
            Step::Meanwhile(write) => self.meanwhile.push_back(write),
            Step::Send { from, to, len } => {
                let from = usize::from(from % 2);
                let other = self.friends[1 - from].mac();
                let (to, is_secret) =
                    [(other, true), (HOSTILE_MAC, false), (ALL, false)][usize::from(to % 3)];
                self.friends[from].send(to, len, is_secret);
            }
            Step::Online(is_online) => {
                self.hostile.set_online(is_online);
                self.hostile.drive();
            }
            Step::Restart => self.restart(),
            Step::Killed { port } => {
                self.serve(usize::from(port) % 3, false);
                self.restart();
            }
            Step::Pass => self.pass(),
        }
    }

    fn restart(&mut self) {
        self.friends.iter_mut().for_each(Friend::expect_copies);
        for (friend, backend) in self.friends.iter_mut().zip(&mut self.backends) {
            *backend = None;
            *backend = Some(friend.restart());
        }
        self.hostile.restart();
        self.hostile.drive();
    }

    /// Every port has its turn once. Meanwhile the hostile guest writes.
    fn pass(&mut self) {
        self.now += PASS;
        let (inside, mut writes) =
            (self.hostile.inside.clone(), std::mem::take(&mut self.meanwhile));
        self.hypervisor.set(move || {
            if let Some(write) = writes.pop_front() {
                inside.write(&write);
            }
        });
        for port in 0..3 {
            self.serve(port, true);
        }
        self.hypervisor.set(|| ());
        self.hostile.drive();
    }

    fn backend(&mut self, port: usize) -> Option<&mut Backend> {
        match port {
            HOSTILE => self.hostile.backend.as_mut(),
            _ => self.backends[port].as_mut(),
        }
    }

    /// A port's turn: its control ring, its frames, and the answers unless the daemon is killed first.
    fn serve(&mut self, port: usize, answers: bool) {
        let Some(backend) = self.backend(port) else { return };
        let control = backend.control.as_mut();
        let served = control
            .map_or(Ok(()), |control| (0..SERVED).try_for_each(|_| control.step().map(drop)));
        let taken = served.and_then(|()| receive(&mut backend.queue.tx).map(drop));
        if let Err(error) = taken {
            return self.broken(port, &error.0);
        }
        let mut outcomes = [Outcome::Waiting; WINDOW];
        let order: Vec<u8> = backend.queue.tx.window().order().to_vec();
        for slot in order {
            outcomes[usize::from(slot)] = self.forward(port, slot);
        }
        let Some(backend) = self.backend(port).filter(|_| answers) else { return };
        backend.queue.tx.finish(&outcomes);
        if let Err(error) = backend.queue.tx.arm() {
            self.broken(port, &error.0);
        }
    }

    /// Offers a frame in the window of port `from` to those that it is for.
    fn forward(&mut self, from: usize, slot: u8) -> Outcome {
        let now = self.now;
        let Some(sender) = self.backend(from) else {
            return Outcome::Dropped(DropReason::PortGone);
        };
        let destination = sender.queue.tx.window().frame(slot).destination().0;
        let mut outcome = Outcome::Dropped(DropReason::NotForwarded);
        for to in (0..3).filter(|to| *to != from) {
            let mac = self.friends.get(to).map_or(HOSTILE_MAC, Friend::mac);
            if destination != mac && destination != ALL {
                continue;
            }
            let delivered = {
                let (sender, receiver) = match self.pair(from, to) {
                    Some(pair) => pair,
                    None => continue,
                };
                let frame = sender.queue.tx.window().frame(slot);
                with_body(&sender.queue.tx, |body| offer(&mut receiver.queue.rx, body, frame, now))
            };
            match delivered {
                Ok(delivered) => outcome = delivered,
                Err(error) => self.broken(to, &error.0),
            }
            self.take_frames(to);
        }
        match (outcome, destination == ALL) {
            // Flooded frames do not wait.
            (Outcome::Waiting, true) => Outcome::Dropped(DropReason::NoRoom),
            (outcome, _) => outcome,
        }
    }

    /// The backends of two ports.
    fn pair(&mut self, from: usize, to: usize) -> Option<(&mut Backend, &mut Backend)> {
        let [a, b] = &mut self.backends;
        let hostile = self.hostile.backend.as_mut();
        Some(match (from, to) {
            (0, 1) => (a.as_mut()?, b.as_mut()?),
            (1, 0) => (b.as_mut()?, a.as_mut()?),
            (0, _) => (a.as_mut()?, hostile?),
            (1, _) => (b.as_mut()?, hostile?),
            (_, 0) => (hostile?, a.as_mut()?),
            _ => (hostile?, b.as_mut()?),
        })
    }

    /// An honest guest takes its frames.
    fn take_frames(&mut self, port: usize) {
        let Some(friend) = self.friends.get_mut(port) else { return };
        for bytes in friend.receive() {
            if bytes.get(14..30) == Some(&SECRET) {
                self.friends[1 - port].arrived(&bytes);
            }
        }
    }

    /// A port's queue broke: of the hostile guest only.
    fn broken(&mut self, port: usize, reason: &str) {
        assert_eq!(port, HOSTILE, "an honest guest's queue broke: {reason}");
        self.hostile.disable();
    }

    /// What must hold after any input.
    fn check(&mut self) {
        self.hostile.inside.check();
        for from in [0, 1] {
            let to = self.friends[1 - from].mac();
            let mut passes = 0;
            while passes == 0 || !self.friends[from].last_arrived() {
                if passes == 0 {
                    self.friends[from].send(to, 200, true);
                }
                self.pass();
                passes += 1;
                assert!(passes < PASSES, "honest guests cannot talk");
            }
        }
        self.friends.iter().for_each(Friend::check);
        self.hostile.inside.check();
        self.hostile.backend = None;
        self.hostile.check_unmapped();
    }
}

/// Takes a step off the input. The tag's high bit puts a write off until a backend reads.
fn step(input: &mut &[u8]) -> Option<Step> {
    let [tag] = take(input)?;
    let write = match tag & 0x7f {
        0..12 => {
            let [to, page] = take(input)?;
            let to = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], ALL][usize::from(to % 3)];
            Write::Frame { to, page, size: u16::from_le_bytes(take(input)?) % 4200 }
        }
        12..20 => Write::Buffers(take::<1>(input)?[0]),
        20..28 => {
            let [kind] = take(input)?;
            Write::Ask { kind, entries: u16::from_le_bytes(take(input)?) % 600 }
        }
        28..36 => {
            let [ring, index, gref] = take(input)?;
            Write::Slot { ring, index, gref, rest: take(input)? }
        }
        36..42 => {
            let [first, count] = take(input)?;
            let entries = (0..count % 40).map(|_| take(input)).collect::<Option<_>>()?;
            Write::List { first, entries }
        }
        42..48 => {
            let [gref] = take(input)?;
            Write::Grant { gref, entry: take(input)? }
        }
        48..54 => {
            let [page, len] = take(input)?;
            let offset = u16::from_le_bytes(take(input)?);
            let (bytes, rest) = input.split_at_checked(len.into())?;
            *input = rest;
            Write::Bytes { page, offset, bytes: bytes.to_vec() }
        }
        54..64 => {
            let [ring] = take(input)?;
            Write::ReqProd { ring, ahead: u16::from_le_bytes(take(input)?) % 300 }
        }
        64..68 => {
            let [ring, at] = take(input)?;
            Write::Index { ring, at, value: take(input)? }
        }
        68..74 => {
            let [key] = take(input)?;
            Write::Key { key, value: u16::from_le_bytes(take(input)?) }
        }
        74..78 => Write::State(take::<1>(input)?[0] % 12),
        78..94 => {
            let [from, to] = take(input)?;
            return Some(Step::Send { from, to, len: u16::from_le_bytes(take(input)?) });
        }
        94..97 => return Some(Step::Restart),
        97 => return Some(Step::Online(take::<1>(input)?[0] % 8 > 0)),
        98..101 => return Some(Step::Killed { port: take::<1>(input)?[0] }),
        _ => return Some(Step::Pass),
    };
    Some(if tag & 0x80 == 0 { Step::Now(write) } else { Step::Meanwhile(write) })
}

fn take<const N: usize>(input: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = input.split_first_chunk()?;
    *input = rest;
    Some(*taken)
}

//! A control ring of a hostile guest.

use std::sync::atomic::{AtomicBool, Ordering};

use hypervisor::{EventChannel, Guest};
use machine::{DRIVER_DOMAIN, GuestEvent};
use netfront::HashConfig;
use wire::netif::{CtrlMessage, CtrlRequest, GrefMapping};
use xenstore::XenbusState;
use zerocopy::IntoBytes;

use crate::common::{Host, frame, receive, send, wait_until};
use crate::races::while_doing;
use crate::raw::{self, BUFFERS, DATA, Memory, RING, slot_of};
use crate::{A, ALL, B, World, await_frame};

/// Pages of the ring and of a list.
const CTRL_RING: u32 = 1002;
const LIST: u32 = 1003;
const SLOT: usize = 16;
const SLOTS: u32 = 128;

/// Raw access to the control ring.
struct Control {
    memory: Memory,
    event: GuestEvent,
    asked: u32,
}

impl Control {
    /// Puts a request on the ring, unchecked.
    fn put(&mut self, request: CtrlRequest) {
        let slot = 64 + (self.asked % SLOTS) as usize * SLOT;
        self.memory.write(CTRL_RING, slot, request.as_bytes());
        self.asked += 1;
        self.memory.set_req_prod(CTRL_RING, self.asked);
        self.event.notify().unwrap();
    }

    fn answered(&self) -> u32 {
        self.memory.rsp_prod(CTRL_RING)
    }

    fn write_list(&self, grefs: impl Iterator<Item = u32>) -> u32 {
        let list: Vec<_> = grefs.map(|gref| GrefMapping { gref, flags: 0, status: 0 }).collect();
        self.memory.write(LIST, 0, list.as_bytes());
        u32::try_from(list.len()).unwrap()
    }
}

impl World {
    /// With a hostile guest that has a control ring.
    fn with_control() -> (Self, Control) {
        let mut world = Self::unconnected();
        let control = world.prepare_control();
        world.h.connect_prepared(&world.host);
        world.h.memory.write(DATA, 0, &frame(B, raw::MAC, 60, 0));
        world.h.send(&[slot_of(0, 0, 60, 0)]);
        assert_eq!(world.h.await_answers(1)[0].status, 0);
        (world, control)
    }

    fn prepare_control(&mut self) -> Control {
        self.h.prepare();
        let memory = self.h.memory.clone();
        memory.write(CTRL_RING, 0, &[0; 4096]);
        memory.write(CTRL_RING, 4, &1u32.to_le_bytes());
        memory.write(CTRL_RING, 12, &1u32.to_le_bytes());
        memory.grant_own(CTRL_RING);
        memory.grant_own(LIST);
        let (event, port) = self.h.inside.alloc_unbound(DRIVER_DOMAIN).unwrap();
        self.h.key("ctrl-ring-ref", &CTRL_RING.to_string());
        self.h.key("event-channel-ctrl", &port.to_string());
        Control { memory, event, asked: 0 }
    }
}

#[test]
fn a_flood_of_messages_does_not_delay_others() {
    let (mut world, mut control) = World::with_control();
    let entries = control.write_list(DATA..BUFFERS + RING);
    let ended = AtomicBool::new(false);
    let flood = |control: &mut Control| {
        let mut n = 0u16;
        while !ended.load(Ordering::Relaxed) {
            if control.asked - control.answered() == SLOTS {
                continue;
            }
            let message = match n % 6 {
                0 => CtrlMessage::AddGrefMapping { queue: 0, gref: LIST, entries },
                1 => CtrlMessage::DelGrefMapping { queue: 0, gref: LIST, entries },
                2 => CtrlMessage::SetHashAlgorithm { algorithm: 1 },
                3 => CtrlMessage::SetHashFlags { flags: 0xf },
                // Each key is expanded anew.
                4 => CtrlMessage::SetHashKey { gref: LIST, len: 40 },
                _ => CtrlMessage::GetHashFlags,
            };
            control.put(message.request(n));
            n = n.wrapping_add(1);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| flood(&mut control));
        for _ in 0..10 {
            world.all_live();
        }
        ended.store(true, Ordering::Relaxed);
    });
    wait_until("an answer", || control.answered() > 0);
    world.h.detach(&world.host);
}

#[test]
fn a_table_that_changes_all_the_time_loses_and_doubles_no_frame() {
    let host = Host::new(2, 4);
    let mut a = host.guest("02:00:00:00:00:0a", netfront::Config::default());
    let config = netfront::Config { queues: 4, hash: true, ..netfront::Config::default() };
    let mut b = host.guest("02:00:00:00:00:0b", config);
    let mut c = host.guest("02:00:00:00:00:0c", netfront::Config::default());
    assert!(send(&mut b.queues[0], &frame(ALL, B, 60, 0)));
    for guest in [&mut a, &mut c] {
        wait_until("the broadcast", || receive(&mut guest.queues[0]).is_some());
    }
    let (frontend, queues) = (&mut b.frontend, &mut b.queues);
    let control = frontend.control().unwrap();
    let mut turn = 0;
    let change = || {
        turn += 1;
        let mapping = (0..128).map(|n| (n + turn) % 4).collect();
        control.set_hash(&HashConfig { mapping, ..HashConfig::over(4) }).unwrap();
    };
    let packet = |to: [u8; 6], n: u32| {
        let mut bytes = frame(to, A, 90, n);
        bytes[12..14].copy_from_slice(&[8, 0]);
        bytes[14..34]
            .copy_from_slice(&[0x45, 0, 0, 76, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes[29] = n.to_le_bytes()[0];
        bytes
    };
    while_doing(change, || {
        for round in 0..200 {
            // To one guest, and to all.
            let sent: Vec<_> = (round * 20..round * 20 + 20)
                .map(|n| packet(if n % 20 < 15 { B } else { ALL }, n))
                .collect();
            for bytes in &sent {
                wait_until("room", || send(&mut a.queues[0], bytes));
            }
            let mut arrived = Vec::new();
            wait_until("every frame", || {
                queues.iter_mut().for_each(|queue| arrived.extend(receive(queue)));
                arrived.len() >= sent.len()
            });
            arrived.sort_unstable();
            let mut expected = sent.clone();
            expected.sort_unstable();
            assert!(arrived == expected, "round {round}");
            for bytes in sent.iter().filter(|bytes| bytes[..6] == ALL) {
                await_frame(&mut c, bytes);
            }
        }
    });
    assert!(queues.iter_mut().all(|queue| receive(queue).is_none()), "a frame came twice");
}

#[test]
fn half_a_control_ring_does_not_connect() {
    let mut world = World::unconnected();
    let not_granted = (DATA + 3000).to_string();
    for (key, value) in [
        ("event-channel-ctrl", None),
        ("event-channel-ctrl", Some("77")),
        ("event-channel-ctrl", Some("many")),
        ("ctrl-ring-ref", Some(not_granted.as_str())),
        ("ctrl-ring-ref", Some("4294967295")),
    ] {
        let _control = world.prepare_control();
        match value {
            Some(value) => world.h.key(key, value),
            None => world.h.remove_key(key),
        }
        world.h.enter(XenbusState::Connected);
        assert!(world.h.drive(&world.host).is_err(), "{key} = {value:?}");
        assert!(world.h.port.is_none());
        world.h.enter(XenbusState::Initialising);
        world.h.drive(&world.host).unwrap();
    }
    // The ring of an earlier driver is not used for a driver that offers none.
    world.h.connect(&world.host);
    world.all_live();
    world.h.detach(&world.host);
    world.honest_driver_connects();
}

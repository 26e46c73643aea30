//! A frontend that writes wrong values into the store.

use hypervisor::EventChannel;
use machine::toolstack;
use netfront::{Config, Frontend};
use xenstore::XenbusState;

use crate::World;
use crate::common::{frame, receive, send, wait_until};
use crate::{A, ALL};

impl World {
    /// Connects like a normal driver after an attack. Frames must flow.
    pub fn honest_driver_connects(&mut self) {
        let (guest, store) = (self.h.inside.clone(), self.h.store.clone());
        let connecting = std::thread::spawn(move || {
            let device = toolstack::device_path(0);
            Frontend::connect(&guest, store, &device, &Config::default())
        });
        wait_until("the driver's connection", || {
            self.h.drive(&self.host).unwrap();
            connecting.is_finished()
        });
        let (mut frontend, mut queues) = connecting.join().unwrap().unwrap();
        wait_until("room", || send(&mut self.a.queues[0], &frame(ALL, A, 60, 5)));
        wait_until("the broadcast", || receive(&mut queues[0]).is_some());
        wait_until("the broadcast", || receive(&mut self.b.queues[0]).is_some());
        let leaving = std::thread::spawn(move || {
            frontend.close(Config::default().timeout).unwrap();
            drop(queues);
        });
        wait_until("the driver's end", || {
            self.h.drive(&self.host).unwrap();
            leaving.is_finished()
        });
        leaving.join().unwrap();
    }

    /// Tries to connect with `key` set to `value`. Then an honest driver connects.
    fn connects_with(&mut self, key: &str, value: &str) -> bool {
        self.h.enter(XenbusState::Initialising);
        self.h.drive(&self.host).unwrap();
        self.h.prepare();
        self.h.key(key, value);
        self.h.enter(XenbusState::Connected);
        let connected = self.h.drive(&self.host).is_ok();
        assert_eq!(connected, self.h.port.is_some(), "{key}={value}");
        // The value was harmless.
        if connected {
            self.h.event.as_ref().unwrap().notify().unwrap();
        }
        self.h.detach(&self.host);
        connected
    }
}

#[test]
fn queues_that_were_not_offered_do_not_connect_cve_2026_45890() {
    let mut world = World::unconnected();
    for asked in ["0", "5", "65536", "4294967295"] {
        world.h.enter(XenbusState::Initialising);
        world.h.drive(&world.host).unwrap();
        world.h.prepare();
        world.h.key("multi-queue-num-queues", asked);
        world.h.enter(XenbusState::Connected);
        let refused = world.h.drive(&world.host).unwrap_err().to_string();
        assert!(refused.contains("1 to 4 are offered"), "{asked}: {refused}");
    }
    // As many queues as offered, but without their keys.
    assert!(!world.connects_with("multi-queue-num-queues", "4"));
    world.honest_driver_connects();
    world.traffic_flows();
}

#[test]
fn keys_that_are_nonsense_harm_their_owner_only() {
    const NONSENSE: [&str; 8] =
        ["", "-1", "4294967296", "99999999999999999999999", "0x3e8", "1e3", "ñ", "1000\n1001"];
    let mut world = World::unconnected();
    for key in ["tx-ring-ref", "rx-ring-ref", "event-channel", "request-rx-copy"] {
        for value in NONSENSE {
            assert!(!world.connects_with(key, value), "{key}={value}");
        }
    }
    // A feature whose value is not a number counts as missing.
    for key in ["feature-sg", "feature-gso-tcpv4", "multi-queue-num-queues", "trusted", "mtu"] {
        for value in NONSENSE {
            assert!(world.connects_with(key, value), "{key}={value}");
        }
    }
    // Numbers without meaning.
    for (key, value) in [("event-channel", "0"), ("event-channel", "77"), ("request-rx-copy", "0")]
    {
        assert!(!world.connects_with(key, value), "{key}={value}");
    }
    world.honest_driver_connects();
    world.traffic_flows();
}

#[test]
fn an_event_channel_is_bound_once_at_a_time() {
    let mut world = World::new();
    let bound = world.h.store.read(None, "device/vif/0/event-channel").unwrap();
    let _kept = world.h.event.take();
    world.h.detach(&world.host);
    // The same channel as both of two channels.
    world.h.enter(XenbusState::Initialising);
    world.h.drive(&world.host).unwrap();
    world.h.prepare();
    world.h.key("event-channel-tx", &bound);
    world.h.key("event-channel-rx", &bound);
    world.h.enter(XenbusState::Connected);
    assert!(world.h.drive(&world.host).is_err());
    // The other keys are still valid.
    assert!(world.connects_with("event-channel", &bound));
    world.honest_driver_connects();
}

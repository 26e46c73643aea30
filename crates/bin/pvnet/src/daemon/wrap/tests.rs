//! Tests of the wrappers of a port.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use control_socket::PortKind;
use guard::Policy;
use limit::{Limit, LimitedPackets, Rates};
use port::{DropReason, Outcome};
use port_testing::{FakeEgress, Sender};
use wire::ethernet::MacAddr;

use super::*;

/// Rules of a port that may do everything.
fn free() -> Rules {
    Rules {
        guard: None,
        limits: Limits::default(),
        enabled: true,
        membership: None,
        flooding: Flooding::default(),
        gro: true,
        workers: datapath::Workers::Any,
    }
}

fn described(guard: Option<Policy>, limits: &Limits) -> PortStatus {
    let rules = Rules { guard, limits: *limits, ..free() };
    let wrappers = Wrappers::new("red", rules, false);
    wrappers.describe(PortStatus::new("red", PortKind::Guest, PortState::Up), true)
}

#[test]
fn a_port_says_how_it_is_guarded() {
    let guard = |policy| described(policy, &Limits::default()).guard;
    let mac = MacAddr([2, 0, 0, 0, 0, 1]);
    assert_eq!(guard(None), Some(GuardStatus::Off));
    assert_eq!(guard(Some(Policy { mac, addresses: None })), Some(GuardStatus::Mac));
    let texts = ["10.77.0.1", "fd00:77::/64"];
    let addresses = texts.map(|text| text.parse().unwrap()).to_vec();
    let addresses = guard(Some(Policy { mac, addresses: Some(addresses) }));
    let texts = texts.map(str::to_owned).to_vec();
    assert_eq!(addresses, Some(GuardStatus::Addresses { addresses: texts }));
    let wrappers = Wrappers::new("up", free(), false);
    let status = PortStatus::new("up", PortKind::Uplink, PortState::Up);
    assert_eq!(wrappers.describe(status, false).guard, None);
}

#[test]
fn a_port_that_was_set_down_says_so() {
    let rules = Rules { enabled: false, ..free() };
    let wrappers = Wrappers::new("red", rules, false);
    let status = PortStatus::new("red", PortKind::Guest, PortState::Up);
    let PortStatus { state, reason, .. } = wrappers.describe(status, true);
    assert_eq!((state, reason), (PortState::Down, Some(Reason::SetDown)));
}

#[test]
fn a_port_says_what_it_may_carry() {
    assert_eq!(described(None, &Limits::default()).limit, None);
    let ingress = Limit::new(Some(125_000), Some(7));
    for (egress, packets) in [(Limit::default(), None), (Limit::new(None, Some(9)), Some(9))] {
        let limit = described(None, &Limits { ingress, egress }).limit;
        let egress = packets.map(|n| Rates { bytes_per_second: None, packets_per_second: Some(n) });
        let ingress = Some(Rates { bytes_per_second: Some(125_000), packets_per_second: Some(7) });
        let packets = LimitedPackets::default();
        assert_eq!(limit, Some(LimitStatus { ingress, egress, packets }));
    }
}

const RED: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const BLUE: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

/// Two ports, and what came out of the second one.
struct Bed {
    datapath: Datapath,
    sender: Sender,
    red: Arc<Port>,
    wrappers: Wrappers,
    arrived: Arc<AtomicUsize>,
}

impl Bed {
    fn new(rules: Rules) -> Self {
        let config = datapath::Config { workers: 1, ..datapath::Config::default() };
        let datapath = Datapath::start(&config, Box::new(|_| ())).unwrap();
        let arrived = Arc::<AtomicUsize>::default();
        let count = arrived.clone();
        let blue = FakeEgress::new(move |_, _| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(Outcome::Delivered)
        });
        let blue = Queue { ingress: Sender::new().1, egress: Box::new(blue) };
        let blue = datapath.attach("blue", vec![blue], Vec::new());
        datapath.teach(blue.id(), BLUE).unwrap();
        let (sender, ingress) = Sender::new();
        let egress = Box::new(FakeEgress::new(|_, _| Ok(Outcome::Delivered)));
        let wrappers = Wrappers::new("red", rules, true);
        let queue = wrappers.wrap(Queue { ingress, egress });
        let red = datapath.attach("red", vec![queue], Vec::new());
        Self { datapath, sender, red, wrappers, arrived }
    }

    fn set(&mut self, rules: Rules) {
        self.wrappers.set(rules, &self.datapath, Some(&self.red));
    }

    /// Sends frames with this source, and returns how many arrive. All are answered by then.
    fn send(&self, frames: usize, source: MacAddr) -> usize {
        let before = [self.sender.answers().len(), self.arrived.load(Ordering::Relaxed)];
        for _ in 0..frames {
            self.sender.send([&BLUE.0[..], &source.0, &[0x88, 0xb5]].concat());
        }
        let start = Instant::now();
        while self.sender.answers().len() < before[0] + frames {
            assert!(start.elapsed() < Duration::from_secs(20), "frames are late");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.arrived.load(Ordering::Relaxed) - before[1]
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.red.counters().snapshot().dropped(reason)
    }
}

#[test]
fn rules_change_while_the_port_is_in_use() {
    let free = free();
    let mut bed = Bed::new(free.clone());
    assert_eq!(bed.send(10, RED), 10);
    bed.set(Rules { enabled: false, ..free.clone() });
    assert_eq!((bed.send(10, RED), bed.dropped(DropReason::SetDown)), (0, 10));
    let guard = Some(Policy { mac: BLUE, addresses: None });
    bed.set(Rules { guard, ..free.clone() });
    assert_eq!((bed.send(10, RED), bed.dropped(DropReason::SpoofedMac)), (0, 10));
    let capture = bed.wrappers.capture(&Options::default()).unwrap();
    bed.wrappers.refresh(&bed.datapath, Some(&bed.red));
    bed.set(free.clone());
    assert_eq!(bed.send(10, RED), 10);
    assert_eq!(bed.dropped(DropReason::SetDown) + bed.dropped(DropReason::SpoofedMac), 20);
    // It still has the wrapper of the capture, once, which goes in the end.
    drop(capture);
    bed.wrappers.refresh(&bed.datapath, Some(&bed.red));
    assert_eq!(bed.send(10, RED), 10);
    bed.wrappers.allow_capture(false, &bed.datapath, Some(&bed.red));
    assert!(bed.wrappers.capture(&Options::default()).is_err());
    assert_eq!(bed.send(10, RED), 10);
}

#[test]
fn a_sender_that_waits_for_its_rate_goes_on_when_the_limit_goes() {
    let limited = |packets| {
        let ingress = Limit { burst_packets: 4, ..Limit::new(None, Some(packets)) };
        let limits = Limits { ingress, egress: Limit::default() };
        Rules { limits, ..free() }
    };
    let mut bed = Bed::new(limited(1));
    // A frame per second: it would take minutes.
    for _ in 0..200 {
        bed.sender.send([&BLUE.0[..], &RED.0, &[0x88, 0xb5]].concat());
    }
    while bed.arrived.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    bed.set(limited(1_000_000));
    let start = Instant::now();
    while bed.arrived.load(Ordering::Relaxed) < 200 {
        assert!(start.elapsed() < Duration::from_secs(20), "frames are late");
        std::thread::sleep(Duration::from_millis(1));
    }
}

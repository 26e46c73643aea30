//! Paths between a guest and the wire of a NIC, by each kind of uplink.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hypervisor::Meter;
use netfront::Received;
use offload::Features;
use port::Queue;
use uplink::tap::{TapOffload, TapQueue};
use uplink::{BufferOptions, Buffers, Macvtap, TapEgress, TapIngress, XdpNic, XdpNicWatch, packet};

use super::host::{Host, Interface, Joined};
use super::netif::{Sender, receive};
use super::uplinks::{STATION, Station, no_ipv6};
use super::window::{Counts, Path, Sample, Size, batch, carry};
use crate::bench::guest::text;
use crate::bench::nic::{CardProtection, Machine, To};

named::named! {
    /// A kind of uplink over a NIC.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum NicKind {
        Packet => "af-packet",
        Macvtap => "macvtap",
        Xdp => "af-xdp",
    }
}

impl NicKind {
    /// The two ends of the wire.
    const fn ends(self) -> [&'static str; 2] {
        match self {
            Self::Packet => ["nicp0", "nicp1"],
            Self::Macvtap => ["nicm0", "nicm1"],
            Self::Xdp => ["nicx0", "nicx1"],
        }
    }
}

/// Which way frames go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the wire to a guest.
    In,
    /// From a guest to the wire.
    Out,
}

/// A guest, an uplink over a NIC, and a wire.
pub struct NicPath {
    host: Host,
    port: Arc<datapath::Port>,
    size: Size,
    ends: Ends,
    _watch: Option<XdpNicWatch>,
}

/// The two ends by direction.
enum Ends {
    In(Box<Receiver>),
    Out(Box<Sender>),
}

/// A station on the wire that sends, and a guest that receives.
struct Receiver {
    station: Station,
    guest: Joined,
    frame: Received,
    len: usize,
}

/// The time that frames took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// In all.
    pub total: Duration,
    /// The worker's part, including the kernel's work in its system calls.
    pub worker: Duration,
}

impl NicPath {
    /// Makes a NIC, which is one end of a veth pair, and connects all.
    pub fn new(kind: NicKind, direction: Direction, size: Size) -> Result<Self, String> {
        let mut host = Host::new()?;
        wire(kind)?;
        let (queues, watch) = queues(kind, &host.meter())?;
        let port = host.datapath.attach("uplink", queues, Vec::new());
        host.datapath.teach(port.id(), STATION).map_err(text)?;
        let guest = host.join(1, Interface::default())?;
        let ends = match direction {
            Direction::Out => {
                let sample = Sample::new(guest.guest.mac, STATION, size);
                Ends::Out(Box::new(Sender::new(guest, &sample, size)?))
            }
            Direction::In => {
                let sample = Sample::new(STATION, guest.guest.mac, size);
                let station = Station::behind(kind.ends()[1], &sample)?;
                let (frame, len) = (Received::default(), sample.bytes.len());
                Ends::In(Box::new(Receiver { station, guest, frame, len }))
            }
        };
        Ok(Self { host, port, size, ends, _watch: watch })
    }

    /// Carries `frames` frames.
    pub fn carry(&mut self, frames: u64) -> Result<Times, String> {
        let mut times = Times::default();
        let mut left = frames;
        while left > 0 {
            let now = left.min(batch(self.size));
            let turn = self.turn(now)?;
            times.total += turn.total;
            times.worker += turn.worker;
            left -= now;
        }
        Ok(times)
    }

    fn turn(&mut self, frames: u64) -> Result<Times, String> {
        let Self { host, port, ends, .. } = self;
        let carried = |port: &datapath::Port| port.counters().snapshot().egress_frames;
        let before = carried(port);
        let start = Instant::now();
        match ends {
            Ends::Out(sender) => sender.send(frames)?,
            Ends::In(receiver) => (0..frames).try_for_each(|_| receiver.station.send())?,
        }
        let begin = Instant::now();
        host.work()?;
        let worker = begin.elapsed();
        let arrived = match ends {
            Ends::Out(_) => carried(port) - before,
            Ends::In(receiver) => {
                let Receiver { guest, frame, len, .. } = &mut **receiver;
                receive(&mut guest.guest, frame, *len)?
            }
        };
        if arrived != frames {
            return Err(format!("{arrived} of {frames} frames arrived"));
        }
        Ok(Times { total: start.elapsed(), worker })
    }
}

/// Makes the NIC and its wire. The far end finishes checksums, as on a real wire.
fn wire(kind: NicKind) -> Result<(), String> {
    let [near, far] = kind.ends();
    let run = |program: &str, arguments: &str| {
        let mut command = lab::command(program).map_err(text)?;
        command.args(arguments.split(' '));
        lab::run(command, LIMIT).map(drop).map_err(text)
    };
    // Remove the interface of an earlier path of this kind.
    let _ = run("ip", &format!("link delete {near}"));
    run("ip", &format!("link add {near} type veth peer name {far}"))?;
    run("ethtool", &format!("-K {far} tx off"))?;
    for end in [near, far] {
        no_ipv6(end)?;
        run("ip", &format!("link set {end} up"))?;
    }
    if kind == NicKind::Macvtap {
        let add = format!("link add link {near} name {MACVTAP} type macvtap mode passthru");
        run("ip", &add)?;
        no_ipv6(MACVTAP)?;
        run("ip", &format!("link set {MACVTAP} up"))?;
    }
    Ok(())
}

const MACVTAP: &str = "nicmv";
const LIMIT: Duration = Duration::from_secs(20);

/// The NIC's queues, as the daemon has them.
fn queues(kind: NicKind, meter: &Arc<Meter>) -> Result<(Vec<Queue>, Option<XdpNicWatch>), String> {
    let [near, _] = kind.ends();
    let of_taps = |taps: Vec<TapQueue>| -> Result<_, String> {
        let queues = taps.into_iter().map(|tap| of_tap(tap, meter));
        Ok((queues.collect::<Result<_, _>>()?, None))
    };
    match kind {
        NicKind::Packet => of_taps(packet::open_with_rings(near, 1).map_err(text)?),
        NicKind::Macvtap => of_taps(Macvtap::open(MACVTAP, 1, TapOffload::ALL).map_err(text)?),
        NicKind::Xdp => {
            let XdpNic { queues, watch, .. } = XdpNic::open(near, false).map_err(text)?;
            let queues = queues.into_iter().map(|queue| {
                let (receiver, sender) = queue.split(meter).map_err(text)?;
                Ok::<_, String>(Queue {
                    ingress: Box::new(receiver.ingress()),
                    egress: Box::new(sender.egress()),
                })
            });
            Ok((queues.collect::<Result<_, _>>()?, Some(watch)))
        }
    }
}

fn of_tap(tap: TapQueue, meter: &Arc<Meter>) -> Result<Queue, String> {
    let tap = Arc::new(tap);
    let options = BufferOptions { large: true, zeroed_pages: false, huge_pages: false };
    let buffers = Buffers::new(options).map_err(text)?;
    let egress = Box::new(TapEgress::new(meter.clone(), tap.clone(), Features::ALL));
    Ok(Queue { ingress: Box::new(TapIngress::new(meter.clone(), tap, buffers)), egress })
}

/// A card, and two guests that send to the wire.
pub struct Card {
    machine: Machine,
}

impl Card {
    /// Makes them.
    pub fn new(protection: CardProtection, size: Size) -> Result<Self, String> {
        let machine = Machine::new(protection.protection(), To::Wire, size.bytes())?;
        // The clock is a constant: to measure the card's time would take system calls.
        Ok(Self { machine: machine.with_clock(|| std::time::Duration::ZERO) })
    }
}

impl Path for Card {
    fn turn(&mut self, frames: u64) -> Result<u64, String> {
        let before = self.machine.carried();
        self.machine.send(frames)?;
        Ok(self.machine.carried() - before)
    }

    fn batch(&self) -> u64 {
        batch(Size::Full)
    }

    fn count(&mut self, frames: u64) -> Result<Counts, String> {
        let before = self.machine.hypercalls();
        carry(self, frames)?;
        Ok(Counts { hypercalls: self.machine.hypercalls() - before, ..Counts::default() })
    }
}

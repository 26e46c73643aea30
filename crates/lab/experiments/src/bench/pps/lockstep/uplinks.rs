//! Paths between a guest and a tap.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use netback::RxChannel;
use netfront::Received;
use offload::Features;
use port::{Ingress, Queue};
use rustix::io::{Errno, write};
use uplink::tap::{Tap, TapOffload, TapQueue};
use uplink::{BufferOptions, Buffers, DirectIngress, GuestQueue, TapEgress, TapIngress, packet};
use wire::ethernet::MacAddr;

use super::host::{Host, Interface, Joined};
use super::netif::{Sender, receive};
use super::window::{Counts, Path, PathKind, Sample, Size, batch, carry};
use crate::bench::guest::text;

/// Receive buffers that guests may keep: the daemon's number.
const SPARE: usize = 256;

/// Plugs a tap in. With `direct`, frames are read into the buffers of the guest that this queue is assigned to.
fn plug(
    host: &Host,
    features: Features,
    large: bool,
    spare: bool,
    direct: Option<Arc<GuestQueue>>,
) -> Result<Arc<datapath::Port>, String> {
    let tap = Arc::new(tap(large)?);
    let options = BufferOptions { large, zeroed_pages: false, huge_pages: false };
    let buffers = match spare {
        true => Buffers::with_spares(options, SPARE),
        false => Buffers::new(options),
    };
    let egress = Box::new(TapEgress::new(host.meter(), tap.clone(), features));
    let ingress = TapIngress::new(host.meter(), tap, buffers.map_err(text)?);
    let ingress: Box<dyn Ingress> = match direct {
        Some(queue) => Box::new(DirectIngress::new(ingress, queue, large)),
        None => Box::new(ingress),
    };
    let port = host.datapath.attach("uplink", vec![Queue { ingress, egress }], Vec::new());
    host.datapath.teach(port.id(), STATION).map_err(text)?;
    Ok(port)
}

/// A guest sends to a station behind an uplink.
pub struct ToUplink {
    host: Host,
    sender: Sender,
    size: Size,
    uplink: Arc<datapath::Port>,
}

impl ToUplink {
    /// Connects them.
    pub fn new(path: PathKind, size: Size) -> Result<Self, String> {
        let features = if path == PathKind::UplinkTxBasic { Features::NONE } else { Features::ALL };
        let mut host = Host::new()?;
        let uplink = plug(&host, features, true, false, None)?;
        let guest = host.join(1, Interface::default())?;
        let sample = Sample::new(guest.guest.mac, STATION, size);
        let sender = Sender::new(guest, &sample, size)?;
        Ok(Self { host, sender, size, uplink })
    }
}

impl Path for ToUplink {
    fn turn(&mut self, frames: u64) -> Result<u64, String> {
        let carried = |port: &datapath::Port| port.counters().snapshot().egress_frames;
        let before = carried(&self.uplink);
        self.sender.send(frames)?;
        self.host.work()?;
        Ok(carried(&self.uplink) - before)
    }

    fn batch(&self) -> u64 {
        batch(self.size)
    }

    fn count(&mut self, frames: u64) -> Result<Counts, String> {
        let meter = self.host.meter();
        Counts::of(&meter, || carry(self, frames))
    }
}

/// A station behind an uplink sends to a guest.
pub struct FromUplink {
    host: Host,
    station: Station,
    receiver: Joined,
    frame: Received,
    size: Size,
    /// Bytes of a frame for the guest.
    len: usize,
}

impl FromUplink {
    /// Connects them.
    pub fn new(path: PathKind, size: Size) -> Result<Self, String> {
        let rx = match path {
            PathKind::GuestCopy => RxChannel::GuestCopy,
            PathKind::GuestCopyMapped => RxChannel::GuestCopyMapped,
            PathKind::Direct => RxChannel::Direct,
            _ => RxChannel::Copy,
        };
        let interface = Interface { rx, ..Interface::default() };
        let direct = (path == PathKind::Direct).then(Arc::<GuestQueue>::default);
        // Without `large`, the stack behind the tap segments frames.
        let large = path != PathKind::UplinkRxBasic;
        let mut host = Host::new()?;
        let spare = rx.guest_copy().is_some();
        plug(&host, Features::ALL, large, spare, direct.clone())?;
        let receiver = host.join(1, interface)?;
        if let Some(queue) = direct {
            let port = &receiver.port;
            let memory = port.lent_memory(0).ok_or("the guest lends no memory")?;
            queue.assign(receiver.guest.mac, port.lender(0), Some(memory));
        }
        let sample = Sample::new(STATION, receiver.guest.mac, size);
        let station = Station::new(&sample)?;
        let len = sample.bytes.len();
        Ok(Self { host, station, receiver, frame: Received::default(), size, len })
    }
}

impl Path for FromUplink {
    fn turn(&mut self, frames: u64) -> Result<u64, String> {
        for _ in 0..frames {
            self.station.send()?;
        }
        self.host.work()?;
        receive(&mut self.receiver.guest, &mut self.frame, self.len)
    }

    fn batch(&self) -> u64 {
        batch(self.size)
    }

    fn count(&mut self, frames: u64) -> Result<Counts, String> {
        let meter = self.host.meter();
        Counts::of(&meter, || carry(self, frames))
    }
}

/// The tap's name. Each window makes its tap, which is gone when the window ends.
const NAME: &str = "lockstep0";

/// A station behind the tap.
pub const STATION: MacAddr = MacAddr([2, 0, 0, 0, 1, 0]);

/// Makes a tap on which the stack sends nothing by itself.
pub fn tap(large: bool) -> Result<TapQueue, String> {
    let offload = match large {
        true => TapOffload::ALL,
        false => TapOffload { csum: true, ..TapOffload::NONE },
    };
    let mut queues = Tap::open(NAME, 1, offload).map_err(text)?;
    let queue = queues.pop().ok_or("a tap without a queue")?;
    no_ipv6(NAME)?;
    let mut command = lab::command("ip").map_err(text)?;
    command.args(["link", "set", "dev", NAME, "mtu", "1500", "up"]);
    let done = command.status().map_err(text)?;
    if done.success() { Ok(queue) } else { Err(format!("ip link set {NAME} up: {done}")) }
}

/// Without IPv6 an interface sends no solicitations.
pub fn no_ipv6(interface: &str) -> Result<(), String> {
    let switch = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
    match std::fs::write(switch, "1") {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(text(error)),
        _ => Ok(()),
    }
}

/// Sends frames into the tap from its other end, or by another interface.
pub struct Station {
    socket: TapQueue,
    bytes: Vec<u8>,
}

impl Station {
    /// Sends this frame into the tap.
    pub fn new(sample: &Sample) -> Result<Self, String> {
        Self::behind(NAME, sample)
    }

    /// Sends this frame by an interface.
    pub fn behind(interface: &str, sample: &Sample) -> Result<Self, String> {
        let socket = packet::open(interface, 1).map_err(text)?.pop().ok_or("no socket")?;
        let bytes = [&sample.vnet_header()[..], &sample.bytes].concat();
        Ok(Self { socket, bytes })
    }

    /// Sends the frame once.
    pub fn send(&self) -> Result<(), String> {
        match write(self.socket.as_fd(), &self.bytes) {
            Ok(written) if written == self.bytes.len() => Ok(()),
            Ok(written) => Err(format!("{written} of {} bytes were sent", self.bytes.len())),
            Err(Errno::NOBUFS) => Err("the tap's queue is full".into()),
            Err(errno) => Err(format!("sending to the tap: {errno}")),
        }
    }
}

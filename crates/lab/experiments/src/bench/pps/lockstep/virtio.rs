//! The path between two virtual machines, whose drivers are in this process.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use offload::Features;
use port::Queue;
use vhost_user::{Device, DeviceOptions, Session};
use virtqueue::driver::Offered;
use wire::ethernet::MacAddr;

use super::host::Host;
use super::window::{Counts, Path, Sample, Size, batch, carry};
use crate::bench::guest::text;
use crate::bench::virtio::{HEADER, Machine, PAGE, TX, TX_DATA, buffer};

/// A device that keeps the queues once they can be served.
#[derive(Default)]
struct Served(Mutex<Option<Vec<Queue>>>);

impl Device for Served {
    fn start(&self, queues: Vec<Queue>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(queues);
    }

    fn stop(&self, _: &str) {}
}

/// Boots a machine and attaches it to the host.
fn boot(host: &mut Host, number: u8) -> Result<Machine, String> {
    let (socket, theirs) = UnixStream::pair().map_err(text)?;
    let served = Arc::<Served>::default();
    let device =
        DeviceOptions { queues: 1, packed: true, offloads: Features::ALL, guest_offloads: true };
    let session = Session::new(device, served.clone(), host.meter()).map_err(text)?;
    std::thread::spawn(move || session.run(theirs));
    let machine = Machine::boot(socket, MacAddr([2, 0, 0, 0, 0, number]))?;
    let queues = loop {
        let started = served.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        match started {
            Some(queues) => break queues,
            None => std::thread::yield_now(),
        }
    };
    let port = host.datapath.attach(&format!("vm-{number}"), queues, Vec::new());
    host.datapath.teach(port.id(), machine.mac).map_err(text)?;
    Ok(machine)
}

/// Two virtual machines. One sends to the other.
pub struct Pair {
    host: Host,
    sender: Machine,
    receiver: Machine,
    size: Size,
    /// The buffers of the frame that is sent.
    chain: Vec<Offered>,
}

impl Pair {
    /// Connects them.
    pub fn new(size: Size) -> Result<Self, String> {
        let mut host = Host::new()?;
        let sender = boot(&mut host, 1)?;
        let mut receiver = boot(&mut host, 2)?;
        receiver.post(usize::MAX)?;
        let sample = Sample::new(sender.mac, receiver.mac, size);
        let bytes = [&sample.vnet_header()[..], &[0, 0], &sample.bytes].concat();
        // The metadata has a buffer of its own, as in Linux, and each page of the frame has one.
        sender.memory.copy_in(TX_DATA, &bytes).map_err(text)?;
        let mut chain = vec![buffer(TX_DATA, HEADER, false)];
        let mut at = HEADER;
        while at < bytes.len() {
            let len = PAGE.min(bytes.len() - at);
            chain.push(buffer(TX_DATA + at, len, false));
            at += len;
        }
        Ok(Self { host, sender, receiver, size, chain })
    }
}

impl Path for Pair {
    fn turn(&mut self, frames: u64) -> Result<u64, String> {
        let sender = &mut self.sender;
        sender.reclaim();
        for _ in 0..frames {
            sender.tx.offer(&self.chain, None).ok_or("no room")?;
        }
        sender.kick(TX)?;
        self.host.work()?;
        let bytes = self.receiver.take_all();
        self.receiver.post(usize::MAX)?;
        // Each received frame has its metadata in front.
        Ok(bytes / (self.size.bytes() + HEADER) as u64)
    }

    fn batch(&self) -> u64 {
        batch(self.size)
    }

    fn count(&mut self, frames: u64) -> Result<Counts, String> {
        let notified = |pair: &Self| pair.sender.notifications() + pair.receiver.notifications();
        notified(self);
        let meter = self.host.meter();
        let counts = Counts::of(&meter, || carry(self, frames))?;
        Ok(Counts { notifications: notified(self), ..counts })
    }
}

//! Paths between two guests.

use netback::{RxChannel, TxChannel};
use netfront::Received;
use offload::{Checksum, Gso};
use wire::netif::header_channel;

use super::host::{Host, Interface, Joined};
use super::window::{Counts, Path, PathKind, Sample, Size, batch, carry};
use crate::bench::guest::{Guest, text};

const PAGE: usize = 4096;

/// A guest that sends the same frame again and again. The frame is in all its pages.
pub struct Sender {
    pub joined: Joined,
    len: u16,
    size: Size,
    checksum: Checksum,
    gso: Option<Gso>,
}

impl Sender {
    /// Fills the guest's pages with the frame.
    pub fn new(mut joined: Joined, sample: &Sample, size: Size) -> Result<Self, String> {
        let Sample { bytes, checksum, gso } = sample;
        let len = u16::try_from(bytes.len()).map_err(text)?;
        fill(&mut joined.guest, bytes, size)?;
        Ok(Self { joined, len, size, checksum: *checksum, gso: *gso })
    }

    /// Sends `frames` frames.
    pub fn send(&mut self, frames: u64) -> Result<(), String> {
        let guest = &mut self.joined.guest;
        guest.queue.tx.reclaim().map_err(text)?;
        for _ in 0..frames {
            let is_sent = match self.size {
                Size::Large => guest.queue.tx.send(self.len, self.checksum, self.gso).is_ok(),
                Size::Small | Size::Full => guest.send_filled(self.len, |_, _| Ok(()))?,
            };
            if !is_sent {
                return Err("no room".into());
            }
        }
        guest.queue.tx.publish();
        Ok(())
    }
}

/// Writes a frame into the buffers of the guest's TX queue.
fn fill(guest: &mut Guest, frame: &[u8], size: Size) -> Result<(), String> {
    if !size.is_large() {
        let to = frame.first_chunk().copied().ok_or("no address")?;
        guest.fill(u16::try_from(size.bytes()).map_err(text)?, wire::ethernet::MacAddr(to));
        return Ok(());
    }
    let tx = &guest.queue.tx;
    for slot in (0..).take(netfront::RING_LEN) {
        if let Some(headers) = tx.headers() {
            let head = &frame[..header_channel::HEADER_LEN.into()];
            headers.copy_in(header_channel::place(slot), head).map_err(text)?;
        }
        tx.memory().copy_in(slot as usize * PAGE, &frame[..PAGE]).map_err(text)?;
    }
    Ok(())
}

/// Takes the frames that a guest has received. All must have this length.
pub fn receive(guest: &mut Guest, frame: &mut Received, len: usize) -> Result<u64, String> {
    let mut received = 0;
    while guest.queue.rx.receive(frame).map_err(text)? {
        if frame.len != len {
            return Err(format!("a frame of {} bytes, not of {len}", frame.len));
        }
        received += 1;
    }
    guest.queue.rx.publish();
    Ok(received)
}

/// Two guests.
pub struct Pair {
    host: Host,
    sender: Sender,
    receiver: Joined,
    frame: Received,
}

impl Pair {
    /// Connects them.
    pub fn new(path: PathKind, size: Size) -> Result<Self, String> {
        let default = Interface::default();
        let interface = match path {
            PathKind::Copy => Interface { fast: false, ..default },
            PathKind::Remap => Interface { tx: TxChannel::Remap, fast: false, ..default },
            PathKind::Flip => Interface { rx: RxChannel::Flip, ..default },
            _ => default,
        };
        let mut host = Host::new()?;
        let sender = host.join(1, interface)?;
        let receiver = host.join(2, interface)?;
        let sample = Sample::new(sender.guest.mac, receiver.guest.mac, size);
        let sender = Sender::new(sender, &sample, size)?;
        Ok(Self { host, sender, receiver, frame: Received::default() })
    }
}

impl Path for Pair {
    fn turn(&mut self, frames: u64) -> Result<u64, String> {
        self.sender.send(frames)?;
        self.host.work()?;
        receive(&mut self.receiver.guest, &mut self.frame, self.sender.len.into())
    }

    fn batch(&self) -> u64 {
        batch(self.sender.size)
    }

    fn count(&mut self, frames: u64) -> Result<Counts, String> {
        let meter = self.host.meter();
        Counts::of(&meter, || carry(self, frames))
    }
}

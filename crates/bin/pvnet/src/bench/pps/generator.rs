//! Two guests that are one thread: it sends numbered frames as one of them, and checks every
//! number as the other.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use machine::{MachineGuest, toolstack};
use netfront::{Frontend, Queue, Received};
use offload::Checksum;
use shm::Piece;
use wire::netif::header_channel;
use xenstore::{Client, Store};
use zerocopy::IntoBytes;

/// Frames sent before they are handed over, and taken before their buffers are given back.
const BATCH: usize = 32;
/// Small frames start at different places of their pages, or they would all want the same few
/// sets of a cache.
const COLOURS: u16 = 32;
const COLOUR_STEP: u16 = 64;

/// A guest that is this process.
struct Player {
    // Keeps the store's connection and the device open.
    _frontend: Frontend<MachineGuest>,
    queue: Queue<MachineGuest>,
    mac: [u8; 6],
}

/// Two guests of one daemon, played by the calling thread.
pub struct Generator {
    sender: Player,
    receiver: Player,
    frame: Received,
    sent: u64,
    received: u64,
}

/// What came of a run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Frames received a second.
    pub frames_per_second: f64,
    /// The share of its CPU that the generator had.
    pub cpu: f64,
    /// Frames received in all, those of the end included.
    pub frames: u64,
}

impl Generator {
    /// Joins the daemon at `socket` as both of `names`.
    pub fn join(
        socket: &Path,
        names: [&str; 2],
        config: &netfront::Config,
    ) -> Result<Self, String> {
        let [sender, mut receiver] =
            [Player::join(socket, names[0], config)?, Player::join(socket, names[1], config)?];
        // The switch learns where the receiver is, or every frame would be flooded.
        receiver.send_hello()?;
        let mut generator =
            Self { sender, receiver, frame: Received::default(), sent: 0, received: 0 };
        let deadline = Instant::now() + Duration::from_secs(5);
        while !generator.sender.queue.rx.receive(&mut generator.frame).map_err(text)? {
            if Instant::now() > deadline {
                return Err("the first frame did not come through".into());
            }
            std::thread::yield_now();
        }
        generator.sender.queue.rx.publish();
        Ok(generator)
    }

    /// Sends frames of `len` bytes as fast as they go for a while, checks each one received.
    pub fn run(&mut self, len: u16, duration: Duration) -> Result<Run, String> {
        self.sender.fill(len, self.receiver.mac);
        let began = Instant::now();
        let cpu = thread_cpu();
        let first = self.received;
        let mut now = began;
        while now < began + duration {
            for _ in 0..64 {
                self.send(len)?;
                self.receive(len)?;
            }
            now = Instant::now();
        }
        let seconds = (now - began).as_secs_f64();
        let frames_per_second = (self.received - first) as f64 / seconds;
        let cpu = (thread_cpu() - cpu).as_secs_f64() / seconds;
        self.drain(len)?;
        Ok(Run { frames_per_second, cpu, frames: self.received - first })
    }

    fn send(&mut self, len: u16) -> Result<(), String> {
        let tx = &mut self.sender.queue.tx;
        tx.reclaim().map_err(text)?;
        for _ in 0..BATCH {
            let mut places = tx.places();
            let Some(first) = places.next() else { break };
            // Behind its place in the header channel, if there is one, a frame has pages.
            let (start, page) = match tx.headers() {
                Some(_) => (first.offset, places.next()),
                None => (first.offset + usize::from(colour(first.offset, len)), Some(first)),
            };
            let Some(page) = page else { break };
            let offset = colour(page.offset, len);
            let number = self.sent.to_le_bytes();
            first.region.write(start + NUMBER, number).map_err(text)?;
            drop(places);
            if tx.send_at(offset, len, Checksum::Unknown, None).is_err() {
                break;
            }
            self.sent += 1;
        }
        tx.publish();
        Ok(())
    }

    fn receive(&mut self, len: u16) -> Result<(), String> {
        let rx = &mut self.receiver.queue.rx;
        for _ in 0..BATCH {
            if !rx.receive(&mut self.frame).map_err(text)? {
                break;
            }
            let Some(Piece::Shared { region, offset, len: first }) = rx.pieces(&self.frame).next()
            else {
                break;
            };
            let number = u64::from_le_bytes(region.read(offset + NUMBER).map_err(text)?);
            if number != self.received || first != usize::from(len) {
                return Err(format!(
                    "frame {number} of {first} bytes instead of {}",
                    self.received
                ));
            }
            self.received += 1;
        }
        rx.publish();
        Ok(())
    }

    /// Takes what is still on its way: nothing may be lost.
    fn drain(&mut self, len: u16) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.received < self.sent {
            self.receive(len)?;
            if Instant::now() > deadline {
                return Err(format!("{} frames were lost", self.sent - self.received));
            }
        }
        self.sender.queue.tx.reclaim().map_err(text)?;
        Ok(())
    }
}

/// Where a frame has its number: behind the Ethernet header.
const NUMBER: usize = 14;

/// The first byte, within its page, of a frame of `len` bytes whose page lies at `place`.
fn colour(place: usize, len: u16) -> u16 {
    let colour = (place / 4096 % usize::from(COLOURS)).to_le_bytes()[0];
    if len > COLOURS * COLOUR_STEP { 0 } else { u16::from(colour) * COLOUR_STEP }
}

impl Player {
    fn join(socket: &Path, name: &str, config: &netfront::Config) -> Result<Self, String> {
        let (guest, store) = machine::join(socket, name).map_err(text)?;
        let store: Arc<dyn Store> = Arc::new(Client::new(store).map_err(text)?);
        let (frontend, queues) =
            Frontend::connect(&guest, store, &toolstack::device_path(0), config).map_err(text)?;
        let mac = frontend.mac().0;
        let queue = queues.into_iter().next().ok_or("no queue")?;
        Ok(Self { _frontend: frontend, queue, mac })
    }

    /// Puts the frame to be sent into every page, and its header into every place for one.
    fn fill(&mut self, len: u16, to: [u8; 6]) {
        let mut frame = vec![0u8; len.into()];
        frame[..6].copy_from_slice(&to);
        frame[6..12].copy_from_slice(&self.mac);
        frame[12..14].copy_from_slice(&[0x88, 0xb5]); // local experimental EtherType
        let tx = &self.queue.tx;
        let in_page = match tx.headers() {
            Some(_) => frame.split_off(frame.len().min(header_channel::HEADER_LEN.into())),
            None => frame.clone(),
        };
        // Within the pages by the choice of colours.
        for slot in (0..).take(netfront::RING_LEN) {
            if let Some(headers) = tx.headers() {
                let _ = headers.copy_in(header_channel::place(slot), &frame);
            }
            let page = slot as usize * 4096;
            let _ = tx.memory().copy_in(page + usize::from(colour(page, len)), &in_page);
        }
    }

    fn send_hello(&mut self) -> Result<(), String> {
        let place = self.queue.tx.places().next().ok_or("no room")?;
        let (region, offset) = (place.region, place.offset);
        let mut frame = [0xffu8; 60];
        frame[6..12].copy_from_slice(&self.mac);
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        region.copy_in(offset, frame.as_bytes()).map_err(text)?;
        self.queue.tx.send(60, Checksum::Unknown, None).map_err(text)?;
        self.queue.tx.publish();
        Ok(())
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// CPU time of the calling thread.
fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

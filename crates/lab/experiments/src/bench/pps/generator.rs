//! Two guests in one thread: one sends numbered frames, the other checks every number.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use machine::{MachineGuest, toolstack};
use netfront::{Frontend, Queue, Received};
use offload::Checksum;
use shm::Piece;
use wire::netif::header_channel;
use xenstore::{Client, Store};

/// Frames per publication, at the sender and at the receiver.
const BATCH: usize = 32;
/// Small frames start at different offsets in their pages. At one offset, all would fall into the
/// same few sets of a cache.
const OFFSETS: u16 = 32;
/// Bytes between two of these offsets: a cache line.
const OFFSET_STEP: u16 = 64;

/// One of the guests.
struct Guest {
    // Keeps the store's connection and the device open.
    _frontend: Frontend<MachineGuest>,
    queue: Queue<MachineGuest>,
    mac: [u8; 6],
}

/// Two guests of one daemon, both in the calling thread.
pub struct Generator {
    sender: Guest,
    receiver: Guest,
    frame: Received,
    sent: u64,
    received: u64,
}

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Frames received per second.
    pub frames_per_second: f64,
    /// The share of its CPU that the generator had.
    pub cpu: f64,
    /// All frames received, the last in flight included.
    pub frames: u64,
}

impl Generator {
    /// Joins the daemon at `socket` as two guests with these names.
    pub fn join(
        socket: &Path,
        names: [&str; 2],
        config: &netfront::Config,
    ) -> Result<Self, String> {
        let [sender, mut receiver] =
            [Guest::join(socket, names[0], config)?, Guest::join(socket, names[1], config)?];
        // The switch learns the receiver's port; otherwise it would flood every frame.
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

    /// Sends frames of `len` bytes as fast as possible for `duration`, and checks each one received.
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
            let mut places = tx.buffers();
            let Some(first) = places.next() else { break };
            // With a header channel, a frame's first place is there and its pages follow.
            let (start, page) = match tx.headers() {
                Some(_) => (first.offset, places.next()),
                None => (first.offset + usize::from(cache_offset(first.offset, len)), Some(first)),
            };
            let Some(page) = page else { break };
            let offset = cache_offset(page.offset, len);
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

    /// Receives the frames in flight. None may be lost.
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

/// The offset of a frame's number: after the Ethernet header.
const NUMBER: usize = 14;

/// Where in its page a frame of `len` bytes starts; the page lies at `place`.
fn cache_offset(place: usize, len: u16) -> u16 {
    let step = (place / 4096 % usize::from(OFFSETS)).to_le_bytes()[0];
    if len > OFFSETS * OFFSET_STEP { 0 } else { u16::from(step) * OFFSET_STEP }
}

impl Guest {
    fn join(socket: &Path, name: &str, config: &netfront::Config) -> Result<Self, String> {
        let (guest, store) = machine::join(socket, name).map_err(text)?;
        let store: Arc<dyn Store> = Arc::new(Client::new(store).map_err(text)?);
        let (frontend, queues) =
            Frontend::connect(&guest, store, &toolstack::device_path(0), config).map_err(text)?;
        let mac = frontend.mac().0;
        let queue = queues.into_iter().next().ok_or("no queue")?;
        Ok(Self { _frontend: frontend, queue, mac })
    }

    /// Writes the frame into every page, and its header into every place of the header channel.
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
        // The offsets keep each frame within its page.
        for slot in (0..).take(netfront::RING_LEN) {
            if let Some(headers) = tx.headers() {
                let _ = headers.copy_in(header_channel::place(slot), &frame);
            }
            let page = slot as usize * 4096;
            let _ = tx.memory().copy_in(page + usize::from(cache_offset(page, len)), &in_page);
        }
    }

    fn send_hello(&mut self) -> Result<(), String> {
        let place = self.queue.tx.buffers().next().ok_or("no room")?;
        let (region, offset) = (place.region, place.offset);
        let mut frame = [0xffu8; 60];
        frame[6..12].copy_from_slice(&self.mac);
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        region.copy_in(offset, &frame).map_err(text)?;
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

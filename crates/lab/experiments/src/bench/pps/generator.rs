//! Two guests in one thread: one sends numbered frames, the other checks every number.

use std::path::Path;
use std::time::{Duration, Instant};

use netfront::Received;
use shm::Iovec;

use crate::bench::guest::{Guest, text, thread_cpu};

/// Frames per publication, at the sender and at the receiver.
const BATCH: usize = 32;

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
    /// The share of its CPU that the generator got.
    pub cpu: f64,
    /// All frames received, including the last in flight.
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
        self.sender.queue.tx.reclaim().map_err(text)?;
        for _ in 0..BATCH {
            let number = self.sent.to_le_bytes();
            let write =
                |region: &shm::Region, start| region.write_words::<_, 8>(start + NUMBER, number);
            if !self.sender.send_filled(len, |region, start| write(region, start).map_err(text))? {
                break;
            }
            self.sent += 1;
        }
        self.sender.queue.tx.publish();
        Ok(())
    }

    fn receive(&mut self, len: u16) -> Result<(), String> {
        let rx = &mut self.receiver.queue.rx;
        for _ in 0..BATCH {
            if !rx.receive(&mut self.frame).map_err(text)? {
                break;
            }
            let Some(Iovec::Shared { region, offset, len: first }) =
                rx.fragments(&self.frame).next()
            else {
                break;
            };
            let number =
                u64::from_le_bytes(region.read_words::<_, 8>(offset + NUMBER).map_err(text)?);
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

/// The offset of a frame's number: behind the Ethernet header, at a multiple of 8.
const NUMBER: usize = 16;

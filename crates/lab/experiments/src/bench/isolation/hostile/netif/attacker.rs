//! A hostile process guest between two attacks: it is connected, and behaves.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use netfront::Received;
use wire::ethernet::MacAddr;

use crate::bench::guest::{Guest, text};
use crate::bench::isolation::hostile::{self, HostileArgs};

/// How long the daemon may take to forget a guest that has left.
const LEAVING: Duration = Duration::from_secs(5);
/// The pause between two tries to join.
const TRY_AGAIN: Duration = Duration::from_millis(2);

/// A hostile guest.
pub struct Attacker {
    socket: PathBuf,
    name: String,
    config: netfront::Config,
    guest: Option<Guest>,
    frame: Received,
    /// Addresses that the attack uses.
    pub targets: Vec<MacAddr>,
    /// Numbers that differ between the rounds of an attack.
    round: u64,
}

impl Attacker {
    /// Joins the daemon.
    pub fn join(args: &HostileArgs) -> Result<Self, String> {
        let persistent_grants = args.class.has_persistent_grants();
        let mut attacker = Self {
            socket: args.socket.clone(),
            name: args.name.clone(),
            config: netfront::Config { persistent_grants, ..netfront::Config::default() },
            guest: None,
            frame: Received::default(),
            targets: args.target.clone(),
            round: 0,
        };
        attacker.guest()?.send_hello()?;
        Ok(attacker)
    }

    /// The guest; joins again if it has left.
    pub fn guest(&mut self) -> Result<&mut Guest, String> {
        let guest = match self.guest.take() {
            Some(guest) => guest,
            None => self.connect()?,
        };
        Ok(self.guest.insert(guest))
    }

    /// A different number at each call.
    pub fn next(&mut self) -> u64 {
        self.round += 1;
        self.round
    }

    /// Takes all received frames, and posts their buffers again.
    pub fn receive(&mut self) -> Result<(), String> {
        let mut frame = std::mem::take(&mut self.frame);
        let received = self.guest()?.receive_all(&mut frame);
        self.frame = frame;
        received.map(drop)
    }

    /// Takes all received frames, and posts at most `buffers` buffers. Returns how many frames there were.
    pub fn receive_and_post(&mut self, buffers: u32) -> Result<u64, String> {
        let mut frame = std::mem::take(&mut self.frame);
        let guest = self.guest()?;
        let received = guest.take_all(&mut frame);
        guest.queue.rx.publish_some(buffers);
        self.frame = frame;
        received
    }

    /// Joins, once the domain of this name is free.
    fn connect(&self) -> Result<Guest, String> {
        let deadline = Instant::now() + LEAVING;
        loop {
            match Guest::join(&self.socket, &self.name, &self.config) {
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => std::thread::sleep(TRY_AGAIN),
                joined => return joined,
            }
        }
    }
}

impl hostile::Attacker for Attacker {
    fn rest(&mut self, until: Instant) -> Result<(), String> {
        loop {
            self.receive()?;
            self.guest()?.queue.tx.reclaim().map_err(text)?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.guest()?.wait(left)?;
        }
    }

    fn leave(&mut self) {
        self.guest = None;
    }
}

//! A hostile virtual machine between two attacks: it is connected, and behaves.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use wire::ethernet::MacAddr;

use crate::bench::guest::text;
use crate::bench::isolation::hostile::{self, HostileArgs};
use crate::bench::isolation::testbed::port_socket;
use crate::bench::virtio::{HEADER, Machine, PAGE, SIZE, TX, TX_DATA, buffer, connect};

/// How long the daemon may take to make its socket.
const START: Duration = Duration::from_secs(5);

/// A hostile virtual machine.
pub struct Attacker {
    socket: PathBuf,
    mac: MacAddr,
    machine: Option<Machine>,
    /// Numbers that differ between the rounds of an attack.
    round: u64,
    /// The place of the next frame.
    place: usize,
    /// The number of the last port that it has used. The present machine is at the first port.
    port: usize,
    /// The process's arguments.
    pub args: HostileArgs,
}

impl Attacker {
    /// Connects to the port.
    pub fn join(args: &HostileArgs) -> Result<Self, String> {
        let mut attacker = Self::after(args, 0);
        attacker.machine()?;
        Ok(attacker)
    }

    /// An attacker that is not connected, and has used its ports up to `port`.
    pub fn after(args: &HostileArgs, port: usize) -> Self {
        let (socket, mac, args) = (args.socket.clone(), args.mac, args.clone());
        Self { socket, mac, machine: None, round: 0, place: 0, port, args }
    }

    /// The machine; connects again if it has gone.
    pub fn machine(&mut self) -> Result<&mut Machine, String> {
        let machine = match self.machine.take() {
            Some(machine) => machine,
            None => {
                let mut machine = Machine::boot(connect(&self.socket, START)?, self.mac)?;
                machine.post(SIZE.into())?;
                machine
            }
        };
        Ok(self.machine.insert(machine))
    }

    /// Drops its machine, and connects to the port of this number. The caller makes the next machine.
    pub fn connect_to(&mut self, port: usize) -> Result<UnixStream, String> {
        self.machine = None;
        connect(&port_socket(&self.socket, port), START)
    }

    /// The number of a port that it has not used yet.
    pub fn next_port(&mut self) -> usize {
        self.port += 1;
        self.port
    }

    /// Makes this its machine from now on.
    pub fn become_machine(&mut self, machine: Machine) {
        self.machine = Some(machine);
    }

    /// Its address.
    pub fn mac(&self) -> MacAddr {
        self.mac
    }

    /// A different number at each call.
    pub fn next(&mut self) -> u64 {
        self.round += 1;
        self.round
    }

    /// Takes back all used buffers of both rings, and posts those for receiving again.
    pub fn receive(&mut self) -> Result<(), String> {
        let machine = self.machine()?;
        machine.take_all();
        machine.reclaim();
        machine.post(SIZE.into())
    }

    /// Puts a frame on the ring, to be published later. Returns false if there is no room.
    pub fn send(&mut self, metadata: [u8; HEADER], frame: &[u8]) -> Result<bool, String> {
        // The ring is no longer than the number of places, so no frame in flight is overwritten.
        let at = TX_DATA + self.place * PAGE;
        let machine = self.machine()?;
        let bytes = [&metadata[..], frame].concat();
        machine.memory.copy_in(at, &bytes).map_err(text)?;
        let has_room = machine.tx.offer(&[buffer(at, bytes.len(), false)], None).is_some();
        self.place = (self.place + usize::from(has_room)) % usize::from(SIZE);
        Ok(has_room)
    }

    /// Publishes the frames on the ring.
    pub fn publish(&mut self) -> Result<(), String> {
        self.machine()?.kick(TX)
    }
}

impl hostile::Attacker for Attacker {
    fn rest(&mut self, until: Instant) -> Result<(), String> {
        loop {
            self.receive()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.machine()?.wait(left.max(Duration::from_millis(1)))?;
        }
    }

    fn leave(&mut self) {
        self.machine = None;
    }
}

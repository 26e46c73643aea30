//! A guest that copies out of a pool, from outside.

use std::sync::Arc;
use std::time::Duration;

use hypervisor::DomId;
use machine::{Machine, toolstack};
use netback::{Connection, Offered, RxChannel, Vif, VifChange, VifQueue};
use offload::{Checksum, Features, Gso, GsoKind};
use port::{Body, Broken, Egress, Fragment, Frame, Lent, LentBuffer, LentMemory, Outcome, Wanted};
use shm::Region;
use wire::netif::RxResponse;
use wire::netif::guest_copy::{Directory, Mark};
use zerocopy::FromBytes;

use crate::common::guest::{OFFERED, PAGE, RSP_PROD, RX_RING, Raw};
use crate::granting::{GrantTable, Granting};

pub const POOL: usize = 64;
pub const HEADER: usize = 128;
/// Bytes of a frame's headers.
pub const HEADERS: usize = 54;
pub const GUEST_COPY_OFFER: Offered = Offered { rx: RxChannel::GuestCopy, ..OFFERED };

/// A guest that copies out of its pool, from outside.
pub struct Copier {
    pub raw: Raw,
    pub granting: Granting,
    pub vif: Vif<Granting>,
    /// None while no backend runs.
    pub queue: Option<VifQueue<Granting>>,
    pub posted: u32,
    pub taken: u32,
}

/// What a guest knows of its pool.
pub struct Known {
    pub guest: DomId,
    pub table: GrantTable,
    pub id: u32,
    pub mark: Mark,
    pub grefs: Vec<u32>,
}

impl Known {
    /// What a frontend reads when it connects, or after a restart.
    pub fn read(copier: &Copier) -> Self {
        let guest = copier.raw.domain.id();
        let path = format!("{}/rx-guest-copies", toolstack::backend_path(guest, 0));
        let text = copier.raw.store.read(None, &path).unwrap();
        let id = text.strip_prefix("granted ").unwrap().parse().unwrap();
        let table = copier.granting.table.clone();
        let page = table.copy(guest, id, 0, PAGE).unwrap();
        let directory = Directory::read_from_bytes(&page).unwrap();
        let (mark, grefs) = directory.read().unwrap();
        Self { guest, table, id, mark, grefs: grefs.to_vec() }
    }

    /// Copies what a response names, and reads the mark after that.
    pub fn copy(&self, response: RxResponse) -> Option<Vec<u8>> {
        let len = usize::try_from(response.status).unwrap();
        let gref = *self.grefs.get(usize::from(response.id))?;
        let bytes = self.table.copy(self.guest, gref, response.offset.into(), len);
        let mark = self.table.copy(self.guest, self.id, 0, 16)?;
        bytes.filter(|_| mark == self.mark)
    }
}

impl Copier {
    pub fn new(machine: &Machine, pages: usize) -> Self {
        Self::of(Granting::new(machine, pages), Raw::new(machine))
    }

    pub fn of(granting: Granting, raw: Raw) -> Self {
        raw.key("request-rx-guest-copy", 1);
        let mut vif = raw.announce_as(granting.clone(), GUEST_COPY_OFFER);
        let mut connection = raw.connect_all(&mut vif, Features::ALL);
        vif.connected().unwrap();
        let queue = connection.queues.pop();
        Self { raw, granting, vif, queue, posted: 0, taken: 0 }
    }

    /// The backend is killed. What it had granted, it grants no more.
    pub fn kill(&mut self) {
        self.queue = None;
    }

    /// Another backend goes on with the ring.
    pub fn restart(&mut self) {
        self.kill();
        self.vif = self.raw.adopt(self.granting.clone(), GUEST_COPY_OFFER);
        let Ok(VifChange::Connect(Connection { mut queues, .. })) = self.vif.frontend_changed()
        else {
            panic!("it goes on")
        };
        self.queue = queues.pop();
    }

    pub fn rx(&mut self) -> &mut netback::RxQueue<Granting> {
        &mut self.queue.as_mut().unwrap().rx
    }

    pub fn memory(&mut self) -> LentMemory {
        self.rx().lent_memory().unwrap()
    }

    pub fn post(&mut self, count: u32) {
        let end = self.posted.wrapping_add(count);
        self.raw.post(std::mem::replace(&mut self.posted, end)..end);
    }

    pub fn lend(&mut self, buffers: usize) -> Vec<LentBuffer> {
        let mut lent = Vec::new();
        self.rx().lend(Wanted { buffers, held: true }, &mut lent).unwrap();
        lent
    }

    /// Fills lent pages as a device does, and delivers the frame.
    pub fn deliver(
        &mut self,
        buffers: &[LentBuffer],
        (len, fill): (u32, u8),
        gso: bool,
        now: Duration,
    ) -> Result<Outcome, Broken> {
        let (mut frame, bytes) = frame(len, fill);
        if gso {
            frame.gso = Some(Gso { kind: GsoKind::TcpV4, size: 1000 });
            frame.checksum = Checksum::Partial;
        }
        let memory = self.memory();
        let tokens = buffers.iter().map(|buffer| buffer.token).collect();
        frame.lent = Lent { lender: memory.lender, tokens, has_header: false, offset: 0 };
        for (n, chunk) in bytes.chunks(PAGE).enumerate() {
            let skip = if n == 0 { chunk.len().min(HEADER) } else { 0 };
            let at = usize::try_from(buffers[n].offset).unwrap() + skip;
            memory.region.copy_in(at, &chunk[skip..]).unwrap();
            if chunk.len() > skip {
                let body = u16::try_from(chunk.len() - skip).unwrap();
                frame.fragments.push(Fragment::in_region(0, at as u64, body));
            }
        }
        let regions: Arc<[Region]> = [memory.region].into();
        port_testing::offer(self.rx(), Body::Regions(&regions), &frame, now)
    }

    /// Lends, fills and delivers a frame of one page.
    pub fn send(&mut self, len: u32, fill: u8) -> Outcome {
        let buffers = self.lend(1);
        self.deliver(&buffers, (len, fill), false, Duration::ZERO).unwrap()
    }

    /// The next response and its index.
    pub fn take(&mut self) -> Option<(u32, RxResponse)> {
        let end: u32 = self.raw.read(RX_RING, RSP_PROD);
        if end == self.taken {
            return None;
        }
        let index = self.taken;
        self.taken = index.wrapping_add(1);
        Some((index, self.raw.response(index)))
    }
}

/// A TCP frame of `len` bytes, all `fill` behind its headers; and its bytes.
pub fn frame(len: u32, fill: u8) -> (Frame, Vec<u8>) {
    let mut bytes = vec![fill; len as usize];
    bytes[..HEADERS].fill(0);
    bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
    bytes[16..18].copy_from_slice(&u16::try_from(len - 14).unwrap().to_be_bytes());
    (bytes[22], bytes[23], bytes[46]) = (64, 6, 0x50);
    (port_testing::frame(&bytes), bytes)
}

pub fn is_frame(bytes: &[u8], fill: u8) -> bool {
    bytes.iter().skip(HEADERS).all(|byte| *byte == fill)
}

//! Frames from the tap to the backend.

use std::os::fd::BorrowedFd;

use hypervisor::{GrantRef, Guest as _, PAGE_SIZE};
use ring::Slots as _;
use ring::netif::Tx;
use rustix::io::Errno;
use wire::netif::extra::Extra;
use wire::netif::tx_flags::{CSUM_BLANK, DATA_VALIDATED, EXTRA_INFO, MORE_DATA};
use wire::netif::{GsoKind, NR_SLOTS_MIN, TxRequest, status};
use wire::virtio_net::{VirtioNetHdr, flags, gso};
use xen::SharedPages;
use xenlab::netif::device::{Outcome, Vif};
use xenlab::netif::ring::Ring;
use xenlab::scenario::ClientReport;
use zerocopy::FromBytes as _;

/// Slots of the largest packet: [`NR_SLOTS_MIN`], an extra, and one of no bytes.
const SLOTS: u32 = 20;
const HEADER: usize = size_of::<VirtioNetHdr>();

/// The TX ring. Each of its slots has a page.
pub struct Transmitter {
    ring: Ring<Tx>,
    pages: SharedPages,
    grefs: Vec<GrantRef>,
    prod: u32,
    cons: u32,
    empty_fragments: bool,
    without_csum_blank: bool,
    /// Packets so far: each habit has two variants, in turn.
    packets: u32,
    buffer: Vec<u8>,
}

impl Transmitter {
    pub fn new(device: &Vif, empty_fragments: bool, without_csum_blank: bool) -> Outcome<Self> {
        let ring = Ring::new(&device.guest, device.domain)?;
        let (pages, grefs) = device.guest.share(device.domain, Tx::COUNT as usize)?;
        let buffer = vec![0; HEADER + NR_SLOTS_MIN * PAGE_SIZE];
        Ok(Self {
            ring,
            pages,
            grefs,
            prod: 0,
            cons: 0,
            empty_fragments,
            without_csum_blank,
            packets: 0,
            buffer,
        })
    }

    pub fn gref(&self) -> GrantRef {
        self.ring.gref()
    }

    /// Whether the ring has room for the largest packet.
    pub fn has_room(&self) -> bool {
        Tx::COUNT - self.prod.wrapping_sub(self.cons) >= SLOTS
    }

    /// Whether there are responses. If not, asks for an event at the next one.
    pub fn has_responses(&self) -> bool {
        self.ring.has_responses(self.cons)
    }

    pub fn take_responses(&mut self, report: &mut ClientReport) {
        while self.cons != self.ring.rsp_prod() {
            let status = self.ring.response(self.cons).status;
            report.tx_errors += u64::from(matches!(status, status::ERROR | status::DROPPED));
            self.cons = self.cons.wrapping_add(1);
        }
    }

    /// Sends the frames that wait in the tap, as long as there is room.
    pub fn send_all(&mut self, tap: BorrowedFd<'_>, report: &mut ClientReport) -> Outcome {
        while self.has_room() {
            match rustix::io::read(tap, &mut self.buffer[..]) {
                Ok(len) => self.send(len, report)?,
                // EIO: the tap is not up yet.
                Err(Errno::AGAIN | Errno::INTR | Errno::IO) => break,
                Err(error) => return Err(error.into()),
            }
        }
        self.ring.publish(self.prod);
        Ok(())
    }

    fn send(&mut self, len: usize, report: &mut ClientReport) -> Outcome {
        let (header, _) = VirtioNetHdr::read_from_prefix(&self.buffer).map_err(|_| "no header")?;
        let is_unsegmented = header.gso_type & !gso::ECN == gso::TCPV4;
        report.unsegmented += u64::from(is_unsegmented);
        let mut tx = 0;
        if is_unsegmented && self.without_csum_blank {
            // The backend must not use these two bytes.
            let at = HEADER + usize::from(header.csum_start.get() + header.csum_offset.get());
            self.buffer[at..at + 2].fill(0);
            tx = if self.packets.is_multiple_of(2) { DATA_VALIDATED } else { 0 };
        } else if header.flags & flags::NEEDS_CSUM != 0 {
            tx = CSUM_BLANK | DATA_VALIDATED;
        }
        let frame = HEADER..len;
        let mut slots = self.place(frame.clone())?;
        slots[0].size = u16::try_from(frame.len())?;
        slots[0].flags |= tx;
        report.sent += 1;
        self.packets += 1;
        if is_unsegmented {
            let size = header.gso_size.get();
            let gso = Extra::Gso { size: size.try_into()?, kind: GsoKind::TcpV4, features: 0 };
            slots[0].flags |= EXTRA_INFO;
            slots.insert(1, gso.encode(false)?.to_tx_slot());
        }
        for slot in slots {
            self.ring.request(self.prod, slot);
            self.prod = self.prod.wrapping_add(1);
        }
        Ok(())
    }

    /// Puts the bytes into the pages of the next slots. The first slot's size counts only its own bytes.
    fn place(&mut self, frame: std::ops::Range<usize>) -> Outcome<Vec<TxRequest>> {
        let mut parts = Vec::new();
        let mut start = frame.start;
        while start < frame.end {
            let end = frame.end.min(start + PAGE_SIZE);
            parts.push(start..end);
            start = end;
        }
        if self.empty_fragments {
            // In the middle or at the end, in turn.
            match self.packets % 2 {
                0 => {
                    let first = parts[0].clone();
                    let cut = first.start + first.len() / 2;
                    parts.splice(0..1, [first.start..cut, cut..cut, cut..first.end]);
                }
                _ => parts.push(frame.end..frame.end),
            }
        }
        let count = parts.len();
        let mut slots = Vec::with_capacity(count + 1);
        for (n, part) in parts.into_iter().enumerate() {
            // An extra takes the second slot, whose page stays unused.
            let page = self.prod.wrapping_add(u32::try_from(n)?) % Tx::COUNT;
            self.pages.copy_in(page as usize * PAGE_SIZE, &self.buffer[part.clone()])?;
            let more = if n + 1 < count { MORE_DATA } else { 0 };
            let (gref, size) = (self.grefs[page as usize].0, u16::try_from(part.len())?);
            slots.push(TxRequest { gref, offset: 0, flags: more, id: u16::try_from(page)?, size });
        }
        Ok(slots)
    }
}

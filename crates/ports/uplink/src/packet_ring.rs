//! The receive ring of a packet socket (`PACKET_RX_RING` with `TPACKET_V2`): the kernel copies frames into slots that this process reads, so
//! a frame takes no system call. A frame that is longer than a slot waits in the socket, and its slot says so.
//!
//! Slots of a fixed length, because the blocks of `TPACKET_V3` are handed over when they are full or their timer, of a millisecond or more,
//! ends: a frame that comes alone would wait.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use shm::{OutOfBounds, Region};
use wire::virtio_net::VirtioNetHdr;

use crate::sys::packet;

/// Bytes of a slot: a frame of the MTU with what the kernel writes before it.
const SLOT: u32 = 2048;
/// Slots: as many bytes as wait in a socket without a ring.
const SLOTS: u32 = 2048;
/// Bytes that are contiguous in the kernel.
const BLOCK: u32 = 1 << 16;

/// Where `struct tpacket2_hdr` has what is read here.
mod at {
    pub(super) const STATUS: usize = 0;
    pub(super) const LEN: usize = 4;
    pub(super) const CAPTURED: usize = 8;
    pub(super) const MAC: usize = 12;
}

/// The receive ring of a socket.
#[derive(Debug)]
pub(crate) struct PacketRing {
    memory: Region,
    /// Counts slots. One worker at a time reads them.
    next: AtomicU32,
}

/// Where the next frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// In the ring: its `virtio_net_hdr`, and the frame behind it.
    Here { start: usize, len: usize },
    /// The next frame that a read of the socket returns.
    InSocket,
}

impl PacketRing {
    /// Gives a socket a ring. It must have its other options, and be bound later.
    pub(crate) fn new(socket: BorrowedFd<'_>) -> io::Result<Self> {
        packet::set_receive_ring(socket, BLOCK, SLOT, SLOTS)?;
        let memory = Region::map(socket, 0, (SLOT * SLOTS) as usize)?;
        Ok(Self { memory, next: AtomicU32::new(0) })
    }

    fn slot(&self) -> usize {
        (self.next.load(Ordering::Relaxed) % SLOTS * SLOT) as usize
    }

    /// The next frame.
    ///
    /// # Errors
    /// There is none (`EAGAIN`), or it was lost (`EINVAL`): it is longer than a slot, and the socket had no room for it.
    pub(crate) fn next(&self) -> io::Result<Next> {
        let slot = self.slot();
        // The acquire goes with the kernel's barrier after it has written the slot.
        let status = self.memory.atomic_u32(slot + at::STATUS)?.load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return Err(Errno::AGAIN.into());
        }
        if status & libc::TP_STATUS_COPY != 0 {
            return Ok(Next::InSocket);
        }
        let [len, captured] = [at::LEN, at::CAPTURED].map(|at| self.memory.read::<u32>(slot + at));
        let (captured, mac) = (captured? as usize, self.memory.read::<u16>(slot + at::MAC)?);
        let mac = usize::from(mac);
        let fits = mac >= VirtioNetHdr::LEN && mac + captured <= SLOT as usize;
        if len? as usize != captured || !fits {
            self.release()?;
            return Err(Errno::INVAL.into());
        }
        let (start, len) = (slot + mac - VirtioNetHdr::LEN, captured + VirtioNetHdr::LEN);
        Ok(Next::Here { start, len })
    }

    /// Copies a frame that is here to `head` and then to `places`, as a read does. Returns the number of bytes.
    pub(crate) fn copy<'a>(
        &self,
        (start, len): (usize, usize),
        head: &mut [u8],
        places: impl IntoIterator<Item = (&'a Region, usize, usize)>,
    ) -> io::Result<usize> {
        let mut done = len.min(head.len());
        self.memory.copy_out(start, &mut head[..done])?;
        for (region, offset, room) in places {
            let bytes = room.min(len - done);
            if bytes == 0 {
                break;
            }
            Region::copy_between(&self.memory, start + done, region, offset, bytes)?;
            done += bytes;
        }
        Ok(done)
    }

    /// The kernel may use the slot of the next frame again.
    pub(crate) fn release(&self) -> Result<(), OutOfBounds> {
        self.memory.atomic_u32(self.slot() + at::STATUS)?.store(0, Ordering::Release);
        let next = self.next.load(Ordering::Relaxed);
        self.next.store(next.wrapping_add(1), Ordering::Relaxed);
        Ok(())
    }
}

//! AF_XDP sockets: what those of guests and those of the daemon share.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hypervisor::PAGE_SIZE;
use offload::Checksum;
use port::{Fragment, Frame, HEADER_MAX};
use rustix::io::Errno;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpMmapOffsets, XdpOptionsFlags,
    XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use shm::Region;

use super::ring::{Descriptor, Place};

/// Bytes of a buffer: a page.
const CHUNK: u32 = 4096;

const _: () = assert!(CHUNK as usize == PAGE_SIZE);

/// Why there is no socket.
#[derive(Clone, Debug)]
pub(super) enum SocketError {
    /// Another socket has the receive queue.
    Taken,
    /// The kernel does not keep the memory in place.
    Memory(Errno),
    /// A step failed for another reason.
    System { step: &'static str, error: String },
}

pub(super) fn failed<E: std::fmt::Display>(step: &'static str) -> impl Fn(E) -> SocketError {
    move |error| SocketError::System { step, error: error.to_string() }
}

/// Descriptors of each ring: powers of two.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) fill: u32,
    pub(super) rx: u32,
    /// None for a socket that sends nothing.
    pub(super) tx: Option<u32>,
    /// The kernel wants one of every socket.
    pub(super) completion: u32,
}

/// A socket of one receive queue of an interface, which the kernel writes to as long as it is open.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    sizes: Sizes,
    offsets: XdpMmapOffsets,
}

impl Socket {
    /// Opens a socket whose buffers are the pages of `memory`. All of it stays in place as long as the socket is open.
    pub(super) fn open(memory: &Region, sizes: Sizes) -> Result<Self, SocketError> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None);
        let fd = fd.map_err(failed("socket"))?;
        let address = memory.address(0, memory.len()).map_err(failed("address"))?;
        let registration = XdpUmemReg {
            addr: address.expose_provenance() as u64,
            len: memory.len() as u64,
            chunk_size: CHUNK,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        // The kernel writes there at any time, as a guest may: a region is read and written accordingly.
        sockopt::set_xdp_umem_reg(&fd, registration).map_err(SocketError::Memory)?;
        sockopt::set_xdp_umem_fill_ring_size(&fd, sizes.fill)
            .map_err(failed("XDP_UMEM_FILL_RING"))?;
        sockopt::set_xdp_umem_completion_ring_size(&fd, sizes.completion)
            .map_err(failed("XDP_UMEM_COMPLETION_RING"))?;
        sockopt::set_xdp_rx_ring_size(&fd, sizes.rx).map_err(failed("XDP_RX_RING"))?;
        if let Some(tx) = sizes.tx {
            sockopt::set_xdp_tx_ring_size(&fd, tx).map_err(failed("XDP_TX_RING"))?;
        }
        let offsets = sockopt::xdp_mmap_offsets(&fd).map_err(failed("XDP_MMAP_OFFSETS"))?;
        Ok(Self { fd, sizes, offsets })
    }

    /// Maps a ring, whose place is one of those below.
    pub(super) fn map<R>(
        &self,
        place: Place,
        map: impl FnOnce(BorrowedFd<'_>, Place) -> io::Result<R>,
    ) -> Result<R, SocketError> {
        map(self.as_fd(), place).map_err(failed("mmap of a ring"))
    }

    pub(super) fn fill(&self) -> Place {
        let (at, offsets) = (XDP_UMEM_PGOFF_FILL_RING, self.offsets.fr);
        Place { at, offsets, size: self.sizes.fill }
    }

    pub(super) fn completion(&self) -> Place {
        let (at, offsets) = (XDP_UMEM_PGOFF_COMPLETION_RING, self.offsets.cr);
        Place { at, offsets, size: self.sizes.completion }
    }

    pub(super) fn rx(&self) -> Place {
        Place { at: XDP_PGOFF_RX_RING, offsets: self.offsets.rx, size: self.sizes.rx }
    }

    pub(super) fn tx(&self) -> Place {
        let size = self.sizes.tx.unwrap_or(0);
        Place { at: XDP_PGOFF_TX_RING, offsets: self.offsets.tx, size }
    }

    /// Gives it a receive queue. From now on the program may hand it that queue's frames.
    pub(super) fn bind(
        &self,
        interface: u32,
        queue: u32,
        flags: SocketAddrXdpFlags,
    ) -> Result<(), SocketError> {
        let address = SocketAddrXdp::new(flags, interface, queue);
        rustix::net::bind(&self.fd, &address).map_err(|errno| match errno {
            Errno::BUSY => SocketError::Taken,
            errno => failed("bind")(errno),
        })
    }

    /// Whether the driver of a bound socket's interface reads and writes the buffers itself.
    pub(super) fn is_zero_copy(&self) -> bool {
        sockopt::xdp_options(&self.fd)
            .is_ok_and(|options| options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
    }

    /// Frames that the kernel has dropped because it had no buffer, or no room in the ring.
    pub(super) fn dropped(&self) -> u64 {
        // `rx_fill_ring_empty_descs` is no third number of frames. Where the kernel copies, each of them is in `rx_dropped` too;
        // a driver with zero copy asks the empty ring again and again, and the NIC counts what it drops meanwhile.
        sockopt::xdp_statistics(&self.fd)
            .map_or(0, |counts| counts.rx_dropped + counts.rx_ring_full.unwrap_or(0))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Bytes of the longest frame: a page, less the room that the kernel keeps before the frame (`XDP_PACKET_HEADROOM`).
pub(super) const LONGEST: u16 = 3840;

const _: () = assert!(LONGEST as usize + 256 == PAGE_SIZE);

/// Reads the header of a frame, once, into private memory. Returns whether the frame is well-formed.
pub(super) fn read(memory: &Region, descriptor: Descriptor, frame: &mut Frame) -> bool {
    let Descriptor { address, len, .. } = descriptor;
    let (Ok(start), len) = (usize::try_from(address), len as usize) else { return false };
    if len > usize::from(LONGEST) || start % PAGE_SIZE + len > PAGE_SIZE {
        return false;
    }
    let header_len = len.min(HEADER_MAX);
    if memory.copy_out(start, &mut frame.bytes[..header_len]).is_err() {
        return false;
    }
    // At most a page.
    frame.header_len = u8::try_from(header_len).unwrap_or(u8::MAX);
    frame.len = u32::try_from(len).unwrap_or(u32::MAX);
    frame.fragments.clear();
    if let Ok(body @ 1..) = u16::try_from(len - header_len) {
        frame.fragments.push(Fragment::in_region(0, (start + header_len) as u64, body));
    }
    // The kernel does not say what the card has found.
    (frame.checksum, frame.gso) = (Checksum::Unknown, None);
    frame.parse_headers().is_ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGES: usize = 4;

    /// An offset near one of the bounds, or any.
    fn near(bounds: &'static [usize]) -> impl Strategy<Value = usize> {
        let near = (prop::sample::select(bounds), 0usize..40);
        let near = near.prop_map(|(bound, n)| bound.wrapping_add(n).wrapping_sub(20));
        prop_oneof![near, any::<usize>()]
    }

    proptest! {
        /// Wherever a descriptor points, and whatever is there: a frame lies in one page of the memory, and its private bytes are
        /// what was there.
        #[test]
        fn a_frame_lies_in_one_page_of_its_memory(
            start in near(&[0, 256, 4096, 4096 - 128, 8192 + 256, 4 * 4096, 1 << 63, usize::MAX]),
            len in near(&[0, 14, 60, 128, 3840, 4096]).prop_map(|len| u32::try_from(len).unwrap_or(u32::MAX)),
            fill in prop::collection::vec(any::<u8>(), 64),
        ) {
            let memory = Region::anonymous(PAGES * PAGE_SIZE).unwrap();
            for (n, at) in (0u16..).zip((0..PAGES * PAGE_SIZE).step_by(fill.len())) {
                memory.copy_in(at, &fill).unwrap();
                memory.write(at, n).unwrap();
            }
            let mut frame = Frame::empty();
            // As the last one in its place left them.
            (frame.checksum, frame.header_len, frame.len) = (Checksum::Validated, 7, 70_000);
            if !read(&memory, Descriptor::new(start as u64, len), &mut frame) {
                return Ok(());
            }
            prop_assert_eq!((frame.len, frame.checksum, frame.gso), (len, Checksum::Unknown, None));
            let len = len as usize;
            prop_assert!((14..=LONGEST.into()).contains(&len) && start + len <= memory.len());
            prop_assert_eq!(start / PAGE_SIZE, (start + len - 1) / PAGE_SIZE);
            let private = len.min(HEADER_MAX);
            let mut bytes = vec![0; private];
            memory.copy_out(start, &mut bytes).unwrap();
            prop_assert_eq!(frame.header(), bytes);
            let body = u16::try_from(len - private).unwrap();
            let body = Fragment::in_region(0, (start + private) as u64, body);
            let expected = (body.len > 0).then_some((body.place, body.len));
            prop_assert_eq!(frame.fragments.iter().map(|fragment| (fragment.place, fragment.len)).next(), expected);
            prop_assert_eq!(frame.fragments.len(), usize::from(expected.is_some()));
        }
    }
}

//! A front-end's end of a session, which sends messages byte by byte.

use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use hypervisor::Meter;
use offload::Features;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use vhost_user::{Device, DeviceOptions, Ended, Link, MemoryBudget, Paces, Renewal, Session};
use virtqueue::RingAddresses;
use wire::ethernet::MacAddr;

use super::protocol::message;
use super::served::{LIMIT, Served};

/// The device's address.
pub const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

/// A front-end's end of a session.
pub struct FrontEnd {
    pub socket: UnixStream,
    pub served: Arc<Served>,
    pub renewal: Arc<Renewal>,
    /// Counts the work of the session's rings.
    pub meter: Arc<Meter>,
    session: Option<JoinHandle<Ended>>,
}

impl FrontEnd {
    pub fn new(queues: u16) -> Self {
        let served = Arc::<Served>::default();
        Self::of(queues, served.clone(), served, Arc::default())
    }

    /// A front-end of this device, whose link can be set down.
    pub fn of(queues: u16, device: Arc<dyn Device>, served: Arc<Served>, link: Arc<Link>) -> Self {
        Self::made(queues, device, served, |session| session.of_device(Some(MAC), link))
    }

    /// A front-end with one pair of rings that may have so much memory mapped.
    pub fn within(budget: Arc<MemoryBudget>) -> Self {
        Self::prepared(|session| session.within(budget))
    }

    /// A front-end with one pair of rings, of a port that others came to before.
    pub fn at_pace(paces: &Arc<Paces>) -> Self {
        Self::prepared(|session| session.at_pace(paces.clone()))
    }

    fn prepared(prepare: impl FnOnce(Session) -> Session) -> Self {
        let served = Arc::<Served>::default();
        let of_device = |session: Session| session.of_device(Some(MAC), Arc::default());
        Self::made(1, served.clone(), served, |session| prepare(of_device(session)))
    }

    fn made(
        queues: u16,
        device: Arc<dyn Device>,
        served: Arc<Served>,
        prepare: impl FnOnce(Session) -> Session,
    ) -> Self {
        let (socket, theirs) = UnixStream::pair().unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        let options =
            DeviceOptions { queues, packed: true, offloads: Features::ALL, guest_offloads: true };
        let meter = Arc::<Meter>::default();
        meter.switch(true);
        let session = Session::new(options, device, meter.clone()).unwrap();
        let renewal = Renewal::new().unwrap();
        let session = prepare(session).offering_config_space(true).renewed_by(renewal.clone());
        let session = std::thread::spawn(move || session.run(theirs));
        Self { socket, served, renewal, meter, session: Some(session) }
    }

    /// Sends bytes and descriptors.
    pub fn raw(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        }
        // A session that has ended takes nothing more.
        let _ = sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL);
    }

    /// Sends a message.
    pub fn send(&self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        let size = u32::try_from(payload.len()).unwrap();
        let header = [request, 1, size].map(u32::to_le_bytes).concat();
        self.raw(&header, fds);
        if !payload.is_empty() {
            self.raw(payload, &[]);
        }
    }

    pub fn send_u64(&self, request: u32, value: u64) {
        self.send(request, &value.to_le_bytes(), &[]);
    }

    pub fn send_state(&self, request: u32, index: u32, value: u32) {
        self.send(request, &[index, value].map(u32::to_le_bytes).concat(), &[]);
    }

    /// The payload of the next reply.
    pub fn reply(&mut self) -> Vec<u8> {
        let mut header = [0; 12];
        self.socket.read_exact(&mut header).unwrap();
        let size = u32::from_le_bytes(header[8..].try_into().unwrap());
        let mut payload = vec![0; size as usize];
        self.socket.read_exact(&mut payload).unwrap();
        payload
    }

    /// The payload of the next reply, and the descriptors that come with it.
    pub fn reply_with_descriptors(&mut self) -> (Vec<u8>, Vec<OwnedFd>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut header = [0; 12];
        let mut parts = [IoSliceMut::new(&mut header)];
        let flags = RecvFlags::WAITALL | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.socket, &mut parts, &mut ancillary, flags).unwrap();
        assert_eq!(received.bytes, 12);
        let mut descriptors = Vec::new();
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = part {
                descriptors.extend(more);
            }
        }
        let size = u32::from_le_bytes(header[8..].try_into().unwrap());
        let mut payload = vec![0; size as usize];
        self.socket.read_exact(&mut payload).unwrap();
        (payload, descriptors)
    }

    pub fn ask_u64(&mut self, request: u32) -> u64 {
        self.send(request, &[], &[]);
        u64::from_le_bytes(self.reply().try_into().unwrap())
    }

    /// Waits until all messages have been read.
    pub fn sync(&mut self) {
        self.ask_u64(message::GET_FEATURES);
    }

    /// Sends the table of the guest's memory: guest address, length, front-end's address, offset.
    pub fn memory(&self, parts: &[[u64; 4]], fds: &[BorrowedFd<'_>]) {
        let mut payload = Vec::new();
        payload.extend(u32::try_from(parts.len()).unwrap().to_le_bytes());
        payload.extend([0; 4]);
        parts.iter().flatten().for_each(|value| payload.extend(value.to_le_bytes()));
        self.send(message::SET_MEM_TABLE, &payload, fds);
    }

    /// Describes a ring whose parts are at these offsets.
    pub fn ring(&self, index: u32, size: u32, at: RingAddresses, base: u32) {
        self.send_state(message::SET_VRING_NUM, index, size);
        self.send_state(message::SET_VRING_BASE, index, base);
        let mut payload = [index, 0].map(u32::to_le_bytes).concat();
        for address in [at.descriptors, at.device, at.driver, 0] {
            payload.extend(address.to_le_bytes());
        }
        self.send(message::SET_VRING_ADDR, &payload, &[]);
    }

    pub fn doorbell(&self, request: u32, index: u64, fd: impl AsFd) {
        self.send(request, &index.to_le_bytes(), &[fd.as_fd()]);
    }

    /// Why the session ended.
    pub fn end(mut self) -> String {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        self.session.take().unwrap().join().unwrap().why
    }

    /// Waits until the session ends because of what it was sent.
    pub fn ended(self) -> String {
        self.ended_how().why
    }

    /// The session's thread, for a test that goes on while it may end.
    pub fn take_session(&mut self) -> JoinHandle<Ended> {
        self.session.take().unwrap()
    }

    /// Waits until the session ends because of what it was sent.
    pub fn ended_how(mut self) -> Ended {
        let how = self.session.take().unwrap().join().unwrap();
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        how
    }
}

//! The messages of a front-end, each within a limit of time.
//!
//! Crate `vhost` has a front-end too. It waits for ever for a reply, and the position of a packed ring does not fit into its
//! message.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use port::Doorbell;
use rustix::event::{EventfdFlags, eventfd};
use vhost_user::Call;
use vhost_user::shared::{Alarm, Channel, Message, watch};
use virtqueue::Layout;

use crate::error::Error;
use crate::shared_memory::{GUEST, Ring, SharedMemory, USER};

/// How long a reply may take. A back-end may map much memory before it replies.
const REPLY_LIMIT: Duration = Duration::from_secs(5);

/// `VHOST_USER_VERSION`, `VHOST_USER_REPLY_MASK` and `VHOST_USER_NEED_REPLY_MASK`: flags of a message.
const VERSION: u32 = 1;
const IS_REPLY: u32 = 1 << 2;
const NEEDS_REPLY: u32 = 1 << 3;

/// `VHOST_USER_PROTOCOL_F_*`.
pub(crate) mod protocol {
    pub(crate) const MQ: u64 = 1 << 0;
    pub(crate) const REPLY_ACK: u64 = 1 << 3;
}

/// A message's number and its name, for an operator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request(u32, &'static str);

pub(crate) const GET_FEATURES: Request = Request(1, "GET_FEATURES");
pub(crate) const SET_FEATURES: Request = Request(2, "SET_FEATURES");
pub(crate) const SET_OWNER: Request = Request(3, "SET_OWNER");
const SET_MEM_TABLE: Request = Request(5, "SET_MEM_TABLE");
const SET_VRING_NUM: Request = Request(8, "SET_VRING_NUM");
const SET_VRING_ADDR: Request = Request(9, "SET_VRING_ADDR");
const SET_VRING_BASE: Request = Request(10, "SET_VRING_BASE");
const SET_VRING_KICK: Request = Request(12, "SET_VRING_KICK");
const SET_VRING_CALL: Request = Request(13, "SET_VRING_CALL");
pub(crate) const GET_PROTOCOL_FEATURES: Request = Request(15, "GET_PROTOCOL_FEATURES");
pub(crate) const SET_PROTOCOL_FEATURES: Request = Request(16, "SET_PROTOCOL_FEATURES");
pub(crate) const GET_QUEUE_NUM: Request = Request(17, "GET_QUEUE_NUM");
const SET_VRING_ENABLE: Request = Request(18, "SET_VRING_ENABLE");

/// The descriptors by which the two sides of a ring notify each other.
pub(crate) struct RingDescriptors {
    pub(crate) kick: OwnedFd,
    pub(crate) call: OwnedFd,
}

/// A conversation with a back-end.
pub(crate) struct Messages<'a> {
    channel: &'a mut Channel,
    /// An event of it ends every wait.
    stop: BorrowedFd<'a>,
    /// Whether the back-end answers each message (`REPLY_ACK`).
    pub(crate) are_answered: bool,
}

impl<'a> Messages<'a> {
    pub(crate) fn new(channel: &'a mut Channel, stop: BorrowedFd<'a>) -> Self {
        Self { channel, stop, are_answered: false }
    }

    /// Asks for a value.
    pub(crate) fn ask(&mut self, request: Request) -> Result<u64, Error> {
        self.send(request, VERSION, &[], Vec::new())?;
        self.reply(request)
    }

    /// Says a value.
    pub(crate) fn tell(&mut self, request: Request, value: u64) -> Result<(), Error> {
        self.order(request, &value.to_le_bytes(), Vec::new())
    }

    /// Says something without a value.
    pub(crate) fn say(&mut self, request: Request) -> Result<(), Error> {
        self.order(request, &[], Vec::new())
    }

    fn order(
        &mut self,
        request: Request,
        payload: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Error> {
        let flags = if self.are_answered { VERSION | NEEDS_REPLY } else { VERSION };
        self.send(request, flags, payload, descriptors)?;
        match self.are_answered.then(|| self.reply(request)).transpose()? {
            None | Some(0) => Ok(()),
            Some(code) => Err(Error::Refused { what: request.1, code }),
        }
    }

    fn send(
        &mut self,
        request: Request,
        flags: u32,
        payload: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Error> {
        let message = Message::new(request.0, flags, payload, descriptors);
        self.channel.send(&message, self.stop).map_err(Error::of(request.1))
    }

    fn reply(&mut self, request: Request) -> Result<u64, Error> {
        let reply = self.channel.receive_within(REPLY_LIMIT, self.stop);
        let reply = reply.map_err(Error::of(request.1))?;
        let is_its = reply.request() == request.0 && reply.flags() & IS_REPLY != 0;
        let value = reply.payload().try_into().ok().filter(|_| is_its);
        value.map(u64::from_le_bytes).ok_or(Error::BadReply(request.1))
    }

    pub(crate) fn share(&mut self, memory: &SharedMemory) -> Result<(), Error> {
        let regions = 1u64;
        let region = [GUEST, memory.region.len() as u64, USER, 0];
        let payload = [&[regions][..], &region].concat();
        let file = memory.file.as_fd().try_clone_to_owned()?;
        self.order(SET_MEM_TABLE, &bytes(&payload), vec![file])
    }

    /// Describes ring `index`.
    pub(crate) fn describe(
        &mut self,
        index: u8,
        ring: &Ring,
        layout: Layout,
        descriptors: RingDescriptors,
    ) -> Result<(), Error> {
        let number = u32::from(index);
        let state = |value: u32| [number, value].map(u32::to_le_bytes).concat();
        // The wrap counters of the next available and used descriptor of a packed ring.
        let base = if layout == Layout::Packed { 0x8000_8000 } else { 0 };
        self.order(SET_VRING_NUM, &state(ring.size.into()), Vec::new())?;
        self.order(SET_VRING_BASE, &state(base), Vec::new())?;
        let at = ring.at;
        // In the order of `vhost_vring_addr`, with no flags and no log.
        let addresses =
            [number.into(), USER + at.descriptors, USER + at.device, USER + at.driver, 0];
        self.order(SET_VRING_ADDR, &bytes(&addresses), Vec::new())?;
        let RingDescriptors { kick, call } = descriptors;
        self.order(SET_VRING_CALL, &bytes(&[index.into()]), vec![call])?;
        self.order(SET_VRING_KICK, &bytes(&[index.into()]), vec![kick])
    }

    /// Has the back-end serve ring `index`.
    pub(crate) fn enable(&mut self, index: u8) -> Result<(), Error> {
        let state = [u32::from(index), 1].map(u32::to_le_bytes).concat();
        self.order(SET_VRING_ENABLE, &state, Vec::new())
    }
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A ring's two eventfds, on this side.
pub(crate) struct Notifier {
    /// Announces buffers to the back-end.
    pub(crate) kick: Arc<Call>,
    /// Announces buffers that it has returned.
    pub(crate) call: Arc<Doorbell>,
}

impl Notifier {
    /// Makes both, and the back-end's descriptors of them. `alarm` rings if a write to the back-end's blocks.
    pub(crate) fn new(alarm: &Arc<Alarm>) -> io::Result<(Self, RingDescriptors)> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let theirs: OwnedFd = eventfd(0, flags)?;
        let kick = Arc::<Call>::default();
        kick.set(Some(theirs.try_clone()?.into())).map_err(io::Error::other)?;
        // The back-end can make the descriptor blocking and fill it up.
        watch(&kick, alarm)?;
        let call = Arc::new(Doorbell::new()?);
        let descriptors =
            RingDescriptors { kick: theirs, call: call.as_fd().try_clone_to_owned()? };
        Ok((Self { kick, call }, descriptors))
    }
}

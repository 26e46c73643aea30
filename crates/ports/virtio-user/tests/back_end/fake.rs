//! A back-end that answers as a test says, and has the rings in its hands.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use port::Doorbell;
use shm::Region;
use vhost_user::shared::{Channel, Message, bit};

/// Requests.
pub const GET_FEATURES: u32 = 1;
pub const SET_MEM_TABLE: u32 = 5;
const SET_VRING_ADDR: u32 = 9;
const SET_VRING_KICK: u32 = 12;
const SET_VRING_CALL: u32 = 13;
pub const GET_PROTOCOL_FEATURES: u32 = 15;
pub const GET_QUEUE_NUM: u32 = 17;

/// The front-end's first address by which it describes rings.
const USER: u64 = 1 << 40;

/// What a test does with a message in place of what a back-end does.
pub type Answer = fn(&Message) -> Option<Vec<u8>>;

/// A back-end after the conversation.
pub struct Fake {
    pub stream: UnixStream,
    pub memory: Region,
    /// Offsets of the rings: descriptors, the device's part.
    pub rings: Vec<[usize; 2]>,
    pub kicks: Vec<OwnedFd>,
    pub calls: Vec<OwnedFd>,
    is_packed: bool,
}

pub fn reply(request: u32, value: u64) -> Message {
    Message::new(request, 5, &value.to_le_bytes(), Vec::new())
}

impl Fake {
    /// Answers a front-end, in the first lap of whose rings a test acts, until it has described its rings.
    pub fn serve(stream: UnixStream, features: u64, answer: Answer) -> Option<Self> {
        let stop = Doorbell::new().unwrap();
        let mut channel = Channel::new(stream.try_clone().unwrap()).unwrap();
        let (mut memory, mut rings) = (None, Vec::new());
        let (mut kicks, mut calls) = (Vec::new(), Vec::new());
        let mut asked = 0;
        loop {
            let mut message = channel.receive(stop.as_fd()).ok()?;
            if let Some(bytes) = answer(&message) {
                (&stream).write_all(&bytes).ok()?;
                continue;
            }
            let word = |at: usize| {
                let word = message.payload().get(at..at + 8)?;
                Some(u64::from_le_bytes(word.try_into().ok()?))
            };
            let is_last = message.request() == GET_FEATURES && asked == 1;
            let value = match message.request() {
                GET_FEATURES => {
                    asked += 1;
                    Some(features)
                }
                GET_PROTOCOL_FEATURES => Some(1 << 3),
                GET_QUEUE_NUM => Some(1),
                SET_MEM_TABLE => {
                    assert_eq!(
                        (word(0), word(32)),
                        (Some(1), Some(0)),
                        "one region, from its start on"
                    );
                    let len = usize::try_from(word(16).unwrap()).unwrap();
                    let file: File = message.take_descriptors().remove(0).into();
                    assert_eq!(file.metadata().unwrap().len(), len as u64, "nothing else");
                    let whole = Arc::new(Region::map(&file, 0, len).unwrap());
                    memory = whole.slice(0..len).ok();
                    None
                }
                SET_VRING_ADDR => {
                    let at = |word: Option<u64>| usize::try_from(word.unwrap() - USER).unwrap();
                    rings.push([at(word(8)), at(word(16))]);
                    None
                }
                SET_VRING_KICK => {
                    kicks.extend(message.take_descriptors());
                    None
                }
                SET_VRING_CALL => {
                    calls.extend(message.take_descriptors());
                    None
                }
                _ => None,
            };
            let needs_reply = message.flags() & 8 != 0;
            if let Some(value) = value.or(needs_reply.then_some(0)) {
                channel.send(&reply(message.request(), value), stop.as_fd()).ok()?;
            }
            if is_last {
                let is_packed = features & bit::RING_PACKED != 0;
                return Some(Self { stream, memory: memory?, rings, kicks, calls, is_packed });
            }
        }
    }

    /// Returns buffer `id` as the `n`th of a ring.
    pub fn give_back(&self, ring: usize, n: u16, id: u32, written: u32) {
        let [descriptors, device] = self.rings[ring];
        if self.is_packed {
            let word = u64::from(written) | u64::from(id) << 32 | 0x8080 << 48;
            self.memory.write(descriptors + 16 * usize::from(n) + 8, word).unwrap();
        } else {
            self.memory.write(device + 4 + 8 * usize::from(n), [id, written]).unwrap();
            self.memory.write(device + 2, n + 1).unwrap();
        }
    }

    /// The offset of the buffer that a ring's first descriptor names.
    pub fn first_buffer(&self, ring: usize) -> usize {
        let address: u64 = self.memory.read(self.rings[ring][0]).unwrap();
        usize::try_from(address - (1 << 32)).unwrap()
    }
}

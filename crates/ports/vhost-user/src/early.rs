//! A message that QEMU sends before crate `vhost` takes it.
//!
//! QEMU enables the rings of a network device when it plugs it, long before a guest's driver accepts features. `vhost`
//! takes `SET_VRING_ENABLE` only after features that include `PROTOCOL_FEATURES` were accepted, and ends the session
//! otherwise. So this file reads the message if it comes earlier.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;

use rustix::net::{RecvFlags, recv};

/// `VHOST_USER_SET_VRING_ENABLE`
const SET_VRING_ENABLE: u32 = 18;
/// The words of the message: request, flags, size; ring, state.
const WORDS: usize = 5;
/// The bytes of its payload.
const PAYLOAD: u32 = 8;
/// The message's flags: version 1, and whether the front-end waits for an answer.
const VERSION: u32 = 1;
const NEED_REPLY: u32 = 1 << 3;
/// The answer's.
const REPLY: u32 = 1 << 2;

/// A ring is switched on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Enable {
    pub(crate) ring: u32,
    pub(crate) is_on: bool,
    needs_reply: bool,
}

impl Enable {
    /// Takes the next message if it is whole and switches a ring. Waits for a message.
    ///
    /// # Errors
    /// The connection's.
    pub(crate) fn take(mut stream: &UnixStream) -> io::Result<Option<Self>> {
        let mut bytes = [0; 4 * WORDS];
        let (_, len) = recv(stream, &mut bytes[..], RecvFlags::PEEK)?;
        let Some(found) = Self::parse(&bytes[..len]) else { return Ok(None) };
        // Descriptors that come with it are closed here.
        stream.read_exact(&mut bytes)?;
        Ok(Some(found))
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let words: [[u8; 4]; WORDS] = bytes.as_chunks().0.try_into().ok()?;
        let [request, flags, size, ring, state] = words.map(u32::from_ne_bytes);
        let is_it = request == SET_VRING_ENABLE
            && flags & !NEED_REPLY == VERSION
            && size == PAYLOAD
            && state <= 1;
        is_it.then_some(Self { ring, is_on: state == 1, needs_reply: flags & NEED_REPLY != 0 })
    }

    /// Answers it, if the front-end waits for that.
    ///
    /// # Errors
    /// The connection's.
    pub(crate) fn answer(self, mut stream: &UnixStream) -> io::Result<()> {
        if !self.needs_reply {
            return Ok(());
        }
        let answer = [SET_VRING_ENABLE, VERSION | REPLY, PAYLOAD, 0, 0];
        stream.write_all(answer.map(u32::to_ne_bytes).as_flattened())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(words: [u32; 5]) -> Vec<u8> {
        words.map(u32::to_ne_bytes).as_flattened().to_vec()
    }

    #[test]
    fn only_a_whole_message_that_switches_a_ring_is_taken() {
        let on = message([18, 1, 8, 3, 1]);
        assert_eq!(Enable::parse(&on), Some(Enable { ring: 3, is_on: true, needs_reply: false }));
        let off = message([18, 9, 8, 0, 0]);
        assert_eq!(Enable::parse(&off), Some(Enable { ring: 0, is_on: false, needs_reply: true }));
        for other in [[18, 1, 8, 3, 2], [18, 2, 8, 3, 1], [18, 1, 4, 3, 1], [2, 1, 8, 3, 1]] {
            assert_eq!(Enable::parse(&message(other)), None, "{other:?}");
        }
        assert_eq!(Enable::parse(&on[..19]), None);
        assert_eq!(Enable::parse(&[]), None);
    }

    #[test]
    fn another_message_stays_where_it_is() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(&message([1, 1, 0, 18, 1])).unwrap();
        assert_eq!(Enable::take(&theirs).unwrap(), None);
        let mut bytes = [0; 20];
        (&theirs).read_exact(&mut bytes).unwrap();
        assert_eq!(bytes[..], message([1, 1, 0, 18, 1]));
        ours.write_all(&message([18, 9, 8, 1, 1])).unwrap();
        let enable = Enable::take(&theirs).unwrap().unwrap();
        enable.answer(&theirs).unwrap();
        ours.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes[..], message([18, 5, 8, 0, 0]));
    }
}

//! Framing: messages out of a stream of bytes.

use super::Kind;
use crate::store::PAYLOAD_MAX;

/// Bytes in a message's header (`struct xsd_sockmsg`).
pub const HEADER_LEN: usize = 16;

/// Why bytes are not a message, or a request cannot become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The payload is longer than [`PAYLOAD_MAX`]. The start of the next message on the stream is
    /// then unknown (or 4 GiB away), so the connection must be closed.
    #[error("payload of {0} bytes, at most {PAYLOAD_MAX} are allowed")]
    TooLong(usize),
    /// A string holds a NUL byte, which would end it early.
    #[error("a string holds a NUL byte")]
    Nul,
}

/// One message, request or reply. Its payload is at most [`PAYLOAD_MAX`] bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    kind: u32,
    req_id: u32,
    tx_id: u32,
    payload: Vec<u8>,
}

impl Message {
    /// A message to send.
    ///
    /// # Errors
    /// [`WireError::TooLong`]: sending it would make the other end close the connection.
    pub fn new(kind: Kind, req_id: u32, tx_id: u32, payload: Vec<u8>) -> Result<Self, WireError> {
        if payload.len() > PAYLOAD_MAX {
            return Err(WireError::TooLong(payload.len()));
        }
        let kind = kind.number();
        Ok(Self { kind, req_id, tx_id, payload })
    }

    /// The message's type; none if its number is unknown, which is not a framing error.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        Kind::from_number(self.kind)
    }

    /// The number that the requester gave the request; a reply repeats it.
    #[must_use]
    pub fn req_id(&self) -> u32 {
        self.req_id
    }

    /// The transaction's number; 0 outside of a transaction.
    #[must_use]
    pub fn tx_id(&self) -> u32 {
        self.tx_id
    }

    /// What follows the header.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The payload alone.
    #[must_use]
    pub fn into_payload(self) -> Vec<u8> {
        self.payload
    }

    /// The message as it travels.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let len = u32::try_from(self.payload.len()).expect("at most PAYLOAD_MAX, by construction");
        let mut bytes = Vec::with_capacity(HEADER_LEN + self.payload.len());
        for word in [self.kind, self.req_id, self.tx_id, len] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&self.payload);
        bytes
    }
}

/// Finds messages in a stream of bytes.
///
/// Take all messages after each part; what then stays buffered is less than one message.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Bytes at the buffer's start that were handed out already.
    taken: usize,
}

impl Decoder {
    /// A decoder at the start of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.taken);
        self.taken = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next message, if it is complete.
    ///
    /// # Errors
    /// [`WireError::TooLong`] as soon as a header claims too much, and on every later call:
    /// the stream cannot be followed any further.
    pub fn next_message(&mut self) -> Result<Option<Message>, WireError> {
        let rest = &self.buffer[self.taken..];
        let Some((header, body)) = rest.split_first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let [kind, req_id, tx_id, len] = words(header);
        // Checked first, so that a false length costs no memory.
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > PAYLOAD_MAX {
            return Err(WireError::TooLong(len));
        }
        let Some(payload) = body.get(..len) else {
            return Ok(None);
        };
        let message = Message { kind, req_id, tx_id, payload: payload.to_vec() };
        self.taken += HEADER_LEN + len;
        Ok(Some(message))
    }
}

fn words(header: &[u8; HEADER_LEN]) -> [u32; 4] {
    let mut words = [0; 4];
    let (chunks, _) = header.as_chunks::<4>();
    for (word, bytes) in words.iter_mut().zip(chunks) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn header_is_four_little_endian_words() {
        let message = Message::new(Kind::Read, 0x0102_0304, 7, b"name\0".to_vec()).unwrap();
        let expected = b"\x02\0\0\0\x04\x03\x02\x01\x07\0\0\0\x05\0\0\0name\0";
        assert_eq!(message.to_bytes(), expected);
    }

    #[test]
    fn a_claim_beyond_the_maximum_ends_the_stream() {
        let mut header = Message::new(Kind::Read, 1, 0, Vec::new()).unwrap().to_bytes();
        header[12..].copy_from_slice(&4097u32.to_le_bytes());
        let mut decoder = Decoder::new();
        decoder.push(&header);
        assert_eq!(decoder.next_message(), Err(WireError::TooLong(4097)));
        decoder.push(&[0; 8192]);
        assert_eq!(decoder.next_message(), Err(WireError::TooLong(4097)));
    }

    #[test]
    fn payload_bound_is_inclusive() {
        let new = |len| Message::new(Kind::Write, 1, 0, vec![0; len]);
        assert!(new(PAYLOAD_MAX).is_ok());
        assert_eq!(new(PAYLOAD_MAX + 1), Err(WireError::TooLong(PAYLOAD_MAX + 1)));
    }

    fn message() -> impl Strategy<Value = Message> {
        (any::<[u32; 3]>(), prop::collection::vec(any::<u8>(), 0..64))
            .prop_map(|([kind, req_id, tx_id], payload)| Message { kind, req_id, tx_id, payload })
    }

    /// Feeds `bytes` in parts of the given sizes and takes out all complete messages.
    fn decode(bytes: &[u8], sizes: &[usize]) -> (Vec<Message>, Option<WireError>) {
        let mut decoder = Decoder::new();
        let mut messages = Vec::new();
        let mut rest = bytes;
        let mut sizes = sizes.iter().copied().chain(std::iter::repeat(usize::MAX));
        while !rest.is_empty() {
            let (part, tail) = rest.split_at(sizes.next().unwrap_or(1).clamp(1, rest.len()));
            rest = tail;
            decoder.push(part);
            loop {
                match decoder.next_message() {
                    Ok(Some(message)) => messages.push(message),
                    Ok(None) => break,
                    Err(error) => return (messages, Some(error)),
                }
            }
        }
        (messages, None)
    }

    proptest! {
        #[test]
        fn messages_survive_any_cut(
            messages in prop::collection::vec(message(), 0..8),
            sizes in prop::collection::vec(1usize..40, 0..64),
        ) {
            let bytes: Vec<u8> = messages.iter().flat_map(Message::to_bytes).collect();
            prop_assert_eq!(decode(&bytes, &sizes), (messages, None));
        }

        #[test]
        fn cuts_do_not_change_what_garbage_means(
            bytes in prop::collection::vec(prop_oneof![3 => Just(0u8), 1 => any::<u8>()], 0..256),
            sizes in prop::collection::vec(1usize..40, 0..64),
        ) {
            prop_assert_eq!(decode(&bytes, &sizes), decode(&bytes, &[]));
        }
    }
}

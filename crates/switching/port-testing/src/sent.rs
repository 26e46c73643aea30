//! What the other side of a port sends.

use port::{DropReason, Frame, HEADER_MAX};
use wire::headers::Headers;

/// A frame with the first of these bytes as its private header, and a body of which only the length is known.
pub fn frame(bytes: &[u8]) -> Frame {
    let mut frame = Frame::empty();
    let header = &bytes[..bytes.len().min(HEADER_MAX)];
    frame.bytes[..header.len()].copy_from_slice(header);
    frame.header_len = u8::try_from(header.len()).expect("at most HEADER_MAX");
    frame.headers = Headers::parse_start(header, bytes.len()).expect("well-formed headers");
    frame.len = u32::try_from(bytes.len()).expect("a frame's length");
    frame
}

/// A frame on its way into a port.
#[derive(Clone, Debug)]
pub struct Sent {
    /// The frame, without pieces. A length of 0 makes it a malformed packet.
    pub frame: Frame,
    /// The bytes behind its private header. May be empty where a test needs no body.
    pub body: Vec<u8>,
    /// Why the port itself refuses the frame, if it does.
    pub refused: Option<DropReason>,
}

impl Sent {
    /// The frame's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        [self.frame.header(), &self.body].concat()
    }
}

impl<T: AsRef<[u8]>> From<T> for Sent {
    fn from(bytes: T) -> Self {
        let frame = frame(bytes.as_ref());
        let body = bytes.as_ref()[frame.header().len()..].to_vec();
        Self { frame, body, refused: None }
    }
}

//! The handshake between the two ends of a device (`public/io/xenbus.h`).

use std::fmt;

named::each! {
    /// Where one end of a device stands, as the decimal number in its `state` key.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(u8)]
    pub enum XenbusState {
        /// The toolstack has made the node.
        Initialising = 1,
        /// The backend has written its features and waits for the frontend.
        InitWait = 2,
        /// The frontend has written its rings.
        Initialised = 3,
        /// This end carries traffic.
        Connected = 4,
        /// This end is going away.
        Closing = 5,
        /// This end has released everything that belongs to the other.
        Closed = 6,
        /// The frontend changes its features (XDP headroom).
        Reconfiguring = 7,
        /// The backend has taken the change.
        Reconfigured = 8,
    }
}

impl XenbusState {
    /// Reads a `state` key. Anything but a known number is none: the other end may write nonsense.
    pub fn parse(text: &str) -> Option<Self> {
        let number: u8 = text.trim().parse().ok()?;
        Self::ALL.into_iter().find(|state| *state as u8 == number)
    }
}

impl fmt::Display for XenbusState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (*self as u8).fmt(f)
    }
}

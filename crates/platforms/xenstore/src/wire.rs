//! The wire protocol of xenstore: bytes to requests, replies and back.
//!
//! Source: Xen's `public/io/xs_wire.h` and `docs/misc/xenstore.txt`. A message is a header of four
//! little-endian words (type, `req_id`, `tx_id`, length) and at most
//! [`PAYLOAD_MAX`](crate::PAYLOAD_MAX) bytes of payload, mostly strings that end in a NUL. The same
//! bytes travel over a socket to xenstored, over `/dev/xen/xenbus` and over the socket of an
//! embedded guest. Client and server both use this module.
//!
//! All input may come from a hostile peer: no function panics on any input, and every length is
//! checked before it is used.

mod error;
mod kind;
mod message;
pub mod path;
pub mod permissions;
mod reply;
mod request;
pub mod text;

pub use error::ErrorCode;
pub use kind::Kind;
pub use message::{Decoder, HEADER_LEN, Message, WireError};
pub use path::AbsPath;
pub use reply::{DirectoryPart, OK, parse_watch_event, watch_event};
pub use request::Request;

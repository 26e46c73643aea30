//! Memory that another domain can write.
//!
//! A [`Region`] is a mapped range of it. No method returns a reference to the bytes: the other side
//! may change them at any moment, which a Rust reference forbids, and a value read twice may differ
//! after its check (double fetch, XSA-155). Bytes are copied once into private memory, and the copy
//! is checked and used. The compiler cannot undo that: it may not repeat the atomic accesses that
//! values are read and written by, and it cannot see through the copies
//! (docs/decisions/0017-reads-that-cannot-be-repeated.md).
//!
//! Every access is bounds-checked and returns [`OutOfBounds`] instead of panicking, since offsets
//! may come from a guest.

mod code;
mod io;
mod message;
mod pages;
mod region;
mod reserved;
mod space;

pub use code::lock_code;
pub use io::{IOVECS_MAX, Iovec, readv, writev};
pub use message::{DESCRIPTORS_MAX, Received, Sender, closes_at_once, receive};
pub use pages::{
    PageSize, create_memfd, create_sealable_memfd, create_secret_file, seal_future_writes,
};
pub use region::{OutOfBounds, Region};
pub use reserved::Reserved;
pub use space::{Replaced, Space};

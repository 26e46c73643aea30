//! Memory that another domain can write.
//!
//! A [`Region`] is a mapped range of it. No method hands out a reference to the bytes: the
//! other side may change them at any moment, which a Rust reference forbids and which turns
//! a checked value into an unchecked one (double fetch, XSA-155). What is read is copied once
//! into private memory, and the copy is what gets checked and used.
//!
//! Every access is bounds-checked, and answers [`OutOfBounds`] rather than panicking, since
//! offsets may stem from a guest.

mod io;
mod pages;
mod region;
mod reserved;
mod space;

pub use io::{Piece, read_pieces, write_pieces};
pub use pages::{PageSize, create_memfd};
pub use region::{OutOfBounds, Region};
pub use reserved::Reserved;
pub use space::{Replaced, Space};

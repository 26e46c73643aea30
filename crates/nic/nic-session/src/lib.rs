//! The connections of a card with contexts (concurrent direct network access, Willmann et al. 2007),
//! where the card is a process.
//!
//! ```text
//! card                                    daemon                                    guest
//!   Join ───────────────────────────────►
//!        ◄─────────────────── Settings, or why not
//!   Hello ──────────────────────────────►
//!        ◄─────────────────────── Start, AddMemory …
//!                                                ◄───────────────────────────── Open
//!        ◄────────────────────────── Prepare      ─────────────────────────────►
//!   Prepared ───────────────────────────►
//!                                         changed ─────────────────────────────►
//!                                                ◄──────────────────────────── Pages
//!                                                 ───────────────── the files ─►
//!                                                ◄─────────────────────────── Mapped
//!        ◄──────────────────────────── Assign
//! ```
//!
//! The card's connection is a [`card::Connection`] and a [`host::Connection`]; the guest's a
//! [`channel::GuestEnd`], which the daemon serves with [`channel::receive`] and [`channel::answer`].

#![forbid(unsafe_code)]

pub mod card;
pub mod channel;
pub mod files;
pub mod host;
pub mod message;

pub use message::{Settings, WireSettings};

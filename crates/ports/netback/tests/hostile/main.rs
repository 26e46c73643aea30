//! For any content of a guest's rings, grant table and pages, and any change of them while the
//! backend reads: the backend does not panic, answers only real requests, and touches no other
//! memory.

#[path = "../common/mod.rs"]
mod common;

mod adopted;
mod completions;
mod control;
mod copier;
mod flip;
mod granting;
mod guest_copy;
mod half_pages;
mod hash;
mod lend;
mod offloads;
mod persistent;
mod pool;
mod receive;
mod restart;
mod reuse;
mod states;
mod transmit;
mod xdp;

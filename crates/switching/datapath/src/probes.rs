//! Probes for bpftrace, SystemTap and GDB (USDT), of provider `pvnet`.
//!
//! A probe is a `nop` in the code and a note in the program's file. All are per batch. A text is two arguments: its address and its
//! length in bytes. The macro of crate `probe` has `unsafe` inside and evaluates its arguments there, so they are plain variables.

use probe::probe;

/// A worker has taken frames from an ingress queue of a port.
#[inline(always)]
pub(crate) fn ingress(port: &str, frames: usize, bytes: u64) {
    let (name, len) = (port.as_ptr(), port.len());
    probe!(pvnet, ingress, name, len, frames, bytes);
}

/// The switch has found where frames of a port go: to the port named `to`, or to several (`*`), or nowhere (empty).
#[inline(always)]
pub(crate) fn switch(port: &str, to: &str, frames: usize) {
    let (name, len) = (port.as_ptr(), port.len());
    let (to, to_len) = (to.as_ptr(), to.len());
    probe!(pvnet, switch, name, len, to, to_len, frames);
}

/// A queue of a port was offered `offered` frames, and has accepted `frames` of `bytes` bytes; the others wait or were dropped.
#[inline(always)]
pub(crate) fn egress(port: &str, queue: usize, offered: usize, frames: u64, bytes: u64) {
    let (name, len) = (port.as_ptr(), port.len());
    probe!(pvnet, egress, name, len, queue, offered, frames, bytes);
}

/// Frames from or for a port were dropped.
#[inline(always)]
pub(crate) fn dropped(port: &str, reason: &str, frames: u64) {
    let (name, len) = (port.as_ptr(), port.len());
    let (reason, reason_len) = (reason.as_ptr(), reason.len());
    probe!(pvnet, drop, name, len, reason, reason_len, frames);
}

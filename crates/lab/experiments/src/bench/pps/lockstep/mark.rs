//! Marks, between which pvscope records.
//!
//! A mark is the load of a constant into a register. The program needs no `unsafe` code for it, and no compiler chooses the number.

use std::hint::black_box;

/// What begins a window, as `scope_recorder::MARK_BEGIN_CONSTANT`.
const BEGIN: u64 = u64::from_le_bytes(*b"pvs<beg>");
const END: u64 = u64::from_le_bytes(*b"pvs<end>");

/// Recording begins when this returns.
#[inline(never)]
pub fn begin() {
    black_box(BEGIN);
}

/// Recording has ended when this returns.
#[inline(never)]
pub fn end() {
    black_box(END);
}

//! What the tests and the fuzz targets of the backend need: guests, their devices, a hypervisor between whose
//! operations a guest acts.

#![allow(dead_code, reason = "each of them uses its part")]

pub mod guest;
pub mod taker;
pub mod tampered;

//! Frames whose bodies lie in granted and in mapped memory.

mod common;

mod bytes;
mod finish;
mod flow;
mod vlan;

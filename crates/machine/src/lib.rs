//! The embedded hypervisor: domains are processes.

#![forbid(unsafe_code)]

//! The hypervisor's services as traits: grants, event channels, the store.

#![forbid(unsafe_code)]

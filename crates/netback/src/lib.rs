//! The backend of a Xen virtual interface.

#![forbid(unsafe_code)]

//! A frontend's end of netif without checks, for programs that replace xen-netfront in a guest. They run as root, where
//! `xen-evtchn` and `xen-gntalloc` are loaded.

pub mod device;
pub mod ring;

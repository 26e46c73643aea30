//! One end of netif without checks, for programs that run in a guest in place of xen-netfront: as root, where `xen-evtchn` and
//! `xen-gntalloc` are loaded.

pub mod device;
pub mod ring;

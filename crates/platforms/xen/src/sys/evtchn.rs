//! `/dev/xen/evtchn` (`xen/evtchn.h`).

use std::os::fd::BorrowedFd;

use rustix::io::{Errno, Result};
use rustix::ioctl::Opcode;

use super::{call, number};

const BIND_INTERDOMAIN: Opcode = number(b'E', 1, size_of::<BindInterdomain>());
const BIND_UNBOUND_PORT: Opcode = number(b'E', 2, size_of::<BindUnboundPort>());
const NOTIFY: Opcode = number(b'E', 4, size_of::<Notify>());
const RESET: Opcode = number(b'E', 5, 0);
const RESTRICT_DOMID: Opcode = number(b'E', 6, size_of::<RestrictDomid>());

/// `struct ioctl_evtchn_bind_interdomain`
#[repr(C)]
struct BindInterdomain {
    remote_domain: u32,
    remote_port: u32,
}

/// `struct ioctl_evtchn_bind_unbound_port`
#[repr(C)]
struct BindUnboundPort {
    remote_domain: u32,
}

/// `struct ioctl_evtchn_notify`
#[repr(C)]
struct Notify {
    port: u32,
}

/// `struct ioctl_evtchn_restrict_domid`
#[repr(C)]
struct RestrictDomid {
    domid: u16,
}

const _: () = {
    assert!(BIND_INTERDOMAIN == 0x0008_4501);
    assert!(BIND_UNBOUND_PORT == 0x0004_4502);
    assert!(NOTIFY == 0x0004_4504);
    assert!(RESET == 0x0000_4505);
    assert!(RESTRICT_DOMID == 0x0002_4506);
};

/// Binds to a port that `remote_domain` offered to this domain; returns the port at this end.
pub(crate) fn bind_interdomain(
    fd: BorrowedFd<'_>,
    remote_domain: u16,
    remote_port: u32,
) -> Result<u32> {
    let mut bind = BindInterdomain { remote_domain: remote_domain.into(), remote_port };
    // SAFETY: the device reads one `struct ioctl_evtchn_bind_interdomain`.
    port(unsafe { call::<BIND_INTERDOMAIN, _>(fd, &mut bind)? })
}

/// Offers a new port to `remote_domain`.
pub(crate) fn bind_unbound_port(fd: BorrowedFd<'_>, remote_domain: u16) -> Result<u32> {
    let mut bind = BindUnboundPort { remote_domain: remote_domain.into() };
    // SAFETY: the device reads one `struct ioctl_evtchn_bind_unbound_port`.
    port(unsafe { call::<BIND_UNBOUND_PORT, _>(fd, &mut bind)? })
}

fn port(answer: i32) -> Result<u32> {
    u32::try_from(answer).map_err(|_| Errno::INVAL)
}

/// Sends an event to the other end of `port`.
pub(crate) fn notify(fd: BorrowedFd<'_>, port: u32) -> Result<()> {
    // SAFETY: the device reads one `struct ioctl_evtchn_notify`.
    unsafe { call::<NOTIFY, _>(fd, &mut Notify { port }).map(drop) }
}

/// Empties the queue of ports with events and clears its overflow.
pub(crate) fn reset(fd: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: the device takes no argument, and reads none.
    unsafe { call::<RESET, _>(fd, &mut ()).map(drop) }
}

/// Restricts this descriptor to one domain from now on.
pub(crate) fn restrict_domid(fd: BorrowedFd<'_>, domid: u16) -> Result<()> {
    // SAFETY: the device reads one `struct ioctl_evtchn_restrict_domid`.
    unsafe { call::<RESTRICT_DOMID, _>(fd, &mut RestrictDomid { domid }).map(drop) }
}

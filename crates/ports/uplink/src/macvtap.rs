//! A macvtap: the frames of a physical or virtual NIC, read and written as those of a tap.
//!
//! The interface must exist, in mode `passthru`: then it has all frames of the NIC under it, and its queues are those of
//! a tap in all but how they are opened.

use rustix::fs::{CWD, FileType, Mode, OFlags, makedev};
use rustix::io::Errno;

use crate::sysfs;
use crate::tap::{Opening, TapError, TapOffload, TapQueue};

/// A macvtap interface, from which queues are opened.
#[derive(Debug)]
pub enum Macvtap {}

impl Macvtap {
    /// Opens `queues` queues of the macvtap `name` in the network namespace of the calling thread, and sets its offloads.
    ///
    /// # Errors
    /// See [`TapError`]; queues opened before an error are closed.
    pub fn open(name: &str, queues: usize, offload: TapOffload) -> Result<Vec<TapQueue>, TapError> {
        let opening = Opening::new(name, queues, offload)?;
        let (major, minor) = sysfs::macvtap(name)
            .map_err(|errno| opening.error("number of its device in sysfs", errno))?;
        // A node of ours, because /dev/tapN is named after an index that each network namespace counts anew.
        let node = format!("/dev/.pvnet-macvtap-{}-{minor}", std::process::id());
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(CWD, &node, FileType::CharacterDevice, mode, makedev(major, minor))
            .map_err(|errno| opening.error("mknod in /dev", errno))?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = |_| match rustix::fs::open(&node, flags, Mode::empty()) {
            Ok(fd) => opening.prepare(fd, offload),
            Err(Errno::BUSY) => Err(TapError::NameTaken { name: name.into() }),
            Err(errno) => Err(opening.error("open of a macvtap", errno)),
        };
        let queues = (0..queues).map(open).collect();
        // If this fails, a node without a use stays in /dev.
        let _ = rustix::fs::unlink(&node);
        queues
    }
}

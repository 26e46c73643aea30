//! A network without anybody else.

use std::os::fd::AsFd as _;

use lab::Namespace;
use rustix::process::geteuid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::{Error, Result};

/// Moves this thread into a network of its own, where windows make their taps. None without root.
pub fn enter() -> Result<Option<Namespace>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let namespace = Namespace::create("lockstep")?;
    let path = namespace.path();
    let file = std::fs::File::open(&path).map_err(|source| Error::Path { path, source })?;
    let enter = move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network));
    enter.map_err(|errno| Error::Failed(format!("entering a namespace: {errno}")))?;
    Ok(Some(namespace))
}

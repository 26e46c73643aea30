//! Byte streams between QEMU and this process.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lab::{Interrupt, Process};

use super::console_tail;
use crate::{Error, Result};

/// How long QEMU may take to connect its ports.
const CONNECT: Duration = Duration::from_secs(20);
/// How often to check whether QEMU has connected.
const POLL: Duration = Duration::from_millis(5);

/// A socket that QEMU connects to.
#[derive(Debug)]
pub(super) struct SerialPort {
    pub(super) number: usize,
    path: PathBuf,
    listener: UnixListener,
}

impl SerialPort {
    pub(super) fn new(folder: &Path, number: usize) -> Result<Self> {
        let path = folder.join(format!("port-{number}"));
        let listener = UnixListener::bind(&path).map_err(Error::path(&path))?;
        listener.set_nonblocking(true).map_err(Error::path(&path))?;
        Ok(Self { number, path, listener })
    }

    pub(super) fn chardev(&self) -> String {
        format!("socket,id=port{},path={}", self.number, self.path.display())
    }

    pub(super) fn accept(&self, qemu: &mut Process, log: &Path) -> Result<UnixStream> {
        let start = Instant::now();
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).map_err(Error::path(&self.path))?;
                    return Ok(stream);
                }
                Err(cause) if cause.kind() != std::io::ErrorKind::WouldBlock => {
                    return Err(Error::path(&self.path)(cause));
                }
                Err(_) => {}
            }
            let cause = match qemu.ended()? {
                Some(status) => format!("QEMU ended ({status}): {}", qemu.stderr().trim()),
                None if start.elapsed() > CONNECT => "QEMU does not connect its ports".to_owned(),
                None => {
                    Interrupt::sleep(POLL)?;
                    continue;
                }
            };
            let what = "the machine in QEMU".to_owned();
            return Err(Error::Boot { what, cause, console: console_tail(log) });
        }
    }
}

/// QEMU's argument for a virtio-serial port with this number and its chardev.
pub(super) fn device(number: usize) -> String {
    format!("virtserialport,chardev=port{number},nr={number},name=lab.{number}")
}

//! What a stream begins with.

use crate::pcapng::{self, Preamble};
use crate::request::Options;

/// The program that writes the stream.
const APPLICATION: &str = concat!("pvnet ", env!("CARGO_PKG_VERSION"));

/// The blocks before the first packet, with an interface for each of these ports.
pub(crate) fn preamble(ports: &[String], options: &Options) -> Vec<u8> {
    let mut blocks = Vec::new();
    let preamble = Preamble {
        application: APPLICATION,
        os: &os(),
        interfaces: ports,
        snaplen: u32::try_from(options.snaplen()).unwrap_or(u32::MAX),
        filter: &options.filter,
    };
    pcapng::append_preamble(&mut blocks, &preamble);
    blocks
}

/// The operating system's name and release.
fn os() -> String {
    let uname = rustix::system::uname();
    format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy())
}

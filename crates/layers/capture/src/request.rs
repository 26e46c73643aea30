//! An operator's request for a capture, as the control socket carries it, and the first blocks of the stream that answers it.

use port::FRAME_MAX;
use serde::{Deserialize, Serialize};

use crate::pcapng::{self, Preamble};

/// A request for a capture: where, and what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureRequest {
    /// The port's name: a guest's or an uplink's.
    pub port: String,
    /// What to capture there.
    #[serde(default)]
    pub options: Options,
}

/// What to capture at a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Most bytes recorded per packet; 0 for whole packets, as tcpdump has it.
    pub snaplen: u32,
    /// Whether frames to be segmented are recorded as their segments.
    pub segmented: bool,
    /// After how many packets the capture ends. Without it, there is no limit.
    pub count: Option<u64>,
    /// The text of a [`Filter`](crate::Filter); empty for every frame.
    pub filter: String,
}

impl Options {
    /// Most bytes recorded per packet.
    pub(crate) fn snaplen(&self) -> usize {
        match usize::try_from(self.snaplen) {
            Ok(0) | Err(_) => FRAME_MAX,
            Ok(len) => len.min(FRAME_MAX),
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_are_missing_have_their_defaults() {
        let request: CaptureRequest = serde_json::from_str(r#"{"port":"red"}"#).unwrap();
        assert_eq!(request, CaptureRequest { port: "red".into(), options: Options::default() });
        let text =
            r#"{"port":"wan","options":{"snaplen":96,"segmented":true,"count":10,"filter":"arp"}}"#;
        let request: CaptureRequest = serde_json::from_str(text).unwrap();
        let filter = "arp".into();
        let options = Options { snaplen: 96, segmented: true, count: Some(10), filter };
        assert_eq!(request, CaptureRequest { port: "wan".into(), options });
        assert_eq!(serde_json::to_string(&request).unwrap(), text);
    }

    #[test]
    fn an_unknown_option_is_refused() {
        let text = r#"{"port":"red","options":{"ring":5}}"#;
        let error = serde_json::from_str::<CaptureRequest>(text).unwrap_err();
        assert!(error.to_string().contains("unknown field `ring`"), "{error}");
    }
}

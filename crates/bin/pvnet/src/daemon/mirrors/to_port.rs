//! A mirror whose copies go to a port.

use std::sync::Arc;

use datapath::{Datapath, Port};
use mirror::{Mirror, MirrorCounts};

use crate::config;

/// The copies, and the port that sends them.
pub(super) struct ToPort {
    pub(super) mirror: Mirror,
    pub(super) port: Arc<Port>,
}

impl ToPort {
    pub(super) fn start(config: &config::Mirror, datapath: &Datapath) -> Result<Self, String> {
        let mirror = Mirror::new(config.snaplen).map_err(|error| error.to_string())?;
        let name = format!("mirror {}", config.name);
        let port = datapath.attach_apart(&name, vec![mirror.queue()], Vec::new(), None);
        Ok(Self { mirror, port })
    }

    /// Frames that were copied, and lost.
    pub(super) fn counts(&self) -> (u64, u64) {
        let MirrorCounts { copied, lost } = self.mirror.counts();
        (copied, lost)
    }

    pub(super) fn end(self, datapath: &Datapath) {
        datapath.detach(self.port.id());
    }
}

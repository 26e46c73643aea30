//! Uplinks of the configuration.

use std::sync::Arc;

use datapath::{Datapath, Egress, Ingress, Port};
use hypervisor::Hypervisor;
use offload::Features;
use uplink::tap::{Tap, TapOffload, TapQueue};

use crate::config::{Config, Uplink};
use crate::daemon::Error;

/// Opens every uplink's tap in the daemon's own network namespace and plugs it in.
pub(super) fn attach<H: Hypervisor>(
    config: &Config,
    hypervisor: &H,
    datapath: &Datapath<H>,
) -> Result<Vec<Arc<Port<H>>>, Error> {
    config.uplinks.iter().map(|uplink| attach_one(uplink, hypervisor, datapath)).collect()
}

fn attach_one<H: Hypervisor>(
    uplink: &Uplink,
    hypervisor: &H,
    datapath: &Datapath<H>,
) -> Result<Arc<Port<H>>, Error> {
    let failed = |reason: String| Error::Uplink { name: uplink.name.clone(), reason };
    let queues = Tap::open(&uplink.tap, datapath.workers(), TapOffload::ALL);
    let queues = queues.map_err(|error| failed(error.to_string()))?;
    crate::netns::bring_up(None, &uplink.tap, &uplink.addresses).map_err(failed)?;
    let queues: Vec<_> = queues.into_iter().map(Arc::new).collect();
    let ingress = |tap: &Arc<TapQueue>| {
        uplink::Ingress::new(tap.clone())
            .map(Ingress::Uplink)
            .map_err(Error::system("memory for an uplink"))
    };
    let egress = |tap: &Arc<TapQueue>| {
        Egress::Uplink(uplink::Egress::new(hypervisor.clone(), tap.clone(), Features::ALL))
    };
    let inward = queues.iter().map(ingress).collect::<Result<_, _>>()?;
    Ok(datapath.attach(&uplink.name, queues.iter().map(egress).collect(), inward))
}

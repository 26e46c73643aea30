//! The uplinks of the configuration.

use std::io;
use std::sync::Arc;

use datapath::{Datapath, Port};
use hypervisor::Meter;
use port::Queue;
use tracing::warn;
use uplink::tap::{Tap, TapOffload, TapQueue};
use uplink::{BufferOptions, Buffers, TapEgress, TapIngress};

use crate::config::{Config, ReceiveBuffers, Uplink};
use crate::daemon::error::Error;
use crate::daemon::wrap::Wrappers;
use crate::netns;

/// An uplink that is plugged in.
pub(super) struct PluggedUplink {
    pub(super) port: Arc<Port>,
    pub(super) wrappers: Wrappers,
    /// Why it does not work any more.
    pub(super) failure: Option<String>,
}

/// Opens every uplink's tap and plugs it in.
pub(super) fn attach(
    config: &Config,
    meter: &Arc<Meter>,
    datapath: &Datapath,
) -> Result<Vec<PluggedUplink>, Error> {
    let attach = |uplink: &Uplink| {
        let wrappers = Wrappers::new(&uplink.name, None, &uplink.limit, config.daemon.capture);
        attach_one(uplink, wrappers, meter, datapath)
    };
    config.uplinks.iter().map(attach).collect()
}

fn attach_one(
    uplink: &Uplink,
    wrappers: Wrappers,
    meter: &Arc<Meter>,
    datapath: &Datapath,
) -> Result<PluggedUplink, Error> {
    let failed = |reason: String| Error::Uplink { name: uplink.name.clone(), reason };
    let queues = open(uplink, datapath.workers()).map_err(failed)?;
    if uplink.persistent {
        queues.iter().try_for_each(TapQueue::persist).map_err(|error| failed(error.to_string()))?;
    }
    netns::bring_up(uplink.namespace.as_deref(), &uplink.tap, &uplink.addresses).map_err(failed)?;
    let buffers = buffers(uplink, queues.len()).map_err(Error::system("memory for an uplink"))?;
    let features = uplink.capabilities.features();
    let queue = |(tap, buffers): (TapQueue, Buffers)| {
        let tap = Arc::new(tap);
        let egress = TapEgress::new(meter.clone(), tap.clone(), features);
        let ingress = TapIngress::new(meter.clone(), tap, buffers);
        wrappers.wrap(Queue { ingress: Box::new(ingress), egress: Box::new(egress) })
    };
    let queues = queues.into_iter().zip(buffers).map(queue).collect();
    let port = datapath.attach(&uplink.name, queues, Vec::new());
    Ok(PluggedUplink { port, wrappers, failure: None })
}

/// Opens an uplink's tap, in its namespace.
fn open(uplink: &Uplink, queues: usize) -> Result<Vec<TapQueue>, String> {
    // Without TSO the stack behind the tap sends MTU-sized frames.
    let offload = match uplink.large_receive {
        true => TapOffload::ALL,
        false => TapOffload { csum: true, ..TapOffload::NONE },
    };
    let open = || Tap::open(&uplink.tap, queues, offload).map_err(|error| error.to_string());
    let Some(namespace) = &uplink.namespace else { return open() };
    // A thread that enters a namespace stays there, so this is a thread that ends afterwards.
    let inside = || netns::enter(namespace).and_then(|()| open());
    std::thread::scope(|scope| scope.spawn(inside).join())
        .unwrap_or_else(|_| Err(format!("opening tap {} panicked", uplink.tap)))
}

/// Receive buffers for each queue. Warns once if the kernel gives no 2 MiB pages.
fn buffers(uplink: &Uplink, queues: usize) -> io::Result<Vec<Buffers>> {
    let options = BufferOptions {
        large: uplink.large_receive,
        zeroed_pages: uplink.receive_buffers == ReceiveBuffers::ZeroedPages,
        huge_pages: uplink.huge_pages,
    };
    let buffers = (0..queues).map(|_| Buffers::new(options)).collect::<io::Result<Vec<_>>>()?;
    if uplink.huge_pages
        && let Some(error) = buffers.iter().find_map(|buffers| buffers.populate_huge().err())
    {
        warn!(
            uplink = uplink.name, %error,
            "its buffers have pages of 4 KiB, because the kernel gave none of 2 MiB; check \
             /sys/kernel/mm/transparent_hugepage/enabled, or set huge_pages = false"
        );
    }
    Ok(buffers)
}

//! `pvnet run`: the driver domain.
//!
//! One control thread owns the virtual interfaces. It receives all events over one channel: guests
//! that come and go, changes in the store, broken queues, requests of `pvnet status`, signals. The
//! workers carry the frames and never wait for a guest.

mod admission;
mod backends;
mod clients;
mod control;
mod cpu;
mod device;
mod error;
mod event;
mod guest_queues;
mod hotplug;
mod leases;
mod limits;
mod low_latency;
mod machine;
mod memory;
mod metrics;
mod nics;
mod platform;
mod server;
mod status;
mod store_events;
mod thread;
mod uplink_device;
mod uplinks;
mod virtual_machines;
mod wrap;
mod xdp_queues;
mod xen;

use std::sync::{Arc, mpsc};
use std::time::Duration;

use datapath::Datapath;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use tracing::info;

use crate::config::{self, Config};
use crate::log::LogLimit;
use control::Control;
use error::Error;
use event::Event;
use leases::Leases;
use platform::Platform;
use thread::spawn;

/// Runs until SIGINT or SIGTERM.
pub fn run(config: Config, log: LogLimit) -> Result<(), Error> {
    thread::end_after_panic();
    raise_descriptor_limit();
    let directory = &config.daemon.directory;
    std::fs::create_dir_all(directory).map_err(Error::path(directory))?;
    let (events, inbox) = mpsc::channel();
    // Before sockets exist that a signal could leave behind.
    watch_signals(events.clone())?;
    spawn("log", move || log.keep_summarising())?;
    let platform: Arc<dyn Platform> = match config.daemon.platform {
        config::Platform::Machine => Arc::new(machine::MachinePlatform::open(&config)?),
        config::Platform::Xen => Arc::new(xen::XenPlatform::open(&config)?),
    };
    serve(config, &platform, events, &inbox)?;
    info!("stopped");
    Ok(())
}

/// Serves the guests of a platform until a signal stops it.
fn serve(
    config: Config,
    platform: &Arc<dyn Platform>,
    events: mpsc::Sender<Event>,
    inbox: &mpsc::Receiver<Event>,
) -> Result<(), Error> {
    let leases = Leases::new(platform.meter().clone());
    // If the configuration wants the meter, it is on as long as the daemon runs.
    let _metered = config.daemon.meter.then(|| leases.take());
    let datapath = start_datapath(&config, &events)?;
    let nics = platform.nics().cloned();
    let uplinks = uplinks::attach(&config, platform.meter(), &datapath, nics.as_ref(), &events)?;
    let machines =
        virtual_machines::attach(&config, platform.meter(), datapath.workers(), &events)?;
    device::make_all(&config)?;
    let _nics = match &nics {
        Some(nics) => {
            nics::serve_uplinks(&config, nics, platform.meter(), &events)?;
            nics::Server::start(&config, nics)?
        }
        None => None,
    };
    let _server = server::Server::start(&config, platform, events.clone(), leases)?;
    if let Some(address) = config.daemon.metrics {
        metrics::serve(address, events.clone(), nics)?;
    }
    if config.daemon.low_latency {
        low_latency::start(events.clone())?;
    }
    let workers = datapath.workers();
    let stop_looking = platform.look_for_guests(events.clone())?;
    store_events::forward(platform.store().clone(), events)?;
    info!(workers, "ready");
    Control::new(config, platform.clone(), datapath, uplinks, machines).run(inbox);
    stop_looking();
    Ok(())
}

fn start_datapath(config: &Config, events: &mpsc::Sender<Event>) -> Result<Datapath, Error> {
    let settings = datapath::Config {
        workers: config.daemon.workers,
        poll: Duration::from_micros(config.daemon.poll_us),
        limits: switch::Limits {
            per_port: config.switch.addresses_per_port,
            age_seconds: config.switch.age_seconds,
            ..switch::Limits::default()
        },
        flood_copies: config.switch.flood_copies_per_second,
        hash_macs: config.switch.hash_macs,
        ..datapath::Config::default()
    };
    let events = events.clone();
    let sink = Box::new(move |failure| {
        // This fails after the control thread has ended. Then nobody needs the event.
        let _ = events.send(Event::Failure(failure));
    });
    Datapath::start(&settings, sink).map_err(Error::system("start the workers"))
}

fn watch_signals(events: mpsc::Sender<Event>) -> Result<(), Error> {
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])
        .map_err(Error::system("watch for signals"))?;
    spawn("signals", move || {
        for signal in signals.forever() {
            info!(signal, "stopping");
            if events.send(Event::Stop).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}

/// A guest with one queue can take 22 descriptors (`Cost` has the sum). The usual soft limit of 1024
/// is too low for a few hundred guests.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // If this fails, fewer guests fit.
    let _ = setrlimit(Resource::Nofile, raised);
}

//! `pvnet run`: the driver domain.
//!
//! One control thread owns the virtual interfaces. It receives all events over one channel: guests
//! that come and go, changes in the store, broken queues, requests of `pvnet status`, signals. The
//! workers carry the frames and never wait for a guest.

mod admission;
mod back_end;
mod backends;
mod carried;
mod change;
mod clients;
mod closed_nodes;
mod connections;
mod control;
mod cpu;
mod device;
mod disk;
mod error;
mod event;
mod front_end;
mod gate;
mod guest_queues;
mod hotplug;
mod interfaces;
mod leases;
mod limits;
mod low_latency;
mod machine;
mod memory;
mod metrics;
mod mirrors;
mod nics;
mod notify;
mod platform;
mod port_record;
mod priority;
mod sandbox;
mod server;
mod socket_file;
mod status;
mod store_events;
mod thread;
mod toolstack;
mod uplink_device;
mod uplink_queues;
mod uplinks;
mod virtual_machines;
mod worker_check;
mod wrap;
mod xdp_queues;
mod xen;

use std::sync::{Arc, mpsc};
use std::time::Duration;

use datapath::Datapath;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tracing::{info, warn};

use crate::config::{self, Config, ConfigFile, Loaded, Multicast};
use crate::log::{LogLimit, OPERATOR};
use control::Control;
use error::Error;
use event::Event;
use leases::Leases;
use limits::Limits;
use notify::Readiness;
use platform::Platform;
use port_record::PortRecord;
use sandbox::Sandbox;
use thread::spawn;
use uplink_device::Opened;

/// Runs until SIGINT or SIGTERM. SIGHUP reads the file again.
pub fn run(file: &ConfigFile, loaded: Loaded, log: &LogLimit) -> Result<(), Error> {
    thread::end_after_panic();
    raise_descriptor_limit();
    let config = &loaded.config;
    if config.daemon.platform == config::Platform::Xen {
        priority::raise();
    }
    let directory = &config.daemon.directory;
    std::fs::create_dir_all(directory).map_err(Error::path(directory))?;
    // With all rights, before this thread gives them up for all that it starts.
    let devices = uplinks::open_devices(config)?;
    device::make_all(config)?;
    let readiness = Readiness::from_environment();
    server::join_groups(config);
    let sandbox = Sandbox::enter(config, file.path());
    let (events, inbox) = mpsc::channel();
    // Before sockets exist that a signal could leave behind.
    watch_signals(file.clone(), events.clone())?;
    let log = log.clone();
    spawn("log", move || log.keep_summarising())?;
    let platform: Arc<dyn Platform> = match config.daemon.platform {
        config::Platform::Machine => Arc::new(machine::MachinePlatform::open(config)?),
        config::Platform::Xen => Arc::new(xen::XenPlatform::open(config)?),
    };
    let start = Start { devices, sandbox, readiness };
    serve(file, loaded, &platform, start, events, &inbox)?;
    info!("stopped");
    Ok(())
}

/// What the first thread has made before there were others.
struct Start {
    devices: Vec<Option<Opened>>,
    sandbox: Sandbox,
    readiness: Readiness,
}

/// Serves the guests of a platform until a signal stops it.
fn serve(
    file: &ConfigFile,
    loaded: Loaded,
    platform: &Arc<dyn Platform>,
    start: Start,
    events: mpsc::Sender<Event>,
    inbox: &mpsc::Receiver<Event>,
) -> Result<(), Error> {
    let config = &loaded.config;
    let leases = Leases::new(platform.meter().clone());
    // If the configuration wants the meter, it is on as long as the daemon runs.
    let _metered = config.daemon.meter.then(|| leases.take());
    let datapath = start_datapath(config, &events)?;
    if config.daemon.platform == config::Platform::Xen {
        open_rings(datapath.workers());
    }
    let ports = PortRecord::open(&config.daemon.directory);
    if ports.is_waiting() {
        datapath.pause();
    }
    let nics = platform.nics().cloned();
    let Start { devices, sandbox, readiness } = start;
    let services = platform.device_services();
    let uplinks = uplinks::attach(config, devices, &services, &datapath, nics.as_ref(), &events)?;
    let _nics = match &nics {
        Some(nics) => {
            nics::serve_uplinks(config, nics, platform.meter(), &events)?;
            nics::Server::start(config, nics)?
        }
        None => None,
    };
    // What this process holds already is for nobody.
    let limits = Arc::new(Limits::of_this_process());
    let (meter, workers) = (platform.meter(), datapath.workers());
    let machines = virtual_machines::attach(config, meter, workers, &limits, &events)?;
    let _server = server::Server::start(config, file, platform, events.clone(), leases)?;
    if let Some(address) = config.daemon.metrics {
        metrics::serve(address, events.clone(), nics)?;
    }
    if config.daemon.low_latency {
        low_latency::start(events.clone())?;
    }
    let stop_looking = platform.look_for_guests(limits.clone(), events.clone())?;
    store_events::forward(platform.store().clone(), events.clone())?;
    let reach = sandbox.close();
    let watchdog = readiness.ready();
    info!(workers, "ready");
    let plugged = (uplinks, machines);
    Control::new(loaded, platform.clone(), datapath, plugged, limits, events, ports)
        .within(reach)
        .run(inbox, watchdog);
    stop_looking();
    Ok(())
}

/// Has frames to taps and packet sockets written several at a time: a system call of a paravirtual domain is dear.
fn open_rings(workers: usize) {
    match uplink::open_rings(workers) {
        Ok(()) => info!("frames to uplinks and devices are written several at a time, by io_uring"),
        Err(error) => info!(
            %error,
            "no io_uring (kernel.io_uring_disabled?): each frame to an uplink or a device is a system call"
        ),
    }
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
    let (failed, slept) = (events.clone(), events.clone());
    let sink = Box::new(move |failure| {
        // This fails after the control thread has ended. Then nobody needs the event.
        let _ = failed.send(Event::Failure(failure));
    });
    let datapath = Datapath::start(&settings, sink).map_err(Error::system("start the workers"))?;
    datapath.on_sleep(Box::new(move |sleep| {
        let _ = slept.send(Event::Slept(sleep));
    }));
    datapath.snoop(config.switch.multicast == Multicast::Snoop);
    Ok(datapath)
}

fn watch_signals(file: ConfigFile, events: mpsc::Sender<Event>) -> Result<(), Error> {
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(Error::system("watch for signals"))?;
    spawn("signals", move || {
        for signal in signals.forever() {
            if signal == SIGHUP {
                // On a thread: the next signal may be one to stop.
                let (file, events) = (file.clone(), events.clone());
                let reload = move || change::reload(&file, &events);
                if let Err(error) = thread::spawn_for_client("reload", reload) {
                    warn!(target: OPERATOR, %error, "not reloaded");
                }
                continue;
            }
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

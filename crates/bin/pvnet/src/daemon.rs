//! `pvnet run`: the driver domain.
//!
//! One control thread owns the virtual interfaces. It receives all events over one channel: guests
//! that come and go, changes in the store, broken queues, requests of `pvnet status`, signals. The
//! workers carry the frames and never wait for a guest.

mod admission;
mod backends;
mod carried;
mod clients;
mod closed_nodes;
mod connections;
mod control;
mod disk;
mod error;
mod event;
mod interfaces;
mod leases;
mod limits;
mod low_latency;
mod machine;
mod metrics;
mod mirrors;
mod nics;
mod notify;
mod placement;
mod platform;
mod ports;
mod ports_last_up;
mod priority;
mod reach;
mod sandbox;
mod server;
mod socket_file;
mod status;
mod thread;
mod toolstack;
mod web;
mod worker_check;
mod wrap;
mod xen;

use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};

use control::Control;
use datapath::Datapath;
use error::Error;
use event::Event;
use leases::Leases;
use limits::Limits;
use notify::Readiness;
use platform::Platform;
use ports::{Host, PluggedPort, TABLES, of_tables};
use ports_last_up::PortsLastUp;
use reach::Reach;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sandbox::Sandbox;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use status::StatusReader;
use thread::spawn;
use tracing::{info, warn};

use crate::config::{self, Config, ConfigFile, Loaded, Multicast, Poll};
use crate::log::{Log, OPERATOR, Recent};

/// Runs until SIGINT or SIGTERM. SIGHUP reads the file again.
pub fn run(file: &ConfigFile, loaded: Loaded, log: &Log) -> Result<(), Error> {
    thread::end_after_panic();
    raise_descriptor_limit();
    keep_code_in_memory();
    let config = &loaded.config;
    // Before anything is opened that the other one has. It binds its sockets later, so this may see nothing of one that starts too.
    let socket = config.control_socket();
    if UnixStream::connect(&socket).is_ok() {
        return Err(Error::Running { socket });
    }
    if config.daemon.platform == crate::config::PlatformKind::Xen {
        priority::raise();
    }
    // Before the first thread that inherits it.
    let cpus = placement::take(config)?;
    let directory = &config.daemon.directory;
    std::fs::create_dir_all(directory).map_err(Error::path(directory))?;
    // With all rights, before this thread gives them up for all that it starts.
    let [first, _] = TABLES;
    let mut prepared = of_tables(config, first, None)?;
    prepared.iter_mut().try_for_each(|port| port.prepare(config))?;
    ports::device::make_all(config)?;
    let readiness = Readiness::from_environment();
    server::join_groups(config);
    let sandbox = Sandbox::enter(config, file.path());
    let (events, inbox) = mpsc::channel();
    // Before sockets exist that a signal could leave behind.
    watch_signals(file.clone(), events.clone())?;
    let limit = log.limit.clone();
    spawn("log", move || limit.keep_summarising())?;
    let start = Start { cpus, prepared, sandbox, readiness, log: log.recent.clone() };
    serve(file, loaded, start, events, &inbox)?;
    info!("stopped");
    Ok(())
}

/// What the first thread has made before there were others.
struct Start {
    /// The workers' CPUs.
    cpus: Vec<usize>,
    prepared: Vec<PluggedPort>,
    sandbox: Sandbox,
    readiness: Readiness,
    log: Recent,
}

/// Serves the guests of its platform until a signal stops it.
fn serve(
    file: &ConfigFile,
    loaded: Loaded,
    start: Start,
    events: mpsc::Sender<Event>,
    inbox: &mpsc::Receiver<Event>,
) -> Result<(), Error> {
    let Loaded { config, text } = loaded;
    let platform: Arc<dyn Platform> = match config.daemon.platform {
        config::PlatformKind::Machine => Arc::new(machine::MachinePlatform::open(&config)?),
        config::PlatformKind::Xen => Arc::new(xen::XenPlatform::open(&config)?),
    };
    let leases = Leases::new(platform.meter().clone());
    // If the configuration wants the meter, it is on as long as the daemon runs.
    let _metered = config.daemon.meter.then(|| leases.take());
    let Start { cpus, prepared, sandbox, readiness, log } = start;
    let datapath = start_datapath(&config, cpus, &events)?;
    if config.daemon.platform == crate::config::PlatformKind::Xen {
        open_rings(datapath.workers());
    }
    let last_up = PortsLastUp::open(&config.daemon.directory);
    if last_up.is_waiting() {
        datapath.pause();
    }
    let nics = platform.nics().cloned();
    let limits = Arc::new(Limits::of_this_process());
    let (platform, reach) = (platform.clone(), Reach::everywhere());
    let (events_of_ports, front_ends) = (events.clone(), Arc::default());
    let mut host =
        Host { config, platform, datapath, limits, front_ends, events: events_of_ports, reach };
    let open = |port: PluggedPort| port.open(&host);
    let mut ports = prepared.into_iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let _nics = match &nics {
        Some(nics) => nics::Server::start(&host.config, nics)?,
        None => None,
    };
    // Descriptors and mappings that this process holds by now are not for guests to share.
    host.limits = Arc::new(Limits::of_this_process());
    host.limits.warn_of_shortages(&host.config, None);
    let [_, last] = TABLES;
    for port in of_tables(&host.config, last, None)? {
        ports.push(port.open(&host)?);
    }
    let config = &host.config;
    let path = file.path().to_owned();
    let status = StatusReader::new(events.clone(), &host.platform, path, log);
    let services = server::Services {
        file: file.clone(),
        platform: Arc::downgrade(&host.platform),
        status: status.clone(),
        events: events.clone(),
        leases,
    };
    let _server = server::Server::start(config, services)?;
    if let Some(address) = config.daemon.metrics {
        web::serve(address, status)?;
    }
    if config.daemon.low_latency {
        low_latency::start(events.clone())?;
    }
    let stop_watching = host.platform.watch_for_guests(host.limits.clone(), events.clone())?;
    event::forward(host.platform.store().clone(), events)?;
    host.reach = sandbox.close();
    let watchdog = readiness.ready();
    info!(workers = host.datapath.workers(), "ready");
    Control::new(host, text, ports, last_up).run(inbox, watchdog);
    stop_watching();
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

fn start_datapath(
    config: &Config,
    cpus: Vec<usize>,
    events: &mpsc::Sender<Event>,
) -> Result<Datapath, Error> {
    let settings = datapath::Config {
        workers: config.daemon.workers(),
        cpus,
        poll: config.daemon.poll_limit(),
        always_poll: config.daemon.poll == Poll::Always,
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
                let reload = move || server::reload(&file, &events);
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

/// Locks the program's code. A worker that waits for code which was evicted looks as one that waits for a guest's memory, and a guest is blamed.
fn keep_code_in_memory() {
    if let Err(error) = shm::lock_code() {
        info!(
            %error,
            "under memory pressure the program's code may be evicted, for which frames then wait (LimitMEMLOCK=infinity in the unit)"
        );
    }
}

//! The control thread: owns the ports and reacts to their events.

mod change;
mod discovery;
mod ports;
mod requests;
mod sleeps;
#[cfg(test)]
mod tests;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime};

use control_socket::Reason;
use datapath::{Failure, Port};
use tracing::{info, warn};

use crate::daemon::closed_nodes::ClosedNodes;
use crate::daemon::disk::Disk;
use crate::daemon::event::{Event, NewInterface};
use crate::daemon::mirrors::{self, PluggedMirror};
use crate::daemon::notify::Watchdog;
use crate::daemon::ports::{Host, PluggedPort, PortEvent, PortId, Transition, vif};
use crate::daemon::ports_last_up::PortsLastUp;
use crate::daemon::status::Stopwatch;
use crate::daemon::worker_check::WorkerCheck;
use crate::program::text;

/// The interval at which the switch forgets old addresses.
const SWEEP: Duration = Duration::from_secs(1);

/// The control thread's state.
pub(super) struct Control {
    /// What ports are opened with, and the configuration that runs.
    host: Host,
    /// The text of the configuration last requested.
    text: String,
    /// The ports that commands have changed since the file was read.
    by_command: BTreeSet<String>,
    ports: BTreeMap<PortId, PluggedPort>,
    mirrors: Vec<PluggedMirror>,
    /// The disk of their files.
    disk: Disk,
    /// The disk that holds the sockets' folders.
    sockets_disk: Disk,
    /// Interfaces that are gone, until the toolstack has seen it.
    closed: ClosedNodes,
    stopwatch: Stopwatch,
    /// The names of the ports that are up, for the next daemon.
    last_up: PortsLastUp,
    workers: WorkerCheck,
    started: SystemTime,
}

impl Control {
    /// Controls ports that are open, of a configuration with this text.
    pub(super) fn new(
        host: Host,
        text: String,
        ports: Vec<PluggedPort>,
        last_up: PortsLastUp,
    ) -> Self {
        Self {
            host,
            text,
            by_command: BTreeSet::new(),
            ports: ports.into_iter().map(|port| (port.record.identity.id, port)).collect(),
            mirrors: Vec::new(),
            disk: Disk::default(),
            sockets_disk: Disk::default(),
            closed: ClosedNodes::default(),
            stopwatch: Stopwatch::start(),
            last_up,
            workers: WorkerCheck::default(),
            started: SystemTime::now(),
        }
    }

    /// Serves events until [`Event::Stop`]. Then it disconnects the guests, or leaves them connected for
    /// the next daemon.
    pub(super) fn run(mut self, inbox: &mpsc::Receiver<Event>, mut watchdog: Watchdog) {
        self.set_mirrors(Vec::new());
        self.last_up.begin(Instant::now());
        loop {
            let limit = self.last_up.left(Instant::now()).unwrap_or(SWEEP);
            match inbox.recv_timeout(limit) {
                Ok(Event::Stop) | Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Ok(event) => self.serve(event),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            self.host.datapath.sweep();
            self.host.datapath.measure();
            self.rebalance();
            watchdog.beat(&self.host.datapath);
            self.refresh_mirrors();
            self.refresh_wrappers();
            self.assign_queues();
            self.check_ports();
            self.remove_closed(false);
            self.record_ports();
        }
        watchdog.stopping();
        // From here on frames wait at their senders, for the next daemon.
        self.host.datapath.pause();
        for id in self.guests_ports() {
            let Some(PluggedPort { record, source }) = self.ports.get(&id) else { continue };
            if !source.outlives_the_daemon(&self.host) {
                self.disconnect(id, Reason::Stopping);
                continue;
            }
            info!(guest = record.name(), "left connected for the next daemon");
            self.release_queue(id);
            if let Some(port) = self.ports.get_mut(&id) {
                port.record.detach(&self.host.datapath);
            }
        }
        self.remove_closed(true);
        // Last: what the ports have carried is in the files.
        mirrors::remove(std::mem::take(&mut self.mirrors), &self.host.datapath);
    }

    fn serve(&mut self, event: Event) {
        match event {
            Event::Plugged { interface, answer } => {
                // The session that asked may have ended.
                let _ = answer.send(self.plug(*interface));
            }
            Event::Unplugged { id, answer } => {
                self.unplug(PortId::Vif(id));
                let _ = answer.send(());
            }
            Event::Store { event, done } => {
                drop(done);
                self.store_changed(&event);
            }
            Event::Failure(Failure { port, reason }) => self.fail(&port, &reason),
            Event::Slept(sleep) => self.slept(&sleep),
            Event::Port { port, what, done } => {
                self.serve_port(port, what);
                drop(done);
            }
            Event::Workers { request, answer } => {
                let _ = answer.send(self.move_queues(&request));
            }
            Event::Status(answer) => {
                let _ = answer.send(self.status());
            }
            Event::Balloon { name, with_contexts, mib, answer } => {
                let _ = answer.send(self.balloon(&name, with_contexts, mib));
            }
            Event::Capture { request, answer } => {
                let capture = self.capture(&request);
                // Before the answer: whoever gets it may send frames at once.
                self.refresh_wrappers();
                let _ = answer.send(capture);
            }
            Event::Change { change, answer } => {
                let _ = answer.send(self.change(*change));
            }
            Event::Stop => {}
        }
    }

    /// Serves an interface.
    fn plug(&mut self, interface: NewInterface) -> Result<(), String> {
        let port = vif::adopt(interface, &self.host)?;
        let id = port.record.identity.id;
        let PluggedPort { record, source } = self.ports.entry(id).insert_entry(port).into_mut();
        source.open(record, &self.host).map_err(text)
    }

    /// Has a port serve what happened to it, and does what follows.
    fn serve_port(&mut self, id: PortId, what: PortEvent) {
        if let Some(port) = self.ports.get_mut(&id) {
            let transition = port.serve(what, &self.host);
            self.follow(id, transition);
        }
    }

    fn follow(&mut self, id: PortId, transition: Transition) {
        match transition {
            // Its settings may have changed.
            Transition::None => self.teach_addresses(),
            Transition::Connect { queues, tasks } => self.connect(id, queues, tasks),
            Transition::Disconnect(why) => self.disconnect(id, why),
            Transition::Remove => self.unplug(id),
        }
    }

    fn connect(&mut self, id: PortId, queues: Vec<port::Queue>, tasks: Vec<Box<dyn port::Task>>) {
        let Some(port) = self.ports.get_mut(&id) else { return };
        port.attach(queues, tasks, &self.host.datapath);
        // Before its other side hears that it is connected.
        self.teach_addresses();
        self.assign_queues();
        let Some(PluggedPort { record, source }) = self.ports.get_mut(&id) else { return };
        if let Err(why) = source.attached(record) {
            self.disconnect(id, why);
        }
    }

    fn disconnect(&mut self, id: PortId, why: Reason) {
        // Before its port goes: the frontend's buffers come back first.
        self.release_queue(id);
        if let Some(port) = self.ports.get_mut(&id) {
            port.disconnect(why, &self.host.datapath);
        }
        self.teach_addresses();
    }

    /// Forgets a port, and gives back all that it has.
    fn unplug(&mut self, id: PortId) {
        self.release_queue(id);
        self.release_queues_of(id);
        let Some(port) = self.ports.remove(&id) else { return };
        let backend = port.source.guest().map(|(id, _)| id);
        port.close(&self.host);
        if let Some(id) = backend {
            self.note_closed(id);
        }
        self.teach_addresses();
    }

    /// A queue of a port broke, or one of a port's device. Other ports do not notice.
    fn fail(&mut self, port: &Arc<Port>, reason: &str) {
        warn!(port = port.name(), reason, "port failed");
        for PluggedPort { record, .. } in self.ports.values_mut() {
            if let Some(device) = &mut record.device {
                device.fail(port, reason, &self.host.datapath);
            }
        }
        let mut ports = self.ports.iter_mut();
        if let Some((id, own)) = ports.find(|(_, own)| own.record.is_at(port)) {
            let (id, transition) = (*id, own.source.fail(&mut own.record, reason));
            self.follow(id, transition);
        }
    }
}

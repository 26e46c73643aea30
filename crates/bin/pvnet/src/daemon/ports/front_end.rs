//! The front-ends of a virtual machine's port: one session after the other, until the port goes.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use control_socket::{MappedMemory, Reason};
use hypervisor::Meter;
use parking_lot::Mutex;
use port::Queue;
use tracing::{info, warn};
use vhost_user::{
    Alarm, Condition, Device, Ended, Link, MemoryBudget, MemoryFiles, Paces, Processes, Renewal,
    Session, Socket, session_pace,
};

use super::port_event::{FrontEndChange, PortEvent};
use crate::config::Port;
use crate::daemon::connections::Connections;
use crate::daemon::event::PortEvents;
use crate::daemon::limits::Limits;

/// A port's front-ends, as the control thread sees them.
pub(super) struct FrontEnds {
    /// What the next session begins with.
    settings: Mutex<Arc<Port>>,
    /// The memory that its front-end may have mapped.
    budget: Arc<MemoryBudget>,
    /// How often they may have work done. A front-end that comes again has what is left.
    paces: Arc<Paces>,
    /// Rung when the present session is to serve its rings anew.
    renewal: Arc<Renewal>,
    /// The files of the present session's memory.
    files: Arc<MemoryFiles>,
    /// Ends the present session at once.
    alarm: Mutex<Option<Arc<Alarm>>>,
    /// Those of all ports' front-ends.
    processes: Arc<Processes>,
    /// Of this process.
    limits: Arc<Limits>,
    connections: Connections,
}

impl FrontEnds {
    /// Front-ends of a port, of which none has come yet.
    pub(super) fn new(
        settings: Port,
        processes: Arc<Processes>,
        limits: Arc<Limits>,
    ) -> io::Result<Arc<Self>> {
        let budget = MemoryBudget::new(settings.memory(), limits.front_ends().clone());
        let (settings, connections) = (Mutex::new(Arc::new(settings)), Connections::new()?);
        Ok(Arc::new(Self {
            settings,
            budget,
            paces: Paces::new(),
            files: Arc::default(),
            renewal: Renewal::new()?,
            alarm: Mutex::default(),
            processes,
            limits,
            connections,
        }))
    }

    /// The memory that its front-end has mapped, and may have.
    pub(super) fn memory(&self) -> MappedMemory {
        MappedMemory { bytes: self.budget.held(), limit: self.budget.max() }
    }

    /// How many bytes the files of the guest's memory have now.
    pub(super) fn memory_in_use(&self) -> u64 {
        self.files.bytes()
    }

    /// The next session begins with these settings. The bound of memory counts at once, for what is mapped from now on.
    pub(super) fn set(&self, settings: Port) {
        self.budget.set_guest(settings.memory());
        *self.settings.lock() = Arc::new(settings);
    }

    /// Front-ends that came while another one had the socket.
    pub(super) fn refused(&self) -> u64 {
        self.connections.refused()
    }

    /// Has the present session serve its rings anew, with mappings that no sleeping worker knows.
    pub(super) fn renew(&self) {
        self.renewal.ask();
    }

    /// The present front-end has proven hostile: its session ends, no other begins, and its process is refused at all ports.
    pub(super) fn condemn(&self, what: &str) {
        if let Some(alarm) = self.alarm() {
            alarm.prove(what);
        }
        self.stop();
    }

    /// Why the present session must end, if it must.
    pub(super) fn condemned(&self) -> Option<String> {
        self.alarm()?.why()
    }

    /// The present session's alarm. What it is asked is asked without its lock, for which the session's thread waits.
    fn alarm(&self) -> Option<Arc<Alarm>> {
        self.alarm.lock().clone()
    }

    /// Ends the present session.
    pub(super) fn hang_up(&self) {
        self.connections.hang_up();
    }

    /// Ends the present session, and lets no other begin.
    pub(super) fn stop(&self) {
        self.connections.stop();
    }

    /// A session begins. Returns its settings; none if there must be no further one.
    fn begin(&self, stream: &UnixStream) -> Option<Arc<Port>> {
        let may_begin = self.connections.begin(stream);
        let settings = self.settings.lock();
        may_begin.then(|| settings.clone())
    }

    /// Serves sessions until the port is stopped, or until a front-end shows itself hostile.
    pub(super) fn serve(
        self: &Arc<Self>,
        socket: &Socket,
        link: &Arc<Link>,
        meter: &Arc<Meter>,
        events: &PortEvents,
    ) {
        let mut pace = session_pace(Instant::now());
        while let Some(stream) = self.connections.next(socket) {
            std::thread::sleep(pace.begin(Instant::now()));
            let Some(settings) = self.begin(&stream) else { return };
            let name = settings.name.clone();
            info!(port = name, "a front-end is connected");
            let held = self.limits.take_port(&settings).map_err(|why| format!("it {why}"));
            let (options, mac) = (settings.offered(), settings.settings.mac);
            let offers_config_space = settings.config_space;
            let refused = refused(&name);
            let device = Arc::new(Messenger { settings, events: events.clone() });
            let session = held.as_ref().map_err(String::clone).and_then(|_| {
                let session = Session::new(options, device, meter.clone());
                let session =
                    session.and_then(|session| session.with_blame(self.processes.clone(), &name));
                session.map_err(|error| error.to_string())
            });
            let ended = match session {
                Ok(session) => {
                    *self.alarm.lock() = Some(session.alarm());
                    let session = session.of_device(mac, link.clone()).within(self.budget.clone());
                    let session =
                        session.showing(self.files.clone()).renewed_by(self.renewal.clone());
                    let session = session.offering_config_space(offers_config_space);
                    let session = session.at_pace(self.paces.clone());
                    self.connections.refusing_others(socket, refused, || session.run(stream))
                }
                Err(why) => Ended { why, is_hostile: false },
            };
            drop(held);
            self.connections.end();
            *self.alarm.lock() = None;
            let Ended { why, is_hostile } = ended;
            events.tell(PortEvent::FrontEnd(FrontEndChange::Ended(why.clone())));
            warn!(port = name, why, "its front-end's session has ended");
            if is_hostile {
                warn!(port = name, "its socket is closed until the port is added again");
                return;
            }
        }
    }
}

/// Says in the log that a connection was closed, because another front-end has the socket.
fn refused(name: &str) -> impl Fn() + Send + use<'_> {
    move || {
        warn!(port = name, "another front-end came to its socket, which is taken, and was refused");
    }
}

/// Tells the control thread what a session says.
struct Messenger {
    /// What the session began with.
    settings: Arc<Port>,
    events: PortEvents,
}

impl Device for Messenger {
    fn start(&self, queues: Vec<Queue>) {
        self.events.tell(PortEvent::Ready { queues, agreed: Some(self.settings.clone()) });
    }

    fn stop(&self, why: &str) {
        let why = Reason::NotConnected(why.to_owned());
        // Ends when they are stopped, or with the control thread, which stops them too.
        let _ = self.events.tell(PortEvent::Gone(why)).recv();
    }

    fn settle(&self, condition: Condition) {
        self.events.tell(PortEvent::FrontEnd(FrontEndChange::Settled(condition)));
    }

    fn held_up(&self, time: Duration) {
        self.events.tell(PortEvent::HeldUp(time));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use host::TempDir;
    use vhost_user::Mode;

    use super::*;
    use crate::config::Config;
    use crate::daemon::ports::port_event::PortId;

    fn settings() -> Port {
        let text = "[[port]]\nname = \"vm\"\nkind = \"vhost-user\"\nsocket = \"x\"\n";
        Config::parse(text).unwrap().ports.remove(0)
    }

    /// Serves a socket on a thread, which ends when the front-ends are stopped.
    fn serve(mode: Mode, folder: &TempDir) -> (Arc<FrontEnds>, std::thread::JoinHandle<()>) {
        let socket = Socket::open(mode, &folder.path().join("vm"), |_| Ok(())).unwrap();
        let limits = Arc::new(Limits::of_this_process());
        let front_ends = FrontEnds::new(settings(), Arc::default(), limits).unwrap();
        let served = front_ends.clone();
        let (events, _inbox) = std::sync::mpsc::channel();
        let events = PortEvents { port: PortId::Machine(1), events };
        let serve = move || served.serve(&socket, &Arc::default(), &Arc::default(), &events);
        (front_ends, std::thread::spawn(serve))
    }

    #[test]
    fn a_port_that_goes_ends_its_session_and_its_thread() {
        for mode in [Mode::Server, Mode::Client] {
            for connects in [false, true] {
                let folder = TempDir::new().unwrap();
                let path = folder.path().join("vm");
                let listener =
                    (mode == Mode::Client && connects).then(|| UnixListener::bind(&path).unwrap());
                let (front_ends, thread) = serve(mode, &folder);
                let peer = connects.then(|| match &listener {
                    Some(listener) => listener.accept().unwrap().0,
                    None => UnixStream::connect(&path).unwrap(),
                });
                while connects && !front_ends.connections.is_connected() {
                    std::thread::yield_now();
                }
                front_ends.stop();
                thread.join().unwrap();
                if let Some(mut peer) = peer {
                    assert_eq!(io::Read::read(&mut peer, &mut [0; 1]).unwrap_or(0), 0);
                }
            }
        }
    }

    #[test]
    fn a_session_that_is_hung_up_is_followed_by_another() {
        let folder = TempDir::new().unwrap();
        let (front_ends, thread) = serve(Mode::Server, &folder);
        let connect = || UnixStream::connect(folder.path().join("vm")).unwrap();
        for _ in 0..3 {
            let mut peer = connect();
            while !front_ends.connections.is_connected() {
                std::thread::yield_now();
            }
            front_ends.hang_up();
            assert_eq!(io::Read::read(&mut peer, &mut [0; 1]).unwrap_or(0), 0);
            while front_ends.connections.is_connected() {
                std::thread::yield_now();
            }
        }
        front_ends.stop();
        thread.join().unwrap();
    }

    /// With a pace for each session it would have a new burst each time.
    #[test]
    fn a_front_end_that_comes_again_has_what_is_left_of_its_messages() {
        let folder = TempDir::new().unwrap();
        let (front_ends, thread) = serve(Mode::Server, &folder);
        // VHOST_USER_GET_FEATURES, version 1, without a payload.
        let question = [1u32, 1, 0].map(u32::to_le_bytes).concat();
        let start = Instant::now();
        for count in [8192, 2000] {
            let mut peer = UnixStream::connect(folder.path().join("vm")).unwrap();
            for _ in 0..count {
                io::Write::write_all(&mut peer, &question).unwrap();
                io::Read::read_exact(&mut peer, &mut [0; 20]).unwrap();
            }
            drop(peer);
            while front_ends.connections.is_connected() {
                std::thread::yield_now();
            }
        }
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(1999), "2000 messages beyond the burst in {took:?}");
        front_ends.stop();
        thread.join().unwrap();
    }
}

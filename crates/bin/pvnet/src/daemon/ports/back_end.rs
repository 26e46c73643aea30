//! The back-ends of an uplink that is a port of another switch: one connection after the other, until the uplink goes.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use control_socket::Reason;
use hypervisor::Meter;
use seqpacket::remove_socket;
use tracing::{info, warn};
use vhost_user::{Mode, Socket, session_pace};
use virtio_user::{Error, Options};

use super::port_event::PortEvent;
use crate::config::Uplink;
use crate::daemon::connections::Connections;
use crate::daemon::event::PortEvents;
use crate::daemon::thread::spawn_for_client;

/// How long a back-end that broke its rings is left alone.
const AFTER_BREAK: Duration = Duration::from_secs(1);

/// The back-ends of an uplink. Dropping it ends the present connection, and lets no other begin.
pub(super) struct BackEnds {
    shared: Arc<Shared>,
    /// The socket's file, if this process made it.
    file: Option<PathBuf>,
}

struct Shared {
    /// The uplink's name.
    name: String,
    options: Options,
    meter: Arc<Meter>,
    events: PortEvents,
    connections: Connections,
    /// Whether the present back-end broke its rings.
    is_broken: AtomicBool,
}

impl BackEnds {
    /// Waits for the back-ends of an uplink at its socket.
    ///
    /// # Errors
    /// The process is out of descriptors or threads.
    pub(super) fn start(
        uplink: &Uplink,
        options: Options,
        socket: Socket,
        meter: &Arc<Meter>,
        events: PortEvents,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            name: uplink.name.clone(),
            options,
            meter: meter.clone(),
            events,
            connections: Connections::new()?,
            is_broken: AtomicBool::new(false),
        });
        let file =
            (uplink.settings.socket_side() == Mode::Server).then(|| uplink.settings.socket.clone());
        // From here on it goes with the uplink.
        let this = Self { shared: shared.clone(), file };
        let serve = move || shared.serve(&socket);
        spawn_for_client("virtio-user", serve).map_err(io::Error::other)?;
        Ok(this)
    }

    /// Back-ends that came while another one had the socket.
    pub(super) fn refused(&self) -> u64 {
        self.shared.connections.refused()
    }

    /// Ends the connection with a back-end that broke its rings. The next one begins after a while.
    pub(super) fn break_off(&self) {
        self.shared.is_broken.store(true, Ordering::Relaxed);
        self.shared.connections.hang_up();
    }
}

impl Drop for BackEnds {
    fn drop(&mut self) {
        self.shared.connections.stop();
        if let Some(file) = &self.file {
            // Somebody may have removed it already.
            let _ = remove_socket(file);
        }
    }
}

impl Shared {
    /// Serves connections until the uplink goes, or until a back-end shows itself hostile.
    fn serve(&self, socket: &Socket) {
        let Self { name, options, meter, events, .. } = self;
        let stopped = self.connections.stopped();
        let mut pace = session_pace(Instant::now());
        while let Some(stream) = self.connections.next(socket) {
            self.connections.pause(pace.begin(Instant::now()));
            if !self.connections.begin(&stream) {
                return;
            }
            let serve = || match virtio_user::connect(stream, options, meter, stopped) {
                Ok((mut session, queues)) => {
                    let agreed = session.agreed();
                    info!(uplink = name, layout = ?agreed.layout(), queues = agreed.queues, "a back-end is connected");
                    events.tell(PortEvent::Ready { queues, agreed: None });
                    let ended = session.wait(stopped);
                    let why = Reason::NotConnected(ended.to_string());
                    // The back-end knows that the rings are not used any more when the connection is closed.
                    let _ = events.tell(PortEvent::Gone(why)).recv();
                    ended
                }
                Err(error) => {
                    let why = Reason::NotConnected(error.to_string());
                    events.tell(PortEvent::Refused(why));
                    error
                }
            };
            let refused = || {
                warn!(
                    uplink = name,
                    "another back-end came to its socket, which is taken, and was refused"
                );
            };
            let ended = self.connections.refusing_others(socket, refused, serve);
            self.connections.end();
            warn!(uplink = name, why = %ended, "the connection with its back-end has ended");
            if matches!(ended, Error::Blocked) {
                warn!(uplink = name, "its socket is closed until the uplink is added again");
                return;
            }
            if self.is_broken.swap(false, Ordering::Relaxed) {
                self.connections.pause(AFTER_BREAK);
            }
        }
    }
}

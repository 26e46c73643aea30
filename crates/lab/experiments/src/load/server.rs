//! The server, which sends or receives as its clients ask.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use lab::Interrupt;

use super::{Events, Interest, PORT, failed, request, set_congestion};
use crate::error::Result;

/// Options of a server.
#[derive(Args)]
pub struct ServerArgs {
    /// Where to listen.
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = SocketAddr::from(([0; 4], PORT)))]
    pub listen: SocketAddr,
    /// The number of threads.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: u32,
    /// The size of each thread's buffer in KiB.
    #[arg(long, value_name = "KIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub buffer: u32,
    /// TCP's congestion control [default: the system's].
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,
}

/// The listening socket's number.
const LISTENER: u64 = u64::MAX;
/// How often a thread checks whether it should end.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Serves until a signal.
pub fn run(args: &ServerArgs) -> Result<()> {
    let listener = TcpListener::bind(args.listen).map_err(failed("cannot listen"))?;
    serve_until(listener, args, &AtomicBool::new(false))
}

/// Serves until a signal, or until `is_ended`.
pub(super) fn serve_until(
    listener: TcpListener,
    args: &ServerArgs,
    is_ended: &AtomicBool,
) -> Result<()> {
    listener.set_nonblocking(true).map_err(failed("cannot listen"))?;
    // Connections inherit it from the listening socket.
    set_congestion(&listener, args.congestion.as_deref())?;
    let listener = Arc::new(listener);
    std::thread::scope(|scope| {
        let start = |_| {
            let listener = listener.clone();
            scope.spawn(move || {
                let thread = Thread::new(listener, args.buffer);
                let result = thread.and_then(|mut thread| thread.serve(is_ended));
                is_ended.store(true, Ordering::Relaxed);
                result
            })
        };
        let threads: Vec<_> = (0..args.threads).map(start).collect();
        while !Interrupt::requested() && !is_ended.load(Ordering::Relaxed) {
            std::thread::sleep(CHECK_INTERVAL);
        }
        is_ended.store(true, Ordering::Relaxed);
        for thread in threads {
            let result = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result.map_err(failed("the server"))?;
        }
        Ok(())
    })
}

/// One thread with its connections and its buffer.
struct Thread {
    listener: Arc<TcpListener>,
    events: Events,
    connections: HashMap<u64, Connection>,
    next: u64,
    buffer: Vec<u8>,
}

struct Connection {
    socket: TcpStream,
    /// Whether its client asked it to send; `None` before the request.
    sends: Option<bool>,
}

impl Thread {
    fn new(listener: Arc<TcpListener>, buffer_kib: u32) -> io::Result<Self> {
        let events = Events::new()?;
        events.add(&*listener, LISTENER, Interest::Read)?;
        let buffer = vec![0; buffer_kib as usize * 1024];
        Ok(Self { listener, events, connections: HashMap::new(), next: 0, buffer })
    }

    fn serve(&mut self, is_ended: &AtomicBool) -> io::Result<()> {
        let mut ready = Vec::new();
        while !is_ended.load(Ordering::Relaxed) {
            self.events.wait(CHECK_INTERVAL, &mut ready)?;
            for number in &ready {
                match *number {
                    LISTENER => self.accept()?,
                    number => {
                        // A client that has gone is no error of the server.
                        if !self.go_on(number).unwrap_or(false) {
                            self.connections.remove(&number);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        let socket = match self.listener.accept() {
            Ok((socket, _)) => socket,
            // Another thread took the connection, or the client has gone.
            Err(_) => return Ok(()),
        };
        socket.set_nonblocking(true)?;
        self.events.add(&socket, self.next, Interest::Read)?;
        self.connections.insert(self.next, Connection { socket, sends: None });
        self.next += 1;
        Ok(())
    }

    /// Reads or writes once. Returns whether the connection goes on.
    fn go_on(&mut self, number: u64) -> io::Result<bool> {
        let Some(Connection { socket, sends }) = self.connections.get_mut(&number) else {
            return Ok(true);
        };
        let done = match *sends {
            Some(true) => socket.write(&self.buffer),
            Some(false) => socket.read(&mut self.buffer),
            None => {
                let mut asked = [0];
                let read = socket.read(&mut asked);
                match asked {
                    [request::READ] => *sends = Some(false),
                    [request::SEND] => {
                        *sends = Some(true);
                        self.events.change(&*socket, number, Interest::Write)?;
                    }
                    _ => return Ok(false),
                }
                read
            }
        };
        match done {
            Ok(bytes) => Ok(bytes > 0),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(error) => Err(error),
        }
    }
}

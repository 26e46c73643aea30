//! The store for a guest: the wire protocol over a socket.

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use hypervisor::DomId;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use token_bucket::Pace;
use tracing::debug;
use xenstore::wire::{
    AbsPath, Decoder, DirectoryPart, ErrorCode, Kind, Message, OK, Request, WireError, permissions,
    text, watch_event,
};
use xenstore::{Store, StoreError, TransactionId};

use super::hub::StoreHub;
use super::local::LocalStore;
use super::quota::is_privileged;

/// Bytes of answers that may wait for a guest to read them (XSA-326). A guest that sends requests
/// and does not read makes them grow, and is disconnected at this limit.
const OUTGOING_MAX: usize = 256 * 1024;
/// Requests that a guest may make at once. A handshake takes about a hundred.
pub(super) const REQUESTS: u32 = 8192;
/// Requests per second after that. A guest that makes more waits for its answers: each request holds
/// the lock of the store, and a write checks everybody's watches.
pub(super) const REQUESTS_PER_SECOND: u32 = 1000;
/// While more bytes than this wait, events stay in their own bounded queue.
const OUTGOING_BUSY: usize = 16 * 1024;

/// Serves the store to one guest until its socket hangs up or it breaks the protocol; then its
/// watches and transactions are dropped. The guest has the rights of `domid`.
///
/// # Errors
/// The process is out of descriptors or threads.
pub fn serve(hub: StoreHub, domid: DomId, socket: OwnedFd) -> io::Result<JoinHandle<()>> {
    // Connected before the thread starts: a `forget` that follows finds the connection.
    let session = Session {
        store: hub.try_connect(domid)?,
        hub,
        socket: Arc::new(socket),
        decoder: Decoder::new(),
        outgoing: Vec::new(),
        pace: Pace::new(REQUESTS, REQUESTS_PER_SECOND, Instant::now()),
    };
    std::thread::Builder::new().name("store client".to_owned()).spawn(move || {
        let Err(end) = session.run();
        debug!(%domid, %end, "store connection closed");
    })
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("hung up")]
    HungUp,
    #[error(transparent)]
    Malformed(#[from] WireError),
    #[error("answers were not read")]
    Overrun,
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("socket: {0}")]
    Socket(#[from] Errno),
}

struct Session {
    store: LocalStore,
    hub: StoreHub,
    socket: Arc<OwnedFd>,
    decoder: Decoder,
    /// Messages not yet sent.
    outgoing: Vec<u8>,
    /// The rate of its requests.
    pace: Pace,
}

impl Session {
    fn run(mut self) -> Result<Infallible, End> {
        self.store.tie(Arc::clone(&self.socket))?;
        loop {
            self.take_events()?;
            self.flush()?;
            if self.wait()? {
                self.receive()?;
                // This thread serves one guest: no other waits.
                std::thread::sleep(self.pace.wait(Instant::now()));
            }
        }
    }

    /// Sleeps until there is something to do; returns whether there is something to read.
    fn wait(&self) -> Result<bool, End> {
        let mut interest = PollFlags::IN;
        if !self.outgoing.is_empty() {
            interest |= PollFlags::OUT;
        }
        let events =
            if self.outgoing.len() < OUTGOING_BUSY { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = [
            PollFd::new(&self.socket, interest),
            PollFd::from_borrowed_fd(self.store.event_fd(), events),
        ];
        match poll(&mut fds, None) {
            // A read also finds an error or a hang-up.
            Ok(_) => Ok(!(fds[0].revents() - PollFlags::OUT).is_empty()),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn receive(&mut self) -> Result<(), End> {
        let mut bytes = [0; 4096];
        match recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(End::HungUp),
            Ok((count, _)) => self.decoder.push(&bytes[..count]),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        while let Some(message) = self.decoder.next_message()? {
            self.pace.count(1, Instant::now());
            let reply = self.reply(&message)?;
            self.outgoing.extend_from_slice(&reply.to_bytes());
            if self.outgoing.len() > OUTGOING_MAX {
                self.flush()?;
            }
            if self.outgoing.len() > OUTGOING_MAX {
                return Err(End::Overrun);
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), End> {
        let mut sent = 0;
        while sent < self.outgoing.len() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match send(&self.socket, &self.outgoing[sent..], flags) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        self.outgoing.drain(..sent);
        Ok(())
    }

    fn take_events(&mut self) -> Result<(), End> {
        while self.outgoing.len() < OUTGOING_BUSY {
            let Some(event) = self.store.event()? else {
                break;
            };
            let message = watch_event(&event)?;
            self.outgoing.extend_from_slice(&message.to_bytes());
        }
        Ok(())
    }

    fn reply(&self, message: &Message) -> Result<Message, WireError> {
        let (req_id, tx_id) = (message.req_id(), message.tx_id());
        let refuse = |code: ErrorCode| {
            let payload = text::join([code.name()])?;
            Message::new(Kind::Error, req_id, tx_id, payload)
        };
        let tx = (tx_id != 0).then_some(TransactionId(tx_id));
        let request = match Request::parse(message) {
            Ok(request) => request,
            Err(code) => return refuse(code),
        };
        match self.answer(&request, tx) {
            // The list of children is too long: the client then asks for it in parts.
            Ok(payload) => Message::new(request.kind(), req_id, tx_id, payload)
                .or_else(|_| refuse(ErrorCode::E2big)),
            Err(code) => refuse(code),
        }
    }

    fn answer(
        &self,
        request: &Request<'_>,
        tx: Option<TransactionId>,
    ) -> Result<Vec<u8>, ErrorCode> {
        let store = &self.store;
        match request {
            Request::Read { path } => return Ok(store.read(tx, path)?.into_bytes()),
            Request::Directory { path } => return strings(&store.directory(tx, path)?),
            Request::DirectoryPart { path, offset } => {
                let (generation, names) = store.listing(tx, path)?;
                let part = DirectoryPart::cut(generation, &names, *offset);
                return part.payload().map_err(|_| ErrorCode::Eio);
            }
            Request::GetPerms { path } => {
                return strings(&permissions::to_texts(&store.permissions(tx, path)?));
            }
            Request::TransactionStart => {
                // Transactions do not nest.
                let None = tx else {
                    return Err(ErrorCode::Ebusy);
                };
                return strings(&[store.begin()?.0.to_string()]);
            }
            Request::TransactionEnd { commit } => {
                store.end(tx.ok_or(ErrorCode::Enoent)?, *commit)?;
            }
            Request::Write { path, value } => {
                let value = str::from_utf8(value).map_err(|_| ErrorCode::Einval)?;
                store.write(tx, path, value)?;
            }
            Request::Mkdir { path } => store.mkdir(tx, path)?,
            Request::Rm { path } => store.remove(tx, path)?,
            Request::SetPerms { path, permissions } => {
                store.set_permissions(tx, path, permissions)?;
            }
            Request::Watch { path, token } => store.watch(path, token)?,
            Request::Unwatch { path, token } => store.unwatch(path, token)?,
            Request::ResetWatches => store.reset()?,
            _ => return self.answer_about_domains(request),
        }
        Ok(OK.to_vec())
    }

    fn answer_about_domains(&self, request: &Request<'_>) -> Result<Vec<u8>, ErrorCode> {
        let (caller, hub) = (self.store.domid(), &self.hub);
        let privileged = || match is_privileged(caller) {
            true => Ok(()),
            false => Err(ErrorCode::Eacces),
        };
        match request {
            Request::GetDomainPath { domid } => {
                return strings(&[AbsPath::home(*domid).as_str().to_owned()]);
            }
            Request::IsDomainIntroduced { domid } => {
                // A guest need not know which other domains exist.
                if *domid != caller {
                    privileged()?;
                }
                let answer = if hub.is_introduced(*domid) { "T" } else { "F" };
                return strings(&[answer.to_owned()]);
            }
            Request::Introduce { domid, .. } => privileged().map(|()| hub.introduce(*domid))?,
            Request::Release { domid } => privileged().map(|()| hub.release(*domid))?,
            _ => return Err(ErrorCode::Enosys),
        }
        Ok(OK.to_vec())
    }
}

fn strings(texts: &[String]) -> Result<Vec<u8>, ErrorCode> {
    text::join(texts.iter().map(String::as_str)).map_err(|_| ErrorCode::Eio)
}

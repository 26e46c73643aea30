//! `pvnet guest` and `pvnet frontend`: domains whose devices feed a Linux TCP/IP stack.

mod link;
mod links;
mod memory;
mod options;
mod pump;
mod vif;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use host::Namespace;
use hypervisor::DomId;
use machine::toolstack::MEMORY_TARGET;
use machine::{ConnectError, Grouping, MachineGuest, Token};
use nic_session::channel::GuestEnd;
use offload::Features;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::warn;
use xen::XenGuest;
use xenstore::{Client, Store, StoreError};

use crate::context::ContextDevice;
use crate::program::{Signals, text};
use crate::start;
use link::{Link, StackEnd};
use links::Follow;
use memory::Balloon;
use pump::StackQueue;

pub use options::Options;

/// Which guest a process is.
pub struct Identity {
    /// Its name in the daemon's configuration, and its namespace's name.
    pub name: String,
    /// The file with the secret that proves it.
    pub token_file: Option<PathBuf>,
}

impl Identity {
    /// The secret. It is in a file, because everybody can see a process's arguments.
    fn token(&self) -> Result<Option<Token>, String> {
        let read = |path: &PathBuf| {
            Token::read(path).map_err(|error| format!("{}: {error}", path.display()))
        };
        self.token_file.as_ref().map(read).transpose()
    }
}

/// Runs a guest of the daemon at `socket` until a signal or the daemon's end. Prints a line when it
/// is up. If it [may join again](Options::rejoin), it survives the daemon's end, with its stack's interfaces.
pub fn run(identity: &Identity, socket: &Path, options: &Options) -> Result<(), String> {
    let (name, token) = (identity.name.as_str(), identity.token()?);
    // Before all else, so that a signal leaves nothing behind.
    let signals = Signals::watch()?;
    let join = || Session::join(socket, name, token.as_ref());
    let Some(mut session) = start::retry(&signals.stop, join, JoinError::is_early).map_err(text)?
    else {
        return Ok(());
    };
    let namespace = Namespace::ensure(name).map_err(text)?;
    // From here on this process is in the namespace, so that the tap is created there.
    namespace.enter().map_err(text)?;
    let mut kept = Vec::new();
    let result = loop {
        let store = session.store.clone();
        let result = match serve(name, session, options, &mut kept, &signals) {
            Ok(result) => result,
            // It went before the interfaces were up.
            Err(error) if !kept.is_empty() && is_gone(&*store) => Err(error),
            Err(error) => break Err(error),
        };
        if kept.is_empty() || is_readable(&signals.stop) {
            break result;
        }
        warn!(guest = name, reason = result.err(), "the daemon has gone; waiting for the next one");
        match rejoin(&signals.stop, options.rejoin, join)? {
            Some(next) => session = next,
            None => break Ok(()),
        }
    };
    drop(namespace);
    result
}

/// Brings up the guest's interfaces, with those of its stack that were `kept`, and keeps them if it may join again. Then runs them
/// until a signal or the daemon's end; returns why one ended early. The error is why they are not up.
fn serve(
    name: &str,
    Session { guest, store }: Session,
    options: &Options,
    kept: &mut Vec<Vec<StackQueue>>,
    signals: &Signals,
) -> Result<Result<(), String>, String> {
    let mut links = open_links(&guest, &store, name, options, kept)?;
    links.iter_mut().for_each(Link::keep_mapped);
    let names: Vec<_> = links.iter().map(Link::name).collect();
    println!("guest {name} is up: {} in namespace {name}", names.join(", "));
    if !options.rejoin.is_zero() {
        *kept = links.iter().map(Link::keep_queues).collect::<Result<_, _>>()?;
    }
    let balloon = Balloon::watch(guest, store).map_err(text)?;
    Ok(links::run(links, signals, balloon))
}

/// Whether a store's daemon has gone.
fn is_gone(store: &dyn Store) -> bool {
    matches!(store.read(None, MEMORY_TARGET), Err(StoreError::Gone(_)))
}

/// A guest that has joined a daemon.
struct Session {
    guest: MachineGuest,
    store: Arc<dyn Store>,
}

impl Session {
    fn join(socket: &Path, name: &str, token: Option<&Token>) -> Result<Self, JoinError> {
        let (guest, store) = machine::join_with(socket, name, token)?;
        let store: Arc<dyn Store> = Arc::new(Client::new(store)?);
        if !vif::flag(&*store, "data/group-pages") {
            guest.group(Grouping::Scattered);
        }
        Ok(Self { guest, store })
    }
}

/// Why a guest could not join.
#[derive(Debug, thiserror::Error)]
enum JoinError {
    #[error(transparent)]
    Daemon(#[from] ConnectError),
    #[error(transparent)]
    Store(#[from] std::io::Error),
}

impl JoinError {
    /// Whether the daemon may be about to start.
    fn is_early(&self) -> bool {
        matches!(self, Self::Daemon(ConnectError::NoDaemon { source, .. }) if start::is_early(source.kind()))
    }
}

/// How often joining is tried again.
const AGAIN: Duration = Duration::from_millis(5);

/// Joins the next daemon, for at most `limit`. None after a signal.
fn rejoin<T>(
    signals: &impl AsFd,
    limit: Duration,
    mut join: impl FnMut() -> Result<T, JoinError>,
) -> Result<Option<T>, String> {
    let end = Instant::now() + limit;
    loop {
        match join() {
            Ok(joined) => return Ok(Some(joined)),
            // A daemon that starts is not there, or takes back what the last guest of this name had.
            Err(error) if Instant::now() > end => return Err(text(error)),
            Err(_) if is_readable_within(signals, AGAIN) => return Ok(None),
            Err(_) => {}
        }
    }
}

fn is_readable(fd: &impl AsFd) -> bool {
    is_readable_within(fd, Duration::ZERO)
}

fn is_readable_within(fd: &impl AsFd, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).unwrap_or_default();
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&limit)).is_ok_and(|ready| ready > 0)
}

/// Brings up all interfaces that the toolstack has made for a guest, with its stack in `namespace`.
fn open_links(
    guest: &MachineGuest,
    store: &Arc<dyn Store>,
    namespace: &str,
    options: &Options,
    kept: &[Vec<StackQueue>],
) -> Result<Vec<Link>, String> {
    let handles = vif::handles(&**store)?;
    let contexts = contexts(guest, &**store)?;
    let mut names = options
        .names(handles.len() + contexts.len(), "a [[guest.vif]] in the daemon's configuration")?
        .into_iter();
    let vifs = handles.len();
    let again = |queues: &Vec<StackQueue>| queues.iter().map(StackQueue::try_clone).collect();
    let mut kept = kept.iter().map(again);
    let mut links = Vec::with_capacity(names.len());
    let pool = vif::copy_pool(guest, &**store, vifs, options)?;
    for (number, (handle, name)) in handles.into_iter().zip(&mut names).enumerate() {
        let offloads = vif::features(&**store, handle).without(options.without());
        let configured = || vif::addresses(&**store, handle);
        let addresses = options.addresses(number, &name).unwrap_or_else(configured);
        let kept = kept.next().transpose().map_err(|error: io::Error| text(error))?;
        let namespace = Some(namespace);
        let stack = StackEnd { name, namespace, offloads, addresses, options, kept };
        links.push(vif::open(guest, store, handle, stack, pool.as_ref())?);
    }
    for (number, (context, name)) in contexts.into_iter().zip(names).enumerate() {
        let configured = || vif::list(&**store, &format!("data/context/{number}/addresses"));
        let addresses = options.addresses(vifs + number, &name).unwrap_or_else(configured);
        let offloads = Features::ALL.without(options.without());
        let kept = kept.next().transpose().map_err(|error: io::Error| text(error))?;
        let namespace = Some(namespace);
        let stack = StackEnd { name, namespace, offloads, addresses, options, kept };
        links.push(Link::open_context(context, stack)?);
    }
    Ok(links)
}

/// The contexts of cards that the daemon's configuration gives to a guest, opened.
fn contexts(guest: &MachineGuest, store: &dyn Store) -> Result<Vec<ContextDevice>, String> {
    // There is no such folder without a context.
    let count = store.directory(None, "data/context").map_or(0, |nodes| nodes.len());
    if count == 0 {
        return Ok(Vec::new());
    }
    let channel = guest.open_contexts().map_err(text)?;
    let channel = Arc::new(GuestEnd::new(channel));
    (0..count).map(|index| ContextDevice::open(guest, &channel, index)).collect()
}

/// On Xen the kernel has the balloon, and a vif shows the end of the toolstack.
struct Nothing;

impl Follow for Nothing {
    fn changes(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn follow(&mut self, _: &mut [Link]) -> bool {
        true
    }
}

/// Runs the frontend of interface `handle` of this Xen domain, instead of the kernel's, until a
/// signal or until the backend closes. Prints a line when it is up.
pub fn run_on_xen(handle: u32, options: &Options) -> Result<(), String> {
    let signals = Signals::watch()?;
    let connection = xen::store::connect().map_err(text)?;
    let store: Arc<dyn Store> = Arc::new(Client::new(connection).map_err(text)?);
    let own = store.read(None, "domid").map_err(text)?;
    let own = own.trim().parse().map_err(|error| format!("domid {own:?}: {error}"))?;
    let guest = XenGuest::open(DomId(own)).map_err(text)?;
    let name = options.names(1, "a `pvnet frontend` of its own")?.remove(0);
    let offloads = Features::ALL.without(options.without());
    let configured = || vif::addresses(&*store, handle);
    let addresses = options.addresses(0, &name).unwrap_or_else(configured);
    let stack = StackEnd { name, namespace: None, offloads, addresses, options, kept: None };
    let mut link = vif::open(&guest, &store, handle, stack, None)?;
    link.keep_mapped();
    println!("vif {handle} is up: {}", link.name());
    links::run(vec![link], &signals, Nothing)
}

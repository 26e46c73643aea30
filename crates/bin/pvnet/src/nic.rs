//! `pvnet nic`: a card with a protected context for every guest, as a process.

mod wire;

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cdna::message::Protection;
use cdna::{Command, ContextId, Report};
use firmware::regions::{RegionPages, RegionVectors};
use firmware::{Bus, Card, Config, Next};
use iommu::Geometry;
use nic_bus::CardBus;
use nic_session::Settings;
use nic_session::card::{Connection, JoinError};
use nic_session::files::CardFiles;
use nic_session::message::{ToCard, ToDaemon};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use shm::Region;
use tracing::{debug, warn};
use wire::TapWire;

use crate::program::{stop_signal, text};
use crate::start;

/// Runs the card `name` of the daemon that listens for cards at `socket`, until a signal or the daemon's
/// end. Prints a line when it is up.
pub fn run(name: &str, socket: &Path) -> Result<(), String> {
    // Before all else, so that a signal leaves nothing behind.
    let signals = stop_signal()?;
    let is_early = |error: &JoinError| matches!(error, JoinError::NoDaemon { source, .. } if start::is_early(source.kind()));
    let joined = start::retry(&signals, || Connection::join(socket, name), is_early);
    let Some((connection, settings)) = joined.map_err(text)? else { return Ok(()) };
    let wire = TapWire::open(name, &settings.wire)?;
    let mut process = Process::start(connection, &settings, wire, &signals).map_err(text)?;
    println!("card {name} is up: {} contexts, wire {}", settings.contexts, settings.wire.tap);
    process.run().map_err(text)
}

/// Steps between two checks of the daemon's messages and of signals while there is work.
const STEPS: u32 = 64;
/// How long the card polls for more work before it sleeps: less costs guests a system call per batch.
const POLL: Duration = Duration::from_micros(20);
/// Places of one page in a cache of translations.
const CACHE_WAYS: u32 = 4;

/// What an event is about.
mod token {
    pub const DOORBELL: u64 = 0;
    pub const WIRE: u64 = 1;
    pub const DAEMON: u64 = 2;
    pub const SIGNAL: u64 = 3;
}

/// The files of an assignment that has not come yet, mapped.
struct Prepared {
    generation: u32,
    pages: RegionPages,
    completion: Arc<Region>,
    table: Option<Arc<Region>>,
    doorbell: OwnedFd,
    cache_entries: u32,
}

/// A card and its connection.
struct Process {
    connection: Connection,
    card: Card<CardBus, TapWire>,
    interrupt: OwnedFd,
    events: OwnedFd,
    prepared: HashMap<ContextId, Prepared>,
    /// The doorbells of the contexts that are assigned. Others hold copies of them, so they must be taken off the
    /// events before they are closed.
    doorbells: HashMap<ContextId, OwnedFd>,
    begin: Instant,
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the daemon has gone")
}

impl Process {
    /// Waits for the daemon's first message, makes the card, and announces it.
    fn start(
        connection: Connection,
        settings: &Settings,
        wire: TapWire,
        signals: &UnixStream,
    ) -> io::Result<Self> {
        let (message, files) = connection.receive()?.ok_or_else(gone)?;
        let files = <[OwnedFd; 2]>::try_from(files);
        let (ToCard::Command(Command::Start), Ok([vectors, interrupt])) = (message, files) else {
            return Err(io::Error::other("the daemon's first message is not a start"));
        };
        let vectors = Region::map(vectors, 0, cdna::vectors::PAGE_LEN)?;
        let vectors = RegionVectors::new(vectors).map_err(io::Error::other)?;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let add = |fd: &dyn AsFd, token, flags| {
            epoll::add(&events, fd.as_fd(), epoll::EventData::new_u64(token), flags)
        };
        // Edge by edge: a frame that the line rate holds back must not wake the card again and again.
        add(&wire, token::WIRE, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        add(&connection, token::DAEMON, epoll::EventFlags::IN)?;
        add(signals, token::SIGNAL, epoll::EventFlags::IN)?;
        let Settings { contexts, rate_mbps, tso, .. } = *settings;
        let config = Config { contexts, rate_mbps, tso };
        let card = Card::new(config, CardBus::new(), wire, vectors);
        connection.send(&ToDaemon::Report(Report::Hello(card.announcement())))?;
        Ok(Self {
            connection,
            card,
            interrupt,
            events,
            prepared: HashMap::new(),
            doorbells: HashMap::new(),
            begin: Instant::now(),
        })
    }

    /// Runs until a signal. The daemon's end is an error.
    fn run(&mut self) -> io::Result<()> {
        let (mut steps, mut worked_at) = (0, Duration::ZERO);
        loop {
            self.card.bus().serve();
            let now = self.begin.elapsed();
            self.card.wire().set_time(now);
            let step = self.card.step(now);
            if step.frames > 0 {
                worked_at = now;
            }
            if step.interrupts {
                // The counter is full only if the daemon never reads it.
                let _ = rustix::io::write(&self.interrupt, &1u64.to_ne_bytes());
            }
            let faults: Vec<_> = self.card.faults().collect();
            for fault in faults {
                self.connection.send(&ToDaemon::Report(fault))?;
            }
            steps += 1;
            let wait = match step.next {
                Next::Event if now - worked_at >= POLL => None,
                Next::At(time) if now - worked_at >= POLL => Some(time.saturating_sub(now)),
                _ if steps < STEPS => continue,
                _ => Some(Duration::ZERO),
            };
            steps = 0;
            if !self.wait(wait)? {
                return Ok(());
            }
        }
    }

    /// Sleeps until there are events or `wait` has passed. Serves the daemon's messages. Returns
    /// whether to go on.
    fn wait(&mut self, wait: Option<Duration>) -> io::Result<bool> {
        let sleeps = wait != Some(Duration::ZERO) && self.card.fall_asleep();
        let wait = if sleeps { wait } else { Some(Duration::ZERO) };
        if sleeps {
            self.card.bus().sleep();
        }
        let timeout = wait.map(|wait| Timespec::try_from(wait).unwrap_or_default());
        let mut space = [MaybeUninit::uninit(); 16];
        let ready = match epoll::wait(&self.events, &mut space, timeout.as_ref()) {
            Ok((ready, _)) => &*ready,
            Err(Errno::INTR) => &[],
            Err(error) => return Err(error.into()),
        };
        let has = |token| ready.iter().any(|event| { event.data }.u64() == token);
        let (signal, message) = (has(token::SIGNAL), has(token::DAEMON));
        if has(token::WIRE) {
            self.card.wire().notice();
        }
        if sleeps {
            self.card.bus().wake();
        }
        if signal {
            return Ok(false);
        }
        if message {
            let (message, files) = self.connection.receive()?.ok_or_else(gone)?;
            self.serve(message, files)?;
        }
        Ok(true)
    }

    fn serve(&mut self, message: ToCard, files: Vec<OwnedFd>) -> io::Result<()> {
        debug!(?message, "from the daemon");
        match message {
            ToCard::AddMemory { base, len } => {
                let file = files.into_iter().next().ok_or(io::ErrorKind::InvalidData)?;
                let len = usize::try_from(len).map_err(io::Error::other)?;
                let region = Region::map(file, 0, len)?;
                self.card.bus().memory().insert(base, Arc::new(region));
            }
            ToCard::RemoveMemory { base } => self.card.bus().memory().remove(base),
            ToCard::Prepare { context, generation, cache_entries } => {
                let CardFiles { context: page, rings, completion, doorbell, table } =
                    CardFiles::map(files)?;
                // A slice keeps the mapping that the translation uses as well.
                let whole = completion.slice(0..completion.len()).map_err(io::Error::other)?;
                let pages = RegionPages::new(page, rings, whole).map_err(io::Error::other)?;
                let prepared =
                    Prepared { generation, pages, completion, table, doorbell, cache_entries };
                self.prepared.insert(context, prepared);
                self.connection.send(&ToDaemon::Prepared { context, generation })?;
            }
            ToCard::Command(Command::Assign(assignment)) => self.assign(assignment)?,
            ToCard::Command(Command::Revoke { context, generation }) => {
                self.forget(context);
                self.prepared.remove(&context);
                let report = self.card.revoke(context, generation);
                self.connection.send(&ToDaemon::Report(report))?;
            }
            ToCard::Command(Command::Statistics { context }) => {
                let statistics = self.card.statistics(context);
                let report = Report::Statistics { context, statistics };
                self.connection.send(&ToDaemon::Report(report))?;
            }
            ToCard::Command(Command::Start) => warn!("the daemon starts the card again"),
        }
        Ok(())
    }

    fn assign(&mut self, assignment: cdna::message::Assignment) -> io::Result<()> {
        let context = assignment.context;
        let prepared = self.prepared.remove(&context);
        let prepared = prepared.filter(|ours| ours.generation == assignment.generation);
        let Prepared { pages, completion, table, doorbell, cache_entries, .. } = prepared
            .ok_or_else(|| io::Error::other("an assignment whose files did not come before it"))?;
        self.forget(context);
        if self.card.assign(assignment, pages).is_err() {
            return Err(io::Error::other("an assignment of a context that does not exist"));
        }
        match (assignment.protection, table) {
            (Protection::Iommu, Some(table)) => {
                let geometry =
                    Geometry { entries: cache_entries, ways: CACHE_WAYS.min(cache_entries) };
                let translated = self.card.bus().translate(context, table, completion, geometry);
                translated.map_err(io::Error::other)?;
            }
            (Protection::Iommu, None) => {
                return Err(io::Error::other("an assignment with an IOMMU and without a table"));
            }
            (Protection::None | Protection::Hypervisor, _) => self.card.bus().release(context),
        }
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.events, &doorbell, epoll::EventData::new_u64(token::DOORBELL), flags)?;
        self.doorbells.insert(context, doorbell);
        Ok(())
    }

    /// Listens to the context's doorbell no more.
    fn forget(&mut self, context: ContextId) {
        if let Some(doorbell) = self.doorbells.remove(&context) {
            // It fails only if the doorbell was never there.
            let _ = epoll::delete(&self.events, &doorbell);
        }
    }
}

//! A guest's channel about its contexts, served by one thread: its requests, and its hypercalls.
//!
//! A guest that floods the thread with hypercalls keeps it busy and nobody else's. Requests and assignments also cost what guests share: the
//! card's state, and the card. They have a pace, and the guest's thread alone waits.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use contexts::{Call, Contexts, Refusal, Unmapping, write_answer};
use hypervisor::{DomId, EventChannel, Hypervisor};
use machine::{Domain, HostEvent, Machine, event_channel};
use nic_session::channel::{Answer, CALL_PAGE_LEN, Request, answer, receive};
use rustix::event::epoll;
use rustix::io::Errno;
use shm::{PageSize, Region, create_memfd};
use token_bucket::Pace;
use tracing::debug;

use super::card::{Place, QUIET_LIMIT};

/// The event of the guest's requests; calls have the index of their context.
const REQUEST: u64 = u64::MAX;
/// Requests that a guest may make at once. An assignment takes three.
const REQUESTS: u32 = 1024;
/// Requests per second after that.
const REQUESTS_PER_SECOND: u32 = 100;
/// How long an unmapping is polled before the thread sleeps between two checks.
const POLL: Duration = Duration::from_micros(50);
/// How long it sleeps.
const CHECK_INTERVAL: Duration = Duration::from_micros(20);

/// A context that the guest has opened.
struct Opened {
    page: Region,
    calls: HostEvent,
}

/// The daemon's end of a channel.
pub(super) struct Channel {
    socket: Arc<OwnedFd>,
    events: OwnedFd,
    machine: Machine,
    domain: DomId,
    places: Vec<Place>,
    opened: Vec<Option<Opened>>,
    call: Call,
    /// Of its requests.
    pace: Pace,
}

impl Channel {
    /// A channel for the guest with these contexts.
    pub(super) fn new(
        socket: Arc<OwnedFd>,
        machine: Machine,
        domain: DomId,
        places: Vec<Place>,
    ) -> io::Result<Self> {
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(REQUEST);
        epoll::add(&events, &*socket, data, epoll::EventFlags::IN)?;
        let opened = places.iter().map(|_| None).collect();
        let call = Call::default();
        let pace = Pace::new(REQUESTS, REQUESTS_PER_SECOND, Instant::now());
        Ok(Self { socket, events, machine, domain, places, opened, call, pace })
    }

    /// Serves the guest until it has gone.
    pub(super) fn serve(mut self) {
        if let Err(error) = self.run() {
            debug!(domain = self.domain.0, %error, "a guest's contexts");
        }
    }

    fn run(&mut self) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); 8];
        loop {
            let ready = match epoll::wait(&self.events, &mut space, None) {
                Ok((ready, _)) => ready,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for event in ready {
                match { event.data }.u64() {
                    REQUEST => {
                        let Some((index, request)) = receive(&self.socket)? else { return Ok(()) };
                        self.request(index, request)?;
                    }
                    index => self.call(usize::try_from(index).unwrap_or(usize::MAX))?,
                }
            }
        }
    }

    fn request(&mut self, index: usize, request: Request) -> io::Result<()> {
        std::thread::sleep(self.pace.begin(Instant::now()));
        let Some((card, slot)) = self.places.get(index).cloned() else {
            let why = format!("it has {} contexts", self.places.len());
            return answer(&self.socket, Answer::Refused(&why));
        };
        if let Request::Open | Request::Pages = request {
            std::thread::sleep(card.wait_of(slot));
        }
        match request {
            Request::Open => self.open(index),
            Request::Pages => match card.files(slot, self.domain)? {
                Some((assigned, files)) => {
                    answer(&self.socket, Answer::Assigned(assigned, files.borrowed()))
                }
                None => answer(&self.socket, Answer::Down),
            },
            Request::Mapped(generation) => {
                card.mapped(slot, self.domain, generation)?;
                answer(&self.socket, Answer::Done)
            }
            Request::Close => match card.close(slot, self.domain) {
                true => answer(&self.socket, Answer::Done),
                false => answer(&self.socket, Answer::Refused("the card does not answer")),
            },
        }
    }

    fn open(&mut self, index: usize) -> io::Result<()> {
        let Some((card, slot)) = self.places.get(index).cloned() else { return Ok(()) };
        let Ok(domain): Result<Arc<Domain>, _> = self.machine.peer(self.domain) else {
            return Err(io::Error::other("the domain has ended"));
        };
        let file =
            create_memfd("pvnet-calls", CALL_PAGE_LEN / PageSize::Small.bytes(), PageSize::Small)?;
        let page = Region::map(&file, 0, CALL_PAGE_LEN)?;
        let [(calls, their_calls), (interrupts, their_interrupts), (changes, their_changes)] =
            [event_channel()?, event_channel()?, event_channel()?];
        // The guest only writes to it, and every write is an edge.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.events, &calls, epoll::EventData::new_u64(index as u64), flags)?;
        if let Some(old) = self.opened[index].replace(Opened { page, calls }) {
            // The guest holds a copy, with which it would stay.
            epoll::delete(&self.events, &old.calls)?;
        }
        let opened = card.open(slot, &domain, changes, interrupts);
        let events = [&their_calls, &their_interrupts, &their_changes];
        answer(&self.socket, Answer::Opened(opened, file.as_fd(), events))
    }

    /// Serves a hypercall.
    fn call(&mut self, index: usize) -> io::Result<()> {
        let (Some((card, slot)), Some(Some(opened))) =
            (self.places.get(index), self.opened.get(index))
        else {
            return Ok(());
        };
        let answer = match (self.call.copy(&opened.page), card.contexts()) {
            (Err(malformed), _) => Refusal::Malformed.answer(malformed.serial),
            (Ok(()), None) => Refusal::NotYours.answer(self.call.serial()),
            (Ok(()), Some(contexts)) => {
                let (context, now) = (card.context_of(*slot), card.now());
                let wait = |unmapping| wait_for_card(&contexts, unmapping);
                contexts.caller(context, self.domain).serve(&self.call, now, wait)
            }
        };
        if answer.status == Refusal::Stopped.status() {
            card.revoke_stopped(*slot);
        }
        write_answer(&opened.page, answer)?;
        // A guest that has gone needs no answer.
        let _ = opened.calls.notify();
        Ok(())
    }
}

/// Waits until the card has confirmed an unmapping. Returns whether it did in time: a card that hangs
/// confirms nothing.
pub(super) fn wait_for_card(contexts: &Contexts<Domain>, unmapping: Unmapping) -> bool {
    let begin = Instant::now();
    while !contexts.is_unmapped(unmapping) {
        let waited = begin.elapsed();
        if waited > QUIET_LIMIT {
            return false;
        }
        if waited < POLL {
            std::hint::spin_loop();
        } else {
            std::thread::sleep(CHECK_INTERVAL);
        }
    }
    true
}

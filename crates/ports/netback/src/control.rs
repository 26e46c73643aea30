//! The control ring: requests of a frontend other than frames.
//!
//! They are about [persistent grants](crate::PersistentGrants) (how many are possible, to map some, to unmap
//! some) and about the [hash](crate::hash) that spreads flows over the queues.
//!
//! A worker serves it between frames in small steps: one message, or a few of the pages of one
//! message. It never waits for a batch that uses the pages: it tries again in its next step. A list, a key
//! or a table is copied once, as a whole; later changes of the frontend's page have no effect (XSA-155).

use std::fmt;
use std::sync::Arc;

use hypervisor::{CopyStatus, Dest, EventChannel, GrantCopy, GrantRef, Hypervisor, Source};
use port::{Armed, Broken, Event, Task};
use ring::netif::Ctrl;
use ring::{BackRing, RegionPage};
use wire::netif::ctrl::status;
use wire::netif::{CtrlMessage, CtrlRequest, GrefMapping};
use zerocopy::IntoBytes;

use crate::hash::Hashing;
use crate::{EventRing, Fault, PersistentGrants};

/// Pages mapped or unmapped in one step, which takes about as long as a batch of frames.
const STEP: usize = 16;

/// A control ring.
pub struct ControlRing<H: Hypervisor> {
    hypervisor: H,
    peer: H::Peer,
    ring: BackRing<Ctrl, RegionPage<H::Mapping>>,
    event: Arc<H::Event>,
    /// The persistent grants of each queue; nothing if they are not offered.
    grants: Box<[Arc<PersistentGrants<H>>]>,
    hashing: Box<Hashing>,
    job: Option<Job>,
}

/// A message that takes more than one step.
struct Job {
    request: CtrlRequest,
    queue: usize,
    /// The frontend's page with the list.
    list: GrantRef,
    /// The private copy of the list.
    entries: Vec<GrefMapping>,
    /// Entries that are mapped or unmapped so far. While mappings are undone: those left.
    done: usize,
    doing: Doing,
}

enum Doing {
    Adding,
    /// One entry could not be mapped: the others are unmapped, and the frontend gets this status.
    Undoing(u32),
    /// How many have been unmapped.
    Removing(u32),
}

/// What follows for a message: a response, or more work.
enum Next {
    Answer { status: u32, data: u32 },
    Work(Job),
}

impl<H: Hypervisor> Task for ControlRing<H> {
    fn event(&self) -> Arc<dyn Event> {
        self.event.clone()
    }

    fn step(&mut self) -> Result<bool, Broken> {
        self.serve().map_err(broken)
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        let ready = self.job.is_some() || self.ring.arm().map_err(broken)?;
        Ok(if ready { Armed::Ready } else { Armed::Asleep })
    }
}

fn broken(fault: impl fmt::Display) -> Broken {
    Broken(format!("control ring: {fault}"))
}

impl<H: Hypervisor> ControlRing<H> {
    pub(crate) fn new(
        hypervisor: H,
        peer: H::Peer,
        EventRing { ring, event }: EventRing<Ctrl, H>,
        grants: Vec<Arc<PersistentGrants<H>>>,
        hashing: Box<Hashing>,
    ) -> Self {
        let grants = grants.into();
        Self { hypervisor, peer, ring, event, grants, hashing, job: None }
    }

    /// Wakes the frontend.
    pub(crate) fn notify(&self) {
        // This fails if the frontend is gone, and then the store reports it.
        let _ = self.event.notify();
    }

    /// The persistent grants that it controls, by queue.
    pub fn grants(&self) -> &[Arc<PersistentGrants<H>>] {
        &self.grants
    }

    fn serve(&mut self) -> Result<bool, Fault> {
        let (request, next) = match self.job.take() {
            Some(job) => (job.request, self.advance(job)),
            None => match self.ring.take()? {
                Some(request) => (request, self.begin(request)),
                None => return Ok(false),
            },
        };
        match next {
            Next::Work(job) => self.job = Some(job),
            Next::Answer { status, data } => {
                self.ring.respond(request.respond(status, data));
                if self.ring.publish() {
                    self.notify();
                }
            }
        }
        Ok(true)
    }

    fn begin(&mut self, request: CtrlRequest) -> Next {
        let Ok(message) = request.message() else { return refuse(status::NOT_SUPPORTED) };
        let (queue, list, entries, doing) = match message {
            CtrlMessage::GetGrefMappingSize { .. }
            | CtrlMessage::AddGrefMapping { .. }
            | CtrlMessage::DelGrefMapping { .. }
                if self.grants.is_empty() =>
            {
                return refuse(status::NOT_SUPPORTED);
            }
            CtrlMessage::GetGrefMappingSize { queue } => {
                let bound =
                    self.of_queue(queue).and_then(|n| self.grants[n].bound().try_into().ok());
                return bound.map_or(refuse(status::INVALID_PARAMETER), |data| Next::Answer {
                    status: status::SUCCESS,
                    data,
                });
            }
            CtrlMessage::AddGrefMapping { queue, gref, entries } => {
                (queue, gref, entries, Doing::Adding)
            }
            CtrlMessage::DelGrefMapping { queue, gref, entries } => {
                (queue, gref, entries, Doing::Removing(0))
            }
            about_hashes => return self.serve_hashing(about_hashes),
        };
        let Some(queue) = self.of_queue(queue) else { return refuse(status::INVALID_PARAMETER) };
        let list = GrantRef(list);
        let entries = usize::try_from(entries).ok().filter(|n| *n <= GrefMapping::PER_PAGE);
        let Some(entries) = entries else { return refuse(status::INVALID_PARAMETER) };
        let grants = &self.grants[queue];
        if matches!(doing, Doing::Adding) && entries > grants.bound() - grants.mapped() {
            return refuse(status::BUFFER_OVERFLOW);
        }
        match self.read_list(list, entries) {
            Some(entries) => self.advance(Job { request, queue, list, entries, done: 0, doing }),
            None => refuse(status::INVALID_PARAMETER),
        }
    }

    fn serve_hashing(&mut self, message: CtrlMessage) -> Next {
        let Self { hypervisor, peer, hashing, .. } = self;
        match hashing.serve(message, |page, bytes| read(hypervisor, peer, page, bytes)) {
            Ok(data) => Next::Answer { status: status::SUCCESS, data },
            Err(status) => refuse(status),
        }
    }

    fn of_queue(&self, queue: u32) -> Option<usize> {
        usize::try_from(queue).ok().filter(|queue| *queue < self.grants.len())
    }

    /// A private copy of a list. This is its only read.
    fn read_list(&self, list: GrantRef, count: usize) -> Option<Vec<GrefMapping>> {
        let mut entries = vec![GrefMapping::default(); count];
        read(&self.hypervisor, &self.peer, list, entries.as_mut_bytes()).then_some(entries)
    }

    /// Writes a list back, with the status of each entry.
    fn write(&self, list: GrantRef, entries: &[GrefMapping]) -> bool {
        let dest = Dest::Grant { peer: &self.peer, gref: list, offset: 0 };
        let bytes = entries.as_bytes();
        let Ok(len) = u16::try_from(bytes.len()) else { return false };
        copy(&self.hypervisor, GrantCopy::new(Source::Private(bytes), dest, len))
    }

    /// Processes the next few entries of a job, unless a batch uses the mapped pages.
    fn advance(&self, mut job: Job) -> Next {
        let Some(mut grants) = self.grants[job.queue].change() else { return Next::Work(job) };
        let count = job.entries.len();
        match job.doing {
            Doing::Adding => {
                let end = count.min(job.done + STEP);
                match grants.add(&job.entries[job.done..end]) {
                    Ok(()) if end == count => {
                        return Next::Answer { status: status::SUCCESS, data: 0 };
                    }
                    Ok(()) => job.done = end,
                    Err(status) => job.doing = Doing::Undoing(status),
                }
            }
            // The entries before the refused ones were all mapped by this job: a reference that
            // was mapped before would have been refused.
            Doing::Undoing(status) => {
                let start = job.done.saturating_sub(STEP);
                grants.take_back(&job.entries[start..job.done]);
                job.done = start;
                if start == 0 {
                    return refuse(status);
                }
            }
            Doing::Removing(removed) => {
                let end = count.min(job.done + STEP);
                let removed = removed + grants.remove(&mut job.entries[job.done..end]);
                if end == count {
                    let written = self.write(job.list, &job.entries);
                    let status = if written { status::SUCCESS } else { status::INVALID_PARAMETER };
                    return Next::Answer { status, data: removed };
                }
                (job.done, job.doing) = (end, Doing::Removing(removed));
            }
        }
        Next::Work(job)
    }
}

/// Copies the start of a page of the frontend. Returns whether that was possible.
fn read<H: Hypervisor>(hypervisor: &H, peer: &H::Peer, page: GrantRef, bytes: &mut [u8]) -> bool {
    let Ok(len) = u16::try_from(bytes.len()) else { return false };
    let source = Source::Grant { peer, gref: page, offset: 0 };
    copy(hypervisor, GrantCopy::new(source, Dest::Private(bytes), len))
}

fn copy<H: Hypervisor>(hypervisor: &H, op: GrantCopy<'_, H::Peer>) -> bool {
    let mut batch = [op];
    hypervisor.copy(&mut batch);
    batch[0].status == CopyStatus::Okay
}

fn refuse(status: u32) -> Next {
    Next::Answer { status, data: 0 }
}

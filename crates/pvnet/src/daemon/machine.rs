//! Who may join: the guests of the configuration, each once.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};

use hypervisor::DomId;
use machine::{MemorySize, Toolstack};
use netback::RxChannel;
use shm::PageSize;

use crate::config::{Config, Guest};
use crate::daemon::control::Event;

/// Pages that a queue needs to receive by page flipping: a ring of them at the guest, and as many
/// on their way there and back.
const EXCHANGE_PAGES: usize = 2 * netfront::RING_LEN;

/// Admits guests and tells the control thread of them.
pub(super) struct Admission {
    /// Queues of a guest for which the configuration names no number.
    queues: u32,
    guests: HashMap<String, Guest>,
    present: Mutex<HashSet<String>>,
    events: Mutex<mpsc::Sender<Event>>,
}

impl Admission {
    pub(super) fn new(config: &Config, events: mpsc::Sender<Event>) -> Self {
        let guests = config.guests.iter().map(|guest| (guest.name.clone(), guest.clone()));
        let queues = u32::try_from(config.daemon.workers).unwrap_or(1);
        Self { queues, guests: guests.collect(), present: Mutex::default(), events: events.into() }
    }

    fn present(&self) -> MutexGuard<'_, HashSet<String>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the control thread do something, and waits for its answer.
    fn ask<T>(&self, event: impl FnOnce(mpsc::Sender<T>) -> Event) -> Option<T> {
        let (answer, answered) = mpsc::channel();
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner).clone();
        events.send(event(answer)).ok()?;
        answered.recv().ok()
    }
}

impl Toolstack for Admission {
    fn admit(&self, name: &str) -> Result<MemorySize, String> {
        let Some(guest) = self.guests.get(name) else {
            let mut known: Vec<_> = self.guests.keys().map(String::as_str).collect();
            known.sort_unstable();
            return Err(format!(
                "no guest {name:?} in the configuration (there are: {}); add a [[guest]] and \
                 restart the daemon",
                known.join(", ")
            ));
        };
        if !self.present().insert(name.to_owned()) {
            return Err(format!("a guest {name:?} is here already"));
        }
        let queues = guest.queues.unwrap_or(self.queues) as usize;
        let flip = guest.rx == RxChannel::Flip;
        Ok(MemorySize {
            pages: guest.memory_mib * 256,
            exchange_pages: if flip { queues * EXCHANGE_PAGES } else { 0 },
            page_size: if guest.huge_pages { PageSize::Huge } else { PageSize::Small },
            ..MemorySize::default()
        })
    }

    fn created(&self, domain: DomId, name: &str) -> Result<(), String> {
        let name = name.to_owned();
        let created = self.ask(|answer| Event::Created { domain, name, answer });
        created.unwrap_or_else(|| Err("the daemon is stopping".into()))
    }

    fn destroyed(&self, domain: DomId, name: &str) {
        // Waited for: afterwards the domain's memory is not in use by any worker.
        self.ask(|answer| Event::Destroyed { domain, answer });
        self.present().remove(name);
    }
}

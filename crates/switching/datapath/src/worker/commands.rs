//! Commands to a worker, which it executes between two of its turns.

use std::sync::Arc;
use std::time::Instant;

use port::Rewrap;
use switch::PortId;
use tracing::debug;

use super::Worker;
use crate::handle::Command;
use crate::port::{IngressId, Port};
use crate::slot::Slot;
use crate::work::Work;

impl Worker {
    /// The next command; a worker that is paused waits for it.
    fn next_command(&self) -> Option<Command> {
        match self.is_paused {
            true => self.commands.recv().ok(),
            false => self.commands.try_recv().ok(),
        }
    }

    /// Runs the commands that have come. Returns false when the worker must end.
    pub(super) fn run_commands(&mut self) -> bool {
        while let Some(command) = self.next_command() {
            match command {
                Command::Add { port, work, id } => self.add(port, work, id),
                Command::RemoveIngress { id, done } => {
                    let removed = self.remove(|slot| slot.id == Some(id));
                    let _ = done.send(removed);
                }
                Command::Synchronise { port, done } => {
                    // Commands are run between turns.
                    self.slots_of(port).for_each(|slot| slot.active = true);
                    let _ = done.send(());
                }
                Command::Rewrap { port, rewrap, done } => {
                    self.rewrap(port, &*rewrap);
                    let _ = done.send(());
                }
                Command::Coalesce { port, coalescing, done } => {
                    let now = Instant::now();
                    self.slots_of(port).for_each(|slot| slot.coalesce(coalescing, now));
                    let _ = done.send(());
                }
                Command::Remove { port, done } => {
                    self.held.forget(port);
                    let removed = self.remove(|slot| slot.port.id() == port);
                    // This fails if the caller no longer waits.
                    let _ = done.send(removed);
                }
                Command::Pause { done } => {
                    self.held.flush(self.carrier.now, true);
                    self.is_paused = true;
                    let _ = done.send(());
                }
                Command::Resume => self.is_paused = false,
                Command::Stop => return false,
            }
        }
        true
    }

    fn add(&mut self, port: Arc<Port>, work: Work, id: Option<IngressId>) {
        let index = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if index == self.slots.len() {
            self.slots.push(None);
        }
        match Slot::new(&self.epoll, index, port, work, id) {
            Ok(slot) => {
                let (port, work) = (slot.port.name(), slot.work.name());
                debug!(worker = self.number, port, work, "added");
                self.slots[index] = Some(slot);
            }
            Err((port, error)) => self.shared.fail(&port, format!("waiting for events: {error}")),
        }
    }

    fn slots_of(&mut self, port: PortId) -> impl Iterator<Item = &mut Slot> {
        self.slots.iter_mut().flatten().filter(move |slot| slot.port.id() == port)
    }

    fn rewrap(&mut self, port: PortId, rewrap: &dyn Rewrap) {
        for place in &mut self.slots {
            *place = match place.take() {
                Some(slot) if slot.port.id() == port => Some(slot.rewrap(rewrap)),
                other => other,
            };
        }
    }

    fn remove(&mut self, is_its: impl Fn(&Slot) -> bool) -> Vec<Slot> {
        let slots = self.slots.iter_mut();
        let removed: Vec<_> = slots.filter_map(|slot| slot.take_if(|slot| is_its(slot))).collect();
        removed.iter().for_each(|slot| slot.forget_events(&self.epoll));
        // The worker's copy of the set of ports must not hold the port either.
        self.carrier.begin(Instant::now());
        removed
    }
}

//! Commands to a worker, which it executes between two of its turns.

use std::sync::Arc;
use std::time::Instant;

use port::Rewrap;
use switch::PortId;
use tracing::debug;

use super::Worker;
use crate::command::{Command, NewWork, Removed};
use crate::port::{IngressId, Port};
use crate::slot::{Entry, Slot};
use crate::work::Work;

impl Worker {
    /// Runs the commands that have come. Returns false when the worker must end.
    pub(super) fn run_commands(&mut self) -> bool {
        self.adopt();
        let state = self.state.clone();
        while let Some((command, guard)) = state.next_command(self.generation) {
            match command {
                Command::Add { port, work, id } => self.add(port, work, id),
                Command::RemoveIngress { id, done } => {
                    let removed = self.remove(|entry| entry.id == Some(id));
                    let _ = done.send(removed);
                }
                Command::ReplaceSleeping { port, queue, work, done } => {
                    if let Some(work) = self.replace_sleeping(port, queue, work) {
                        let _ = done.send(work);
                    }
                }
                Command::Release { number, done } => {
                    if let Some(entry) = self.release(number) {
                        let _ = done.send(entry);
                    }
                }
                Command::TakeOver { entry, done } => {
                    self.take_over(&entry);
                    let _ = done.send(());
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
                    let removed = self.remove(|entry| entry.port.id() == port);
                    // This fails if the caller no longer waits.
                    let _ = done.send(removed);
                }
                Command::Pause { done } => {
                    // In guests' memory, where it may sleep.
                    drop(guard);
                    self.held.flush(&self.activity, self.carrier.now, true);
                    let _ = done.send(());
                }
                Command::Resume => {}
                Command::Stop => return false,
            }
        }
        true
    }

    fn add(&mut self, port: Arc<Port>, work: NewWork, id: Option<IngressId>) {
        let work = work();
        debug!(worker = self.number, port = port.name(), work = work.name(), "added");
        self.take_over(&Arc::new(Entry::new(port, work, id)));
    }

    /// Serves a queue or a task that is new here. Its first turn comes soon, with or without an event.
    fn take_over(&mut self, entry: &Arc<Entry>) {
        let index = self.state.add(entry.clone());
        while self.slots.len() <= index {
            self.slots.push(None);
        }
        self.serve(index, entry);
    }

    /// Serves a queue no more, and hands it out for another worker. None if an earlier thread sleeps in a turn of it.
    fn release(&mut self, number: u64) -> Option<Arc<Entry>> {
        // What it had in hand is in its queue, and the time of its last turn is counted here.
        self.turn_ended(Instant::now());
        let index = self.state.find(|entry| entry.number == number).into_iter().next()?;
        let mut slot = self.slots.get_mut(index)?.take()?;
        slot.record_end(self.number);
        self.state.remove(|entry| entry.number == number);
        slot.forget_events(&self.epoll);
        Some(slot.entry)
    }

    /// Replaces a queue in whose turn an earlier thread still sleeps. Returns the new queue if no thread does.
    fn replace_sleeping(&mut self, port: Arc<Port>, queue: usize, work: Work) -> Option<Work> {
        let is_its =
            |entry: &Entry| Arc::ptr_eq(&entry.port, &port) && entry.room_of == Some(queue);
        let sleeps = |index: &usize| self.slots.get(*index).is_some_and(Option::is_none);
        let Some(index) = self.state.find(is_its).into_iter().find(sleeps) else {
            return Some(work);
        };
        let entry = Arc::new(Entry::new(port, work, None));
        self.state.replace(index, entry.clone());
        self.serve(index, &entry);
        None
    }

    /// Serves a queue or a task from now on.
    pub(super) fn serve(&mut self, index: usize, entry: &Arc<Entry>) {
        match Slot::new(&self.epoll, index, entry.clone()) {
            Ok(slot) => self.slots[index] = Some(slot),
            Err(error) => {
                self.state.remove(|of| std::ptr::eq(of, &raw const **entry));
                self.shared.fail(&entry.port, format!("waiting for events: {error}"));
            }
        }
    }

    fn slots_of(&mut self, port: PortId) -> impl Iterator<Item = &mut Slot> {
        self.slots.iter_mut().flatten().filter(move |slot| slot.entry.port.id() == port)
    }

    fn rewrap(&mut self, port: PortId, rewrap: &dyn Rewrap) {
        self.slots_of(port).for_each(|slot| slot.rewrap(rewrap));
    }

    fn remove(&mut self, is_its: impl Fn(&Entry) -> bool) -> Removed {
        self.turn_ended(Instant::now());
        let removed = self.state.remove(is_its);
        for (index, _) in &removed {
            // It has none while an earlier thread is in its turn.
            if let Some(mut slot) = self.slots.get_mut(*index).and_then(Option::take) {
                slot.record_end(self.number);
                slot.forget_events(&self.epoll);
            }
        }
        // The worker's copy of the set of ports must not hold the port either.
        self.carrier.begin(Instant::now());
        removed.into_iter().map(|(_, entry)| entry).collect()
    }
}

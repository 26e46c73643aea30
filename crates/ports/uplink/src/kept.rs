//! Buffers that a receiver keeps: a guest copies the frame later.
//!
//! While one is kept, its slot of the window reads into another. The number of buffers is bounded:
//! when all spare ones are kept, receivers copy frames at once, and nobody waits.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use port::{Frame, HEADER_MAX, KeptFrame, Place, WINDOW};
use shm::{OutOfBounds, Region};

/// Bytes before the body of a frame that is kept: room for its private header.
pub(crate) const HEADROOM: usize = HEADER_MAX;
/// Kept buffers to check per frame: whether they are free again.
const CHECKS: usize = 4;

/// The buffers of an ingress queue, of which some may be kept.
#[derive(Debug)]
pub(crate) struct KeptBuffers {
    /// Bytes of each.
    size: usize,
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    /// All of them. One that has no other owner is not kept.
    buffers: Box<[Arc<Region>]>,
    /// The buffer of each slot of the window.
    current: [usize; WINDOW],
    /// The slot that each buffer was last the current one of.
    slots: Box<[usize]>,
    /// The slot's next buffer, because its frame is kept.
    next: [Option<usize>; WINDOW],
    free: Vec<usize>,
    /// Kept, and perhaps free again; the oldest first.
    kept: VecDeque<usize>,
}

impl KeptBuffers {
    /// The buffers of `size` bytes in `whole`: one for each slot, and spare ones.
    pub(crate) fn new(whole: &Arc<Region>, size: usize) -> Result<Self, OutOfBounds> {
        let count = whole.len() / size;
        let buffer = |n| whole.slice(n * size..(n + 1) * size).map(Arc::new);
        let buffers = (0..count).map(buffer).collect::<Result<_, _>>()?;
        let free = (WINDOW..count).rev().collect();
        let current = std::array::from_fn(|slot| slot);
        // A spare buffer gets its slot when it becomes a current one.
        let slots = (0..count).map(|buffer| buffer % WINDOW).collect();
        let (next, kept) = ([None; WINDOW], VecDeque::with_capacity(count));
        let state = RefCell::new(State { buffers, current, slots, next, free, kept });
        Ok(Self { size, state })
    }

    pub(crate) fn current(&self, slot: usize) -> usize {
        self.state.borrow().current[slot]
    }

    /// The slot's frame is done with: if it is kept, the slot gets another buffer.
    pub(crate) fn renew(&mut self, slot: usize) {
        let state = self.state.get_mut();
        if let Some(next) = state.next[slot].take() {
            let kept = std::mem::replace(&mut state.current[slot], next);
            state.slots[next] = slot;
            state.kept.push_back(kept);
        }
    }

    /// Keeps a frame in hand. See [`port::ReceiveBuffers::keep`].
    pub(crate) fn keep(&self, frame: &Frame) -> Option<KeptFrame> {
        let [fragment] = frame.fragments.as_slice() else { return None };
        let Place::Region { offset, .. } = fragment.place else { return None };
        let offset = offset.index();
        let header = frame.header();
        if offset % self.size != HEADROOM
            || header.len() + usize::from(fragment.len) != frame.len as usize
        {
            return None;
        }
        let mut state = self.state.borrow_mut();
        let buffer = offset / self.size;
        let slot = *state.slots.get(buffer)?;
        if state.current[slot] != buffer {
            return None;
        }
        if state.next[slot].is_none() {
            state.next[slot] = Some(state.take_free()?);
        }
        let memory = state.buffers[buffer].clone();
        let offset = HEADROOM - header.len();
        // Other receivers that keep it may read the same bytes meanwhile.
        memory.copy_in(offset, header).ok()?;
        Some(KeptFrame { memory, offset })
    }
}

impl State {
    /// A buffer that nobody keeps.
    fn take_free(&mut self) -> Option<usize> {
        for _ in 0..CHECKS.min(self.kept.len()) {
            let Some(buffer) = self.kept.pop_front() else { break };
            // What its last reader did came before this.
            match Arc::get_mut(&mut self.buffers[buffer]) {
                Some(_) => self.free.push(buffer),
                None => self.kept.push_back(buffer),
            }
        }
        // The one that came back last is most likely in the cache.
        self.free.pop()
    }
}

#[cfg(test)]
mod tests;

//! The event vectors: which contexts have events, and which of their mailboxes were written.
//!
//! Both levels are the card's. A guest can only set bits in the event word of its context, which the scan takes
//! all at once.

use cdna::vectors::Vector;
use cdna::{ContextId, Events};

use crate::bus::ContextPages;

/// Events that were taken from the event words and not handled yet.
#[derive(Debug)]
pub(crate) struct EventVectors {
    /// The first level.
    contexts: Vector,
    /// The second level.
    mailboxes: [Events; cdna::context::CONTEXTS_MAX],
}

impl EventVectors {
    pub(crate) fn new() -> Self {
        let mailboxes = [Events::NONE; cdna::context::CONTEXTS_MAX];
        Self { contexts: Vector::EMPTY, mailboxes }
    }

    /// Takes a context's events. Its event word is only written if it is not 0.
    #[inline]
    pub(crate) fn scan(&mut self, context: ContextId, pages: &impl ContextPages) {
        if pages.events() != 0 {
            let events = Events::from_word(pages.take_events());
            if !events.is_empty() {
                self.contexts.insert(context);
                self.mailboxes[context.index()] = events;
            }
        }
    }

    /// Removes all events of a context.
    pub(crate) fn clear(&mut self, context: ContextId) {
        self.contexts.remove(context);
        self.mailboxes[context.index()] = Events::NONE;
    }

    /// Takes all events of one context.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<(ContextId, Events)> {
        let context = self.contexts.contexts().next()?;
        self.contexts.remove(context);
        Some((context, std::mem::take(&mut self.mailboxes[context.index()])))
    }
}

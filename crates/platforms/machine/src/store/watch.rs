//! Watches.

use hypervisor::DomId;
use xenstore::wire::{AbsPath, path};
use xenstore::{PAYLOAD_MAX, StoreError, WatchEvent};

use super::tree::Touched;

/// Fires when a domain becomes known to the store.
pub(super) const INTRODUCE_DOMAIN: &str = "@introduceDomain";
/// Fires when a domain is released.
pub(super) const RELEASE_DOMAIN: &str = "@releaseDomain";

/// One registration: a path and the watcher's token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Watch {
    /// Absolute, or the name of a special watch.
    path: String,
    token: String,
    /// Bytes of the path that the watcher left out: a relative watch reports relative paths.
    implied: usize,
}

impl Watch {
    /// Reads a watch as `caller` wrote it.
    pub fn new(caller: DomId, path: &str, token: &str) -> Result<Self, StoreError> {
        // Its event must fit into one message.
        if path.len() + token.len() + 2 > PAYLOAD_MAX || token.contains('\0') {
            return Err(StoreError::Invalid(path.to_owned()));
        }
        let absolute = if path::is_special(path) {
            path.to_owned()
        } else {
            AbsPath::resolve(caller, path)?.as_str().to_owned()
        };
        Ok(Self { implied: absolute.len() - path.len(), path: absolute, token: token.to_owned() })
    }

    /// Whether both watch the same path with the same token, in relative or absolute form.
    pub fn is_same(&self, other: &Self) -> bool {
        self.path == other.path && self.token == other.token
    }

    /// Whether this is the special watch of that name.
    pub fn is_special(&self, name: &str) -> bool {
        self.path == name
    }

    /// Whether a change fires it.
    pub fn sees(&self, touched: &Touched) -> bool {
        if touched.exact {
            touched.path == self.path
        } else {
            path::is_at_or_below(&touched.path, &self.path)
        }
    }

    /// The watched path as the watcher wrote it.
    pub fn path(&self) -> &str {
        &self.path[self.implied..]
    }

    /// The event for a change that it [sees](Self::sees).
    pub fn event(&self, touched: &Touched) -> WatchEvent {
        self.event_at(&touched.path[self.implied..])
    }

    /// The event for the watched path itself.
    pub fn first_event(&self) -> WatchEvent {
        self.event_at(self.path())
    }

    fn event_at(&self, path: &str) -> WatchEvent {
        WatchEvent { path: path.to_owned(), token: self.token.clone() }
    }
}

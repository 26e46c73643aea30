//! The store's nodes of the backends that this domain serves.

use std::fmt;
use std::str::FromStr;

use hypervisor::DomId;
use xenstore::{Store, StoreError};

use crate::config::vif_name;

/// An interface: its domain, and its number in the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct VifId {
    pub(super) domain: DomId,
    pub(super) handle: u32,
}

impl fmt::Display for VifId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.domain, self.handle)
    }
}

impl FromStr for VifId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (domain, handle) = text.split_once('/').ok_or(())?;
        let domain = DomId(domain.parse().map_err(drop)?);
        Ok(Self { domain, handle: handle.parse().map_err(drop)? })
    }
}

/// The store's folder of a driver domain's backends. Each is a node `DOMAIN/HANDLE` below it.
#[derive(Clone, Debug)]
pub(super) struct Backends(String);

/// What the toolstack wants of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// It must be served.
    Wanted,
    /// It must go. It still exists, and closes if it was served.
    Leaving,
    /// It does not exist.
    Gone,
}

impl Backends {
    /// The token of the watch on it.
    pub(super) const TOKEN: &str = "backends";

    /// The backends of type `kind` in domain `own`.
    pub(super) fn new(own: DomId, kind: &str) -> Self {
        Self(format!("/local/domain/{own}/backend/{kind}"))
    }

    /// Watches for backends that come and go.
    pub(super) fn watch(&self, store: &dyn Store) -> Result<(), StoreError> {
        store.watch(&self.0, Self::TOKEN)
    }

    /// The node of a backend.
    pub(super) fn path(&self, id: VifId) -> String {
        format!("{}/{id}", self.0)
    }

    /// Whether their nodes must be removed after they were closed, as libxl wants it of a domain other than domain 0.
    pub(super) fn must_be_removed(&self) -> bool {
        self.0.ends_with("/backend/vif") && !self.0.starts_with("/local/domain/0/")
    }

    /// The backend whose node is at or above a path.
    pub(super) fn parse(&self, path: &str) -> Option<VifId> {
        let below = path.strip_prefix(&self.0)?.strip_prefix('/')?;
        let end = below.match_indices('/').nth(1).map_or(below.len(), |(end, _)| end);
        below[..end].parse().ok()
    }

    /// What the toolstack wants of a backend.
    pub(super) fn presence(&self, store: &dyn Store, id: VifId) -> Result<Presence, StoreError> {
        let path = self.path(id);
        let Some(frontend) = found(store.read(None, &format!("{path}/frontend")))? else {
            return Ok(Presence::Gone);
        };
        let online = found(store.read(None, &format!("{path}/online")))?;
        // A node that was left behind after its frontend's removal counts as absent.
        let state = found(store.read(None, &format!("{frontend}/state")))?;
        Ok(match (online.as_deref(), state) {
            (Some("0"), _) | (_, None) => Presence::Leaving,
            (_, Some(_)) => Presence::Wanted,
        })
    }

    /// All backends that the toolstack has created.
    pub(super) fn list(&self, store: &dyn Store) -> Result<Vec<VifId>, StoreError> {
        let mut ids = Vec::new();
        for domain in children(store, &self.0)? {
            for handle in children(store, &format!("{}/{domain}", self.0))? {
                ids.extend(format!("{domain}/{handle}").parse::<VifId>());
            }
        }
        Ok(ids)
    }

    /// The IP addresses and networks that the toolstack knows for a backend: words of the key `ip`.
    pub(super) fn addresses(&self, store: &dyn Store, id: VifId) -> Result<String, StoreError> {
        Ok(found(store.read(None, &format!("{}/ip", self.path(id))))?.unwrap_or_default())
    }

    /// The name for operators: the toolstack's `vifname`, else the domain's name if this domain may
    /// read it, with the interface's number from the domain's second interface on.
    pub(super) fn name(&self, store: &dyn Store, id: VifId) -> String {
        let read = |path: String| store.read(None, &path).ok().filter(|name| !name.is_empty());
        if let Some(name) = read(format!("{}/vifname", self.path(id))) {
            return name;
        }
        let domain = read(format!("/local/domain/{}/name", id.domain));
        let domain = domain.unwrap_or_else(|| format!("dom{}", id.domain));
        vif_name(&domain, id.handle)
    }
}

fn children(store: &dyn Store, path: &str) -> Result<Vec<String>, StoreError> {
    Ok(found(store.directory(None, path))?.unwrap_or_default())
}

/// The value, or none if the node does not exist.
fn found<T>(result: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(StoreError::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine::Machine;
    use machine::toolstack::{create_domain, create_vif};

    const BACKENDS: &str = "/local/domain/0/backend/vif";

    fn id(domain: u16, handle: u32) -> VifId {
        VifId { domain: DomId(domain), handle }
    }

    #[test]
    fn a_path_names_its_interface() {
        let backends = Backends::new(DomId(0), "vif");
        for (below, expected) in [
            ("/5/0", Some(id(5, 0))),
            ("/5/12/state", Some(id(5, 12))),
            ("/5/12/queue-0/x", Some(id(5, 12))),
            ("", None),
            ("/5", None),
            ("/5/", None),
            ("/x/0", None),
            ("s/5/0", None),
            ("/70000/0", None),
        ] {
            assert_eq!(backends.parse(&format!("{BACKENDS}{below}")), expected, "{below}");
        }
        assert_eq!(backends.parse("/local/domain/1/backend/vif/5/0"), None);
        assert_eq!(backends.path(id(5, 0)), format!("{BACKENDS}/5/0"));
    }

    #[test]
    fn backends_that_the_toolstack_has_created_are_found() {
        let store = Machine::new().store().connect(DomId(0));
        let backends = Backends::new(DomId(0), "vif");
        assert_eq!(backends.list(&store), Ok(vec![]));
        create_domain(&store, DomId(7), "web").unwrap();
        create_vif(&store, DomId(7), 0, "02:00:00:00:00:01").unwrap();
        create_vif(&store, DomId(7), 1, "02:00:00:00:00:02").unwrap();
        store.write(None, &format!("{BACKENDS}/nonsense/x"), "").unwrap();
        assert_eq!(backends.list(&store), Ok(vec![id(7, 0), id(7, 1)]));
        let presence = |handle| backends.presence(&store, id(7, handle));
        assert_eq!(presence(0), Ok(Presence::Wanted));
        assert_eq!(presence(2), Ok(Presence::Gone));
        store.write(None, &format!("{BACKENDS}/7/0/online"), "0").unwrap();
        assert_eq!(presence(0), Ok(Presence::Leaving));
        assert_eq!(presence(1), Ok(Presence::Wanted));
        let name = |handle| backends.name(&store, id(7, handle));
        assert_eq!((name(0), name(1)), ("web".to_owned(), "web.1".to_owned()));
        store.write(None, &format!("{BACKENDS}/7/1/vifname"), "dmz").unwrap();
        assert_eq!(name(1), "dmz");
        store.write(None, &format!("{BACKENDS}/7/1/ip"), "10.0.0.5 fd00::5").unwrap();
        let addresses = |handle| backends.addresses(&store, id(7, handle)).unwrap();
        assert_eq!((addresses(0), addresses(1)), (String::new(), "10.0.0.5 fd00::5".to_owned()));
        assert_eq!(backends.name(&store, id(8, 0)), "dom8");
        store.remove(None, "/local/domain/7/device/vif/1").unwrap();
        assert_eq!(presence(1), Ok(Presence::Leaving), "its frontend has gone");
    }
}

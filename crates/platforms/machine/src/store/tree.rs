//! The tree of nodes.
//!
//! Nodes are shared between the tree and its snapshots and copied when one of them changes, so a
//! snapshot is free and a change copies the nodes on its path.

use std::collections::BTreeMap;
use std::sync::Arc;

use hypervisor::DomId;
use xenstore::wire::AbsPath;
use xenstore::{Access, PAYLOAD_MAX, Permissions, StoreError};

use super::quota::{self, is_privileged};

/// One key, with what lies below it.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub value: String,
    pub permissions: Permissions,
    children: BTreeMap<String, Arc<Node>>,
    /// When its value, permissions or set of children last changed.
    generation: u64,
    /// When anything at or below it last changed.
    subtree: u64,
}

impl Node {
    fn new(value: &str, permissions: Permissions, generation: u64) -> Self {
        Self {
            value: value.to_owned(),
            permissions,
            children: BTreeMap::new(),
            generation,
            subtree: generation,
        }
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub fn names(&self) -> Vec<String> {
        self.children.keys().cloned().collect()
    }
}

/// A change of the tree, as one request makes it.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Write { path: AbsPath, value: String },
    Mkdir { path: AbsPath },
    Remove { path: AbsPath },
    SetPermissions { path: AbsPath, permissions: Permissions },
}

impl Change {
    pub fn path(&self) -> &AbsPath {
        match self {
            Self::Write { path, .. }
            | Self::Mkdir { path }
            | Self::Remove { path }
            | Self::SetPermissions { path, .. } => path,
        }
    }
}

/// A node that changed, for the watches.
#[derive(Debug)]
pub(super) struct Touched {
    pub path: String,
    /// Only watches of exactly this path fire: the node was removed with a node above it, which has
    /// its own event.
    pub exact: bool,
    /// The node's permissions, before and after the change.
    permissions: Vec<Permissions>,
}

impl Touched {
    fn node(path: &AbsPath, permissions: Vec<Permissions>) -> Self {
        Self { path: path.as_str().to_owned(), exact: false, permissions }
    }

    /// Whether a domain may learn about it: it can read the node, or could before the change
    /// (XSA-115).
    pub fn is_known_to(&self, domid: DomId) -> bool {
        let readable = |permissions| access(domid, permissions).read;
        self.permissions.iter().any(readable)
    }
}

/// The part of the tree that a transaction read or wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    Node,
    Subtree,
}

/// What `domid` may do to a node.
fn access(domid: DomId, permissions: &Permissions) -> Access {
    if is_privileged(domid) || permissions.owner == domid {
        return Access::BOTH;
    }
    let mut listed = permissions.others.iter();
    listed.find(|(listed, _)| *listed == domid).map_or(permissions.default, |(_, access)| *access)
}

/// All nodes, and how many of them each domain owns.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    root: Arc<Node>,
    owned: BTreeMap<DomId, usize>,
    /// Counts changes.
    generation: u64,
}

impl Tree {
    /// A tree with only a root, which belongs to domain 0 and which no other domain may use.
    pub fn new() -> Self {
        let permissions =
            Permissions { owner: DomId(0), default: Access::NONE, others: Vec::new() };
        Self {
            root: Arc::new(Node::new("", permissions, 0)),
            owned: BTreeMap::from([(DomId(0), 1)]),
            generation: 0,
        }
    }

    /// A node that `caller` may read.
    pub fn readable(&self, caller: DomId, path: &AbsPath) -> Result<&Node, StoreError> {
        self.find(caller, path, |access| access.read)?
            .ok_or_else(|| StoreError::NotFound(path.as_str().to_owned()))
    }

    /// When the node or the subtree at a path last changed; none if there is no such node.
    pub fn version(&self, path: &AbsPath, scope: Scope) -> Option<u64> {
        let (node, missing) = self.nearest(path);
        (missing == 0).then_some(match scope {
            Scope::Node => node.generation,
            Scope::Subtree => node.subtree,
        })
    }

    /// Makes a change as `caller`, wholly or not at all. Returns what changed.
    pub fn apply(&mut self, caller: DomId, change: &Change) -> Result<Vec<Touched>, StoreError> {
        match change {
            Change::Write { path, value } => self.put(caller, path, Some(value)),
            Change::Mkdir { path } => self.put(caller, path, None),
            Change::Remove { path } => self.remove(caller, path),
            Change::SetPermissions { path, permissions } => {
                self.set_permissions(caller, path, permissions)
            }
        }
    }

    fn put(
        &mut self,
        caller: DomId,
        path: &AbsPath,
        value: Option<&str>,
    ) -> Result<Vec<Touched>, StoreError> {
        let longest = if is_privileged(caller) { PAYLOAD_MAX } else { quota::VALUE };
        quota::check("value", value.map_or(0, str::len), longest)?;
        let Some(node) = self.find(caller, path, |access| access.write)? else {
            return self.create(caller, path, value.unwrap_or_default());
        };
        let Some(value) = value else {
            return Ok(Vec::new());
        };
        let touched = Touched::node(path, vec![node.permissions.clone()]);
        self.alter(path, |node| value.clone_into(&mut node.value));
        Ok(vec![touched])
    }

    /// Makes a node and its missing parents. They inherit the permissions of the nearest node
    /// above, and a guest owns what it makes; what domain 0 makes goes to the owner above.
    fn create(
        &mut self,
        caller: DomId,
        path: &AbsPath,
        value: &str,
    ) -> Result<Vec<Touched>, StoreError> {
        let (above, missing) = self.nearest(path);
        let mut permissions = above.permissions.clone();
        quota::check("depth", path.names().count(), quota::DEPTH)?;
        if !is_privileged(caller) {
            permissions.owner = caller;
            quota::check("nodes", self.owned_by(caller) + missing, quota::NODES)?;
        }
        *self.owned.entry(permissions.owner).or_default() += missing;

        let generation = self.next_generation();
        let mut node = Arc::make_mut(&mut self.root);
        node.subtree = generation;
        for name in path.names() {
            if !node.children.contains_key(name) {
                // The parent changed too: it has one more child.
                node.generation = generation;
            }
            let new = || Arc::new(Node::new("", permissions.clone(), generation));
            let child = node.children.entry(name.to_owned()).or_insert_with(new);
            node = Arc::make_mut(child);
            node.subtree = generation;
        }
        value.clone_into(&mut node.value);
        Ok(vec![Touched::node(path, vec![permissions])])
    }

    fn remove(&mut self, caller: DomId, path: &AbsPath) -> Result<Vec<Touched>, StoreError> {
        let (Some(parent), Some(name)) = (path.parent(), path.names().next_back()) else {
            return Err(StoreError::Invalid(path.as_str().to_owned()));
        };
        if self.find(caller, path, |access| access.write)?.is_none() {
            return match self.nearest(&parent) {
                (_, 0) => Ok(Vec::new()),
                _ => Err(StoreError::NotFound(path.as_str().to_owned())),
            };
        }
        Ok(self.cut(&parent, name))
    }

    /// Removes an existing child with all below it.
    fn cut(&mut self, parent: &AbsPath, name: &str) -> Vec<Touched> {
        let child = self.alter(parent, |node| node.children.remove(name));
        let child = child.expect("found under the same lock");
        let mut touched = Vec::new();
        walk(&child, &below(parent.as_str(), name), &mut |path, node| {
            self.disowned(node.permissions.owner);
            touched.push(Touched {
                path: path.to_owned(),
                exact: !touched.is_empty(),
                permissions: vec![node.permissions.clone()],
            });
        });
        touched
    }

    fn set_permissions(
        &mut self,
        caller: DomId,
        path: &AbsPath,
        permissions: &Permissions,
    ) -> Result<Vec<Touched>, StoreError> {
        let node = self.find(caller, path, |access| access.write)?;
        let node = node.ok_or_else(|| StoreError::NotFound(path.as_str().to_owned()))?;
        let before = node.permissions.clone();
        if !is_privileged(caller) {
            // A guest may not change a node's owner either: the node would leave its quota
            // (XSA-419).
            if before.owner != caller || permissions.owner != caller {
                return Err(StoreError::Denied(path.as_str().to_owned()));
            }
            quota::check("permissions", permissions.others.len() + 1, quota::PERMISSIONS)?;
        }
        Ok(vec![self.permit(path, before, permissions.clone())])
    }

    fn permit(&mut self, path: &AbsPath, before: Permissions, after: Permissions) -> Touched {
        self.disowned(before.owner);
        *self.owned.entry(after.owner).or_default() += 1;
        self.alter(path, |node| node.permissions = after.clone());
        Touched::node(path, vec![before, after])
    }

    /// Removes a domain from the tree: what it owns below its home, and all its rights
    /// elsewhere, which the next domain of this number would inherit (XSA-322).
    pub fn forget(&mut self, domid: DomId) -> Vec<Touched> {
        let mut touched = Vec::new();
        let home = AbsPath::home(domid);
        for path in self.paths(&home, |node| node.permissions.owner == domid) {
            // It may be gone, if it was below one that was just removed.
            if let ((_, 0), Some(parent)) = (self.nearest(&path), path.parent()) {
                let name = path.names().next_back().unwrap_or_default();
                touched.extend(self.cut(&parent, name));
            }
        }
        let mentions = |node: &Node| {
            let permissions = &node.permissions;
            permissions.owner == domid || permissions.others.iter().any(|(id, _)| *id == domid)
        };
        for path in self.paths(&AbsPath::root(), mentions) {
            let before = self.nearest(&path).0.permissions.clone();
            let mut after = before.clone();
            after.others.retain(|(id, _)| *id != domid);
            if after.owner == domid {
                after.owner = DomId(0);
            }
            touched.push(self.permit(&path, before, after));
        }
        touched
    }

    /// How many nodes a domain owns.
    fn owned_by(&self, domid: DomId) -> usize {
        self.owned.get(&domid).copied().unwrap_or(0)
    }

    fn disowned(&mut self, owner: DomId) {
        if let Some(count) = self.owned.get_mut(&owner) {
            *count -= 1;
            if *count == 0 {
                self.owned.remove(&owner);
            }
        }
    }

    /// The node at `path`, if there is one. The caller must be allowed to use it, or the nearest
    /// node above: a domain without access must not learn whether a node exists.
    fn find(
        &self,
        caller: DomId,
        path: &AbsPath,
        allows: fn(Access) -> bool,
    ) -> Result<Option<&Node>, StoreError> {
        let (node, missing) = self.nearest(path);
        if !allows(access(caller, &node.permissions)) {
            return Err(StoreError::Denied(path.as_str().to_owned()));
        }
        Ok((missing == 0).then_some(node))
    }

    /// The nearest existing node at or above `path`, and how many are missing below it.
    fn nearest(&self, path: &AbsPath) -> (&Node, usize) {
        let mut node = &*self.root;
        let mut names = path.names();
        while let Some(name) = names.next() {
            match node.children.get(name) {
                Some(child) => node = child,
                None => return (node, 1 + names.count()),
            }
        }
        (node, 0)
    }

    /// Changes an existing node.
    fn alter<R>(&mut self, path: &AbsPath, change: impl FnOnce(&mut Node) -> R) -> R {
        let generation = self.next_generation();
        let mut node = Arc::make_mut(&mut self.root);
        node.subtree = generation;
        for name in path.names() {
            let child = node.children.get_mut(name);
            node = Arc::make_mut(child.expect("found under the same lock"));
            node.subtree = generation;
        }
        node.generation = generation;
        change(node)
    }

    fn next_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }

    /// The paths of the nodes at or below `from` that satisfy `picks`, parents first.
    fn paths(&self, from: &AbsPath, picks: impl Fn(&Node) -> bool) -> Vec<AbsPath> {
        let (node, missing) = self.nearest(from);
        let mut paths = Vec::new();
        if missing == 0 {
            walk(node, from.as_str(), &mut |path, node| {
                if picks(node) {
                    // Resolving cannot fail: the path consists of valid names.
                    paths.extend(AbsPath::resolve(DomId(0), path));
                }
            });
        }
        paths
    }
}

/// Visits a node and all below it, parents first. As deep as [`quota::DEPTH`].
fn walk(node: &Node, path: &str, visit: &mut impl FnMut(&str, &Node)) {
    visit(path, node);
    for (name, child) in &node.children {
        walk(child, &below(path, name), visit);
    }
}

fn below(path: &str, name: &str) -> String {
    format!("{}/{name}", path.trim_end_matches('/'))
}

//! Why the daemon could not start, or ended early.

use std::io;
use std::path::{Path, PathBuf};

use control_socket::TableKind;

/// Why the daemon could not start, or ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A folder or socket could not be created.
    #[error("{path}: {source}")]
    Path {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another daemon serves the folder.
    #[error(
        "another daemon listens at {socket}: stop it (systemctl stop pvnet), or give this one another `directory` in [daemon]"
    )]
    Running {
        /// Its control socket.
        socket: PathBuf,
    },
    /// The system refused.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// The error.
        source: io::Error,
    },
    /// The configuration names CPUs that this process may not use.
    #[error("daemon.cpus: {0}")]
    Cpus(#[from] cpus::NotAvailable),
    /// A port could not be opened.
    #[error("{table} {name}: {reason}")]
    Port {
        /// The kind of its table.
        table: TableKind,
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
    /// The address for metrics could not be bound.
    #[error("metrics at {address}: {source}")]
    Metrics {
        /// Which.
        address: std::net::SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Not a Xen host, or one that lacks something.
    #[error(transparent)]
    Xen(#[from] ::xen::OpenError),
    /// Another daemon serves the same backends.
    #[error("another pvnet serves the backends of type {kind:?} already (it holds {lock})")]
    Served {
        /// The backends' type.
        kind: String,
        /// The file that it holds.
        lock: PathBuf,
    },
    /// The store failed.
    #[error("store: {0}")]
    Store(#[from] xenstore::StoreError),
}

impl Error {
    pub(super) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System { what, source: source.into() }
    }

    pub(super) fn path(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Path { path, source }
    }
}

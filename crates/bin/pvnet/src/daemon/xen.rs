//! The daemon on platform `xen`: dom0 or a driver domain of a Xen host. The toolstack (`xl`)
//! makes the backends; they are found in the store.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};

use hypervisor::DomId;
use rustix::fs::{FlockOperation, flock};
use tracing::{info, warn};
use xen::{OpenError, Xen};
use xenstore::{Reconnecting, Store, StoreError};

use crate::config::Config;
use crate::daemon::backends::Backends;
use crate::daemon::control::Event;
use crate::daemon::{Error, House, Inbox};

/// Runs until told to stop.
pub(super) fn run(
    config: Config,
    events: &mpsc::Sender<Event>,
    inbox: &Inbox,
) -> Result<(), Error> {
    let hypervisor = Xen::open()?;
    let kind = config.xen.backend.clone();
    let _alone = serve_alone(&kind)?;
    let store: Arc<dyn Store> = Arc::new(connect()?);
    let own = own_domain(&*store).map_err(|error| match error {
        Error::Store(StoreError::Gone(_)) => Error::Xen(OpenError::NoStore),
        error => error,
    })?;
    let house = House::build(&config, hypervisor, events, |_| {})?;
    let backends = Backends::new(own, &kind);
    backends.watch(&*store)?;
    info!(domain = own.0, backend = kind, workers = house.workers(), "ready");
    house.run(config, store, backends, inbox)
}

/// Connects to xenstore. Guests stay connected, and their frames are carried, while it is away.
fn connect() -> Result<Reconnecting, Error> {
    // Once by itself, for an error that says what is missing.
    drop(xen::store::connect()?);
    let connect = || xen::store::connect().map_err(io::Error::other);
    let notice = |gone: Option<&StoreError>| match gone {
        Some(reason) => warn!(%reason, "xenstore has gone; what is connected stays so"),
        None => info!("xenstore is back"),
    };
    Reconnecting::new(Box::new(connect), Box::new(notice)).map_err(Error::system("xenstore"))
}

/// The number of the domain that this is; every domain may read its own.
fn own_domain(store: &dyn Store) -> Result<DomId, Error> {
    let text = store.read(None, "domid")?;
    let malformed = || StoreError::Invalid("domid".to_owned());
    Ok(DomId(text.trim().parse().map_err(|_| malformed())?))
}

/// Makes sure that no other daemon is at the same rings: two would answer everything twice. The
/// lock goes with the process, however it ends.
fn serve_alone(kind: &str) -> Result<File, Error> {
    let lock = PathBuf::from(format!("/run/pvnet-{kind}.lock"));
    let file = File::create(&lock).map_err(Error::path(&lock))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::Served { kind: kind.to_owned(), lock }),
        Err(error) => Err(Error::path(&lock)(error.into())),
    }
}

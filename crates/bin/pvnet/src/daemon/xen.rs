//! The daemon on platform `xen`: dom0 or a driver domain of a Xen host. The toolstack (`xl`)
//! creates the backends in the store.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};

use control_socket::OwnPagesStatus;
use hypervisor::{DomId, Hypervisor as _, Meter, Metered};
use netback::{Files, Offered, RxChannel, VifError};
use rustix::fs::{FlockOperation, flock};
use tracing::{info, warn};
use xen::{OpenError, Xen};
use xenstore::{Reconnecting, Store, StoreError};

use crate::config::{Config, OnStop};
use crate::daemon::backends::{Backends, VifId};
use crate::daemon::error::Error;
use crate::daemon::event::Event;
use crate::daemon::limits::Limits;
use crate::daemon::platform::{Backend, BufferMemory, Platform, VifBackend};

/// A Xen host, of which this is dom0 or a driver domain.
pub(super) struct XenPlatform {
    xen: Metered<Xen>,
    store: Arc<dyn Store>,
    backends: Backends,
    /// The directory of the sockets and of all rings' ledgers.
    directory: PathBuf,
    on_stop: OnStop,
    /// The lock on this type of backends.
    _lock: File,
}

impl XenPlatform {
    /// Opens Xen's devices and the store.
    pub(super) fn open(config: &Config) -> Result<Self, Error> {
        let mut vifs = config.guests.iter().flat_map(|guest| &guest.vifs);
        let has_pools = vifs.any(|vif| vif.rx == RxChannel::GuestCopy);
        let mut xen = match has_pools {
            true => Xen::with_guest_copies(config.xen.guest_copy_pages)?,
            false => Xen::open()?,
        };
        let kind = &config.xen.backend;
        let lock = serve_alone(kind)?;
        let store: Arc<dyn Store> = Arc::new(connect()?);
        let own = own_domain(&*store).map_err(|error| match error {
            Error::Store(StoreError::Gone(_)) => Error::Xen(OpenError::NoStore),
            error => error,
        })?;
        if has_pools {
            // Both are granted by gntalloc: the queues' pages would leave too few for the pools of guests that come later.
            info!(
                "gntalloc's pages are for the pools of guests that copy: copies to others pin pages"
            );
        } else if let Err(reason) = xen.grant_own_pages(own) {
            info!(%reason, "copies to guests pin pages, which costs more");
        }
        let xen = Metered::new(xen);
        let backends = Backends::new(own, kind);
        let (directory, on_stop) = (config.daemon.directory.clone(), config.xen.on_stop);
        info!(domain = own.0, backend = kind, "serving the backends of this domain");
        Ok(Self { xen, store, backends, directory, on_stop, _lock: lock })
    }
}

impl Platform for XenPlatform {
    fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    fn backends(&self) -> &Backends {
        &self.backends
    }

    /// By Xen. A toolstack that pages a guest out (xenpaging, which is not supported) has copies wait.
    fn grants_are_pinned(&self) -> bool {
        true
    }

    fn meter(&self) -> &Arc<Meter> {
        self.xen.meter()
    }

    fn buffer_memory(&self) -> Arc<BufferMemory> {
        let xen = self.xen.clone();
        Arc::new(move |len| xen.buffer_memory(len))
    }

    fn own_pages(&self) -> Option<OwnPagesStatus> {
        let counts = self.xen.own_pages().unwrap_or_default();
        Some(OwnPagesStatus { granted: counts.granted, refused: counts.refused })
    }

    /// The ledgers are in files, because the rings outlive the daemon.
    fn adopt(&self, id: VifId, offered: Offered) -> Result<Box<dyn Backend>, VifError> {
        let folder = self.directory.join("rings").join(format!("{}-{}", id.domain, id.handle));
        let ledgers = Arc::new(Files::new(folder));
        let (xen, store) = (self.xen.clone(), self.store.clone());
        VifBackend::adopt(xen, store, &self.backends.path(id), offered, ledgers)
    }

    /// The store announces the backends.
    fn watch_for_guests(
        &self,
        _: Arc<Limits>,
        _: mpsc::Sender<Event>,
    ) -> Result<Box<dyn FnOnce()>, Error> {
        self.backends.watch(&*self.store)?;
        Ok(Box::new(|| ()))
    }

    fn keeps_guests(&self) -> bool {
        self.on_stop == OnStop::Keep
    }

    fn ends_with_its_node(&self) -> bool {
        true
    }

    fn set_memory(&self, name: &str, _: DomId, mib: usize) -> Result<(), String> {
        Err(format!("on Xen the toolstack sets memory: `xl mem-set {name} {mib}m`"))
    }
}

/// Connects to xenstore. While it is away, guests stay connected and their frames are carried.
fn connect() -> Result<Reconnecting, Error> {
    // The first attempt has no retries, so that its error says what is missing.
    drop(xen::store::connect()?);
    let connect = || xen::store::connect().map_err(io::Error::other);
    let notice = |gone: Option<&StoreError>| match gone {
        Some(reason) => warn!(%reason, "xenstore is gone; connected guests stay connected"),
        None => info!("xenstore is back"),
    };
    Reconnecting::new(Box::new(connect), Box::new(notice)).map_err(Error::system("xenstore"))
}

/// The number of this domain. Every domain may read its number.
fn own_domain(store: &dyn Store) -> Result<DomId, Error> {
    let text = store.read(None, "domid")?;
    let malformed = || StoreError::Invalid("domid".to_owned());
    Ok(DomId(text.trim().parse().map_err(|_| malformed())?))
}

/// The file that a daemon holds while it serves this type of backends.
pub(super) fn lock_path(kind: &str) -> PathBuf {
    PathBuf::from(format!("/run/pvnet-{kind}.lock"))
}

/// Ensures that no other daemon serves the same rings, since each request would be answered twice.
/// The lock ends with the process.
fn serve_alone(kind: &str) -> Result<File, Error> {
    let lock = lock_path(kind);
    let file = File::create(&lock).map_err(Error::path(&lock))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::Served { kind: kind.to_owned(), lock }),
        Err(error) => Err(Error::path(&lock)(error.into())),
    }
}

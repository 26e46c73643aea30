//! The device in the store: its keys, and the backend's state.

use std::error::Error;
use std::time::{Duration, Instant};

use hypervisor::DomId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wire::ethernet::MacAddr;
use wire::netif::keys;
use xen::XenGuest;
use xenstore::{Client, Store as _, StoreError, XenbusState};

/// An interface that the toolstack has made and no other driver uses.
pub struct Vif {
    /// The connection to the store.
    pub store: Client,
    /// This domain.
    pub guest: XenGuest,
    /// The backend's domain.
    pub domain: DomId,
    /// The address that the toolstack gave the interface.
    pub mac: MacAddr,
    path: String,
    backend: String,
}

impl Vif {
    /// Opens the interface of this number.
    ///
    /// # Errors
    /// Xen, its drivers or the interface are missing.
    pub fn open(number: u32) -> Outcome<Self> {
        let store = Client::new(xen::store::connect()?)?;
        let domid = DomId(store.read(None, "domid")?.trim().parse()?);
        let path = format!("device/vif/{number}");
        let read = |key: &str| store.read(None, &format!("{path}/{key}"));
        let (backend, domain) = (read("backend")?, DomId(read("backend-id")?.parse()?));
        let mac = read(keys::MAC)?.parse().map_err(|_| "the device's mac is malformed")?;
        store.watch(&format!("{backend}/state"), "backend")?;
        let guest = XenGuest::open(domid)?;
        Ok(Self { store, guest, domain, mac, path, backend })
    }

    /// Writes one of the frontend's keys.
    pub fn key(&self, key: &str, value: &str) -> Outcome {
        Ok(self.store.write(None, &format!("{}/{key}", self.path), value)?)
    }

    /// Removes one of the frontend's keys, which an earlier attack may have left.
    pub fn remove(&self, key: &str) -> Outcome {
        match self.store.remove(None, &format!("{}/{key}", self.path)) {
            Ok(()) | Err(StoreError::NotFound(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The value of one of the backend's keys, 0 if it is missing.
    pub fn offered(&self, key: &str) -> Outcome<u32> {
        match self.store.read(None, &format!("{}/{key}", self.backend)) {
            Ok(text) => Ok(text.trim().parse()?),
            Err(StoreError::NotFound(_)) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the frontend's state.
    pub fn enter(&self, state: XenbusState) -> Outcome {
        self.key("state", &state.to_string())
    }

    /// The backend's state.
    pub fn backend_state(&self) -> Outcome<Option<XenbusState>> {
        let text = self.store.read(None, &format!("{}/state", self.backend))?;
        Ok(XenbusState::parse(&text))
    }

    /// Waits for one of these states of the backend.
    fn wait(&self, wanted: &[XenbusState]) -> Outcome {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            while self.store.event()?.is_some() {}
            let now = self.backend_state()?;
            if now.is_some_and(|now| wanted.contains(&now)) {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("the backend is in state {now:?} and not in {wanted:?}").into());
            }
            let mut fds = [PollFd::from_borrowed_fd(self.store.event_fd(), PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::try_from(left)?))?;
        }
    }

    /// Starts over from any state.
    ///
    /// # Errors
    /// The backend does not follow in time, or the store fails. The other waits have the same errors.
    pub fn start_over(&self) -> Outcome {
        self.enter(XenbusState::Initialising)?;
        self.wait(&[XenbusState::InitWait])
    }

    /// Waits until the backend is connected to this frontend.
    pub fn wait_connected(&self) -> Outcome {
        self.wait(&[XenbusState::Connected])
    }

    /// Waits until the backend has closed the connection.
    pub fn wait_closed(&self) -> Outcome {
        self.wait(&[XenbusState::Closed])
    }

    /// Closes the connection in an orderly way. netback stays in Closing until this end is closed.
    pub fn close(&self) -> Outcome {
        self.enter(XenbusState::Closing)?;
        self.wait(&[XenbusState::Closing, XenbusState::Closed])?;
        self.enter(XenbusState::Closed)?;
        self.wait_closed()
    }
}

/// The result of a step.
pub type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// How long the backend may take for a step.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Waits until a condition holds, or fails with `what`.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> Outcome<bool>) -> Outcome {
    match holds_within(TIMEOUT, &mut condition)? {
        true => Ok(()),
        false => Err(format!("{what}: not within {} s", TIMEOUT.as_secs()).into()),
    }
}

/// Waits until a condition holds, for `limit` at most. Returns whether it does.
pub fn holds_within(
    limit: Duration,
    mut condition: impl FnMut() -> Outcome<bool>,
) -> Outcome<bool> {
    let deadline = Instant::now() + limit;
    loop {
        if condition()? {
            return Ok(true);
        }
        if Instant::now() > deadline {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

//! A store in which a backend follows the frontend's states at once, and says what a test has it say.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

use rustix::event::{EventfdFlags, eventfd};
use xenstore::{Permissions, Store, StoreError, TransactionId, WatchEvent};

/// What a key of the backend has at this read; none if it is missing.
type Offered = Box<dyn FnMut(&str) -> Option<String> + Send>;

/// The store.
pub struct Keys {
    offered: Mutex<Offered>,
    written: Mutex<HashMap<String, String>>,
    never: OwnedFd,
}

impl Keys {
    /// A store with these keys of the backend, whose names are given without the path.
    pub fn new(offered: impl FnMut(&str) -> Option<String> + Send + 'static) -> Self {
        let never = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        Self { offered: Mutex::new(Box::new(offered)), written: Mutex::default(), never }
    }

    /// A number that the frontend has written.
    pub fn number(&self, key: &str) -> Option<u32> {
        self.written.lock().unwrap().get(key)?.parse().ok()
    }
}

impl Store for Keys {
    fn read(&self, _: Option<TransactionId>, path: &str) -> Result<String, StoreError> {
        let missing = || StoreError::NotFound(path.into());
        Ok(match path {
            "device/backend" => "backend".into(),
            "device/backend-id" => "0".into(),
            "device/mac" => "02:00:00:00:00:01".into(),
            "backend/state" if self.number("device/state") == Some(4) => "4".into(),
            "backend/state" => "2".into(),
            _ => match path.strip_prefix("backend/") {
                Some(key) => self.offered.lock().unwrap()(key).ok_or_else(missing)?,
                None => self.written.lock().unwrap().get(path).cloned().ok_or_else(missing)?,
            },
        })
    }

    fn write(&self, _: Option<TransactionId>, path: &str, value: &str) -> Result<(), StoreError> {
        self.written.lock().unwrap().insert(path.into(), value.into());
        Ok(())
    }

    fn remove(&self, _: Option<TransactionId>, path: &str) -> Result<(), StoreError> {
        self.written.lock().unwrap().remove(path);
        Ok(())
    }

    fn mkdir(&self, _: Option<TransactionId>, _: &str) -> Result<(), StoreError> {
        Ok(())
    }

    fn directory(&self, _: Option<TransactionId>, path: &str) -> Result<Vec<String>, StoreError> {
        Err(StoreError::NotFound(path.into()))
    }

    fn permissions(&self, _: Option<TransactionId>, path: &str) -> Result<Permissions, StoreError> {
        Err(StoreError::NotFound(path.into()))
    }

    fn set_permissions(
        &self,
        _: Option<TransactionId>,
        path: &str,
        _: &Permissions,
    ) -> Result<(), StoreError> {
        Err(StoreError::Denied(path.into()))
    }

    fn begin(&self) -> Result<TransactionId, StoreError> {
        Err(StoreError::Conflict)
    }

    fn end(&self, _: TransactionId, _: bool) -> Result<(), StoreError> {
        Err(StoreError::Conflict)
    }

    fn watch(&self, _: &str, _: &str) -> Result<(), StoreError> {
        Ok(())
    }

    fn unwatch(&self, _: &str, _: &str) -> Result<(), StoreError> {
        Ok(())
    }

    fn event(&self) -> Result<Option<WatchEvent>, StoreError> {
        Ok(None)
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.never.as_fd()
    }
}

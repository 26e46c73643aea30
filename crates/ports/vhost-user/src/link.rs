//! Whether a device has a link, which its configuration space shows.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::channel::send_some;

/// `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG` of version 1, without payload.
const CONFIG_CHANGE: [u32; 3] = [2, 1, 0];

/// The link of a device, whichever front-end serves it.
#[derive(Debug)]
pub struct Link {
    is_up: AtomicBool,
    /// Where the present front-end wants changes reported.
    requests: Mutex<Option<OwnedFd>>,
}

impl Default for Link {
    fn default() -> Self {
        Self { is_up: AtomicBool::new(true), requests: Mutex::default() }
    }
}

impl Link {
    /// Sets it up or down. A change is reported to a front-end that has `BACKEND_REQ`.
    pub fn set(&self, is_up: bool) {
        if self.is_up.swap(is_up, Ordering::Relaxed) != is_up
            && let Some(requests) = &*self.requests.lock().unwrap_or_else(PoisonError::into_inner)
        {
            // One that does not read them, or sent no socket, misses it.
            let _ = send_some(requests, &CONFIG_CHANGE.map(u32::to_le_bytes).concat(), &[]);
        }
    }

    /// Whether it is up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    /// Sets where changes are reported.
    pub(crate) fn report_to(&self, requests: Option<OwnedFd>) {
        *self.requests.lock().unwrap_or_else(PoisonError::into_inner) = requests;
    }
}

//! Changes of the ports while the daemon runs: asked for by a client of the control socket, or by SIGHUP.

use std::sync::mpsc;

use control_socket::{CHANGE_TIMEOUT, Change, ChangeReport, ChangeRequest};
use tracing::{info, warn};

use crate::config::ConfigFile;
use crate::daemon::event::{self, Event, NewConfig, Source};
use crate::log::OPERATOR;

/// Has the control thread make a change. The file is read here: the control thread must not wait for a disk.
pub(super) fn request(
    request: ChangeRequest,
    file: &ConfigFile,
    events: &mpsc::Sender<Event>,
) -> Result<ChangeReport, String> {
    let ChangeRequest { change, dry_run, reconnect } = request;
    let source = match change {
        Change::Reload { candidate: true } if !dry_run => {
            return Err(
                "a configuration that the daemon has not read yet can only be tried".to_owned()
            );
        }
        Change::Reload { candidate } => {
            let loaded = match candidate {
                true => file.candidate().and_then(|file| file.read()),
                false => file.read_again(),
            };
            Source::File(Box::new(loaded.map_err(|error| error.to_string())?))
        }
        change => Source::Command(change),
    };
    let change = Box::new(NewConfig { source, dry_run, reconnect });
    event::request(events, CHANGE_TIMEOUT, |answer| Event::Change { change, answer })
}

/// Reads the file again, and logs what that did.
pub(super) fn reload(file: &ConfigFile, events: &mpsc::Sender<Event>) {
    match request(ChangeRequest::new(Change::Reload { candidate: false }), file, events) {
        Ok(report) if report.steps.is_empty() => {
            info!(target: OPERATOR, "reloaded: nothing has changed");
        }
        // The control thread has logged each step.
        Ok(report) => info!(target: OPERATOR, steps = report.steps.len(), "reloaded"),
        Err(error) => warn!(target: OPERATOR, error, "not reloaded: nothing was changed"),
    }
}

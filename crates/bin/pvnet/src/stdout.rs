//! What happens when nobody reads what a command prints.

use std::{panic, process};

/// What `print!` says when it panics.
const FAILED: &str = "failed printing to stdout: ";

/// From here on, a command whose output cannot be written ends: quietly if its reader has gone, as in `pvnet status | head`, and with the
/// reason otherwise. `print!` would panic, and report a fault of this program.
pub fn end_when_it_is_closed() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        let Some(reason) = panic.payload_as_str().and_then(|text| text.strip_prefix(FAILED)) else {
            return report(panic);
        };
        if !reason.contains("Broken pipe") {
            eprintln!("pvnet: standard output: {reason}");
        }
        process::exit(1);
    }));
}

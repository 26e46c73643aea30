//! `pvnet revoke`: a guest's contexts of a card, taken away.

use std::path::Path;

use control_socket::Request;
use document::Document;
use schemars::JsonSchema;
use serde::Serialize;

use crate::program::show;

/// What was taken away.
#[derive(Serialize, JsonSchema)]
pub struct RevokeDocument {
    /// The card's name.
    card: String,
    /// The guest's name.
    guest: String,
}

impl Document for RevokeDocument {
    const SCHEMA: &str = "pvnet-revoke/1";
}

/// Has the daemon at `socket` take the contexts of `card` from `guest`, and returns when it has.
pub fn run(socket: &Path, card: String, guest: String, json: bool) -> Result<(), String> {
    let done = RevokeDocument { card, guest };
    let RevokeDocument { card, guest } = &done;
    let request = Request::Revoke { card: card.clone(), guest: guest.clone() };
    control_socket::command(socket, &request)?;
    show(json, &done, || {
        format!("{guest} has no context of {card} any more, until it starts again\n")
    })
}

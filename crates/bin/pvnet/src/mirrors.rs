//! `pvnet mirror`: copies of the frames of some ports, to another port or to files.

use clap::Subcommand;
use control_socket::{Change, MirrorStatus, RecordingStatus, TableKind, control_socket};
use document::Document;
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::DaemonArgs;
use crate::change::{NamedArgs, key_value, make, table};
use crate::program::show;

/// What `pvnet mirror list --json` prints.
#[derive(Serialize, JsonSchema)]
pub struct MirrorDocument {
    /// Every mirror.
    mirrors: Vec<MirrorStatus>,
}

impl Document for MirrorDocument {
    const SCHEMA: &str = "pvnet-mirror/1";
}

/// `pvnet mirror`
#[derive(Subcommand)]
pub enum MirrorCommand {
    /// Copy the frames of some ports to another port, or to files.
    ///
    ///   pvnet mirror add span from=red,blue to=probe
    ///   pvnet mirror add web from=red file=web direction=ingress 'filter=tcp port 80' files=5
    #[command(verbatim_doc_comment)]
    Add {
        #[command(flatten)]
        mirror: NamedArgs,
        /// Keys as in the configuration: from, to or file, direction, snaplen, file_mib, files, filter. The ports of `from` are
        /// separated by commas.
        #[arg(value_name = "KEY=VALUE", value_parser = key_value, required = true)]
        keys: Vec<(String, String)>,
    },
    /// End a mirror. Its target is in the switch again; its files stay.
    Del(NamedArgs),
    /// List the mirrors, and what became of the frames.
    List {
        #[command(flatten)]
        daemon: DaemonArgs,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
}

/// Runs `pvnet mirror`. Returns whether all that was asked for is in force.
pub fn run(command: MirrorCommand) -> Result<bool, String> {
    match command {
        MirrorCommand::Add { mirror: NamedArgs { name, change }, keys } => {
            let name = std::iter::once(("name".to_owned(), name));
            let keys: Vec<_> = name.chain(keys).collect();
            make(Change::Add { toml: table(TableKind::Mirror, &keys)? }, &change)
        }
        MirrorCommand::Del(NamedArgs { name, change }) => {
            make(Change::DeleteMirror { name }, &change)
        }
        MirrorCommand::List { daemon, json } => list(&daemon, json).map(|()| true),
    }
}

fn list(daemon: &DaemonArgs, json: bool) -> Result<(), String> {
    let mirrors = control_socket::status(&control_socket(&daemon.directory))?.mirrors;
    let document = MirrorDocument { mirrors };
    let named = |mirror: &MirrorStatus| format!("{}: {}\n", mirror.name, line(mirror));
    show(json, &document, || match &document.mirrors[..] {
        [] => "no mirrors\n".to_owned(),
        mirrors => mirrors.iter().map(named).collect(),
    })
}

/// A mirror, for people.
pub fn line(mirror: &MirrorStatus) -> String {
    let MirrorStatus { from, to, file, copied, lost, .. } = mirror;
    let from = from.join(", ");
    let Some(RecordingStatus { path, bytes, error }) = file else {
        let to = to.as_deref().unwrap_or_default();
        return format!("from {from} to {to}, {copied} frames copied, {lost} lost");
    };
    let path = path.as_deref().unwrap_or("no file yet");
    let error = error.as_ref().map_or_else(String::new, |error| format!("; not writing: {error}"));
    format!("from {from} to {path} ({bytes} bytes), {copied} frames written, {lost} lost{error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_that_cannot_write_says_why() {
        let file = RecordingStatus { path: None, bytes: 0, error: Some("no space".into()) };
        let mirror = MirrorStatus {
            from: vec!["red".into()],
            file: Some(file),
            lost: 3,
            ..MirrorStatus::default()
        };
        let text = line(&mirror);
        assert_eq!(
            text,
            "from red to no file yet (0 bytes), 0 frames written, 3 lost; not writing: no space"
        );
    }
}

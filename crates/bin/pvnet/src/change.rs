//! `pvnet reload`, `pvnet port` and `pvnet mirror`: changes of a running daemon's ports.

use std::io::Read;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use control_socket::{Change, ChangeReport, ChangeRequest, REQUEST_MAX, TableKind, control_socket};

use crate::args::DaemonArgs;
use crate::config::value_of;
use crate::program::show;
use crate::save::SaveArgs;

/// How a change is made and shown.
#[derive(Args)]
pub struct ChangeArgs {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Only say what would be done.
    #[arg(long)]
    dry_run: bool,
    /// Also apply settings that need a new connection or a device that is opened again: cut the connection, or open the device. A
    /// guest comes back if it survives a restart of the daemon too (`pvnet guest --rejoin`, QEMU's `reconnect`).
    #[arg(long)]
    reconnect: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// How a command makes a change, which the next reload would take back.
#[derive(Args)]
pub struct CommandArgs {
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    save: SaveArgs,
}

/// A port or a mirror, and how it is changed.
#[derive(Args)]
pub struct NamedArgs {
    /// Its name, as in `pvnet status`.
    pub name: String,
    #[command(flatten)]
    pub change: CommandArgs,
}

/// `pvnet port`
#[derive(Subcommand)]
pub enum PortCommand {
    /// Add a guest, an uplink or a virtual machine's port.
    ///
    ///   pvnet port add guest name=green mac=02:00:00:00:00:03 'addresses=["10.77.0.3/24"]'
    ///   pvnet port add uplink name=up1 tap=pvnet1
    ///   pvnet port add --file green.toml        its tables, as in the configuration; - is standard input
    #[command(verbatim_doc_comment)]
    Add {
        /// The kind of the port.
        #[arg(required_unless_present = "file", value_parser = kind_of_port())]
        kind: Option<TableKind>,
        /// Its keys, as in the configuration. A value that is not TOML is a string; lists may be written with commas.
        #[arg(value_name = "KEY=VALUE", value_parser = key_value)]
        keys: Vec<(String, String)>,
        /// A file with tables of guests, uplinks and ports.
        #[arg(long, value_name = "FILE", conflicts_with_all = ["kind", "keys"])]
        file: Option<PathBuf>,
        #[command(flatten)]
        change: CommandArgs,
    },
    /// Remove a port; of a guest, with all its interfaces.
    Del(NamedArgs),
    /// Set keys of a port.
    ///
    ///   pvnet port set red limit.egress.mbps=100 guard=mac
    ///   pvnet port set red trunk=10,20
    ///   pvnet port set red --unset limit
    #[command(verbatim_doc_comment)]
    Set {
        #[command(flatten)]
        port: NamedArgs,
        /// Keys as in the configuration. A value that is not TOML is a string; lists may be written with commas.
        #[arg(value_name = "KEY=VALUE", value_parser = key_value)]
        keys: Vec<(String, String)>,
        /// Remove a key, so that its default applies; can be repeated.
        #[arg(long, value_name = "KEY")]
        unset: Vec<String>,
    },
    /// Have a port carry frames again: `set NAME enabled=true`.
    Up(NamedArgs),
    /// Have a port drop all frames, from it and to it: `set NAME enabled=false`.
    Down(NamedArgs),
}

/// Takes the kinds of tables that are ports, or have some.
fn kind_of_port() -> impl TypedValueParser<Value = TableKind> {
    let known = TableKind::ports();
    let known = known.filter_map(|kind| Some(PossibleValue::new(kind.name()).help(kind.port()?)));
    PossibleValuesParser::new(known).try_map(|name| TableKind::named(&name).ok_or("not a kind"))
}

pub fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("not KEY=VALUE")?;
    Ok((key.trim().to_owned(), value.to_owned()))
}

/// Runs `pvnet reload`. Returns whether all of the file is in force.
pub fn reload(args: &ChangeArgs) -> Result<bool, String> {
    let report = request(Change::Reload { candidate: false }, args)?;
    show(args.json, &report, || text(&report))?;
    Ok(report.is_complete())
}

/// Runs `pvnet port`.
pub fn port(command: PortCommand) -> Result<bool, String> {
    let enable = |name, enabled: &str| {
        let set = vec![("enabled".to_owned(), enabled.to_owned())];
        Change::Set { name, set, unset: Vec::new() }
    };
    let (change, args) = match command {
        PortCommand::Add { kind, keys, file, change } => {
            let toml = match (file, kind) {
                (Some(file), _) => read(&file)?,
                (None, Some(kind)) => table(kind, &keys)?,
                (None, None) => {
                    return Err("the kind of port is missing: guest, uplink or port".to_owned());
                }
            };
            (Change::Add { toml }, change)
        }
        PortCommand::Del(NamedArgs { name, change }) => (Change::Delete { name }, change),
        PortCommand::Set { port: NamedArgs { name, change }, keys, unset } => {
            (Change::Set { name, set: keys, unset }, change)
        }
        PortCommand::Up(NamedArgs { name, change }) => (enable(name, "true"), change),
        PortCommand::Down(NamedArgs { name, change }) => (enable(name, "false"), change),
    };
    make(change, &args)
}

fn read(file: &std::path::Path) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", file.display());
    let source: Box<dyn Read> = match file.to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => Box::new(std::fs::File::open(file).map_err(failed)?),
    };
    // The daemon takes no longer request.
    let mut text = Vec::new();
    source.take(REQUEST_MAX + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > REQUEST_MAX {
        return Err(format!("{}: more than {REQUEST_MAX} bytes", file.display()));
    }
    String::from_utf8(text).map_err(|error| format!("{}: {error}", file.display()))
}

/// A table of this kind with these keys.
///
/// # Errors
/// A key is none.
pub fn table(kind: TableKind, keys: &[(String, String)]) -> Result<String, String> {
    let mut text = format!("[[{kind}]]\n");
    for (key, value) in keys {
        let line = format!("{key} = {}\n", value_of(key, value));
        toml::from_str::<toml::Table>(&line).map_err(|_| format!("{key:?} is not a key"))?;
        text += &line;
    }
    Ok(text)
}

/// Makes a change, writes it to the configuration's file if that is asked for, and says what it did. Returns whether all that was asked
/// for is in force.
pub fn make(change: Change, args: &CommandArgs) -> Result<bool, String> {
    let CommandArgs { change: args, save } = args;
    let socket = control_socket(&args.daemon.directory);
    let saving = save.prepare(&change, &socket)?;
    let mut report = request(change, args)?;
    let saved = match saving {
        Some(_) if args.dry_run => None,
        Some(saving) if report.is_complete() => {
            let because = |error| format!("this is in force, but not saved: {error}");
            Some(saving.finish(&socket).map_err(because))
        }
        Some(_) => Some(Err("not saved: a part of it failed".to_owned())),
        None => None,
    };
    let saved = saved.transpose();
    report.saved = saved.clone().unwrap_or_default();
    show(args.json, &report, || text(&report))?;
    saved?;
    Ok(report.is_complete())
}

fn request(change: Change, args: &ChangeArgs) -> Result<ChangeReport, String> {
    let ChangeArgs { daemon, dry_run, reconnect, .. } = args;
    let request = ChangeRequest { change, dry_run: *dry_run, reconnect: *reconnect };
    control_socket::change(&control_socket(&daemon.directory), &request)
}

/// A line for each step.
fn text(report: &ChangeReport) -> String {
    let mut text: String = report.steps.iter().map(|step| format!("{step}\n")).collect();
    if report.steps.is_empty() {
        text += "nothing differs\n";
    } else if report.dry_run {
        text += "nothing was changed: this was a dry run\n";
    }
    if let Some(file) = &report.saved {
        text += &format!("saved       {file}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_an_end_is_refused() {
        assert!(read("/dev/zero".as_ref()).unwrap_err().ends_with("more than 16384 bytes"));
        assert_eq!(read("/dev/null".as_ref()).unwrap(), "");
    }

    #[test]
    fn keys_make_a_table() {
        let keys: Vec<_> = ["name=a b", "queues=2", "addresses=[\"x\"]", "limit.egress.mbps=8"]
            .iter()
            .map(|text| key_value(text).unwrap())
            .collect();
        let text = table(TableKind::Uplink, &keys).unwrap();
        let parsed: toml::Table = toml::from_str(&text).unwrap();
        let uplink = &parsed["uplink"][0];
        assert_eq!(uplink["name"].as_str(), Some("a b"));
        assert_eq!(uplink["queues"].as_integer(), Some(2));
        assert_eq!(uplink["limit"]["egress"]["mbps"].as_integer(), Some(8));
        assert!(key_value("name").is_err());
        let injected = vec![("a]\n[daemon".to_owned(), "1".to_owned())];
        assert!(table(TableKind::Uplink, &injected).is_err());
    }
}

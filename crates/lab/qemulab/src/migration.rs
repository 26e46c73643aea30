//! Live migration of a machine between two daemons on one host.

use std::time::Duration;

use control_socket::PortState;
use lab::Interrupt;
use serde_json::json;
use xenlab::{Error, Machine, MachineConfig, Result};

use crate::COMMAND;
use crate::daemon::Daemon;
use crate::setup::{Setup, gone};
use crate::testbed::{TAP, Testbed, WIRE};
use crate::traffic::{self, FILE_PORT, Peer};

/// The second daemon's tap.
const OTHER: &str = "wire1";
/// How often the migration's state is read.
const POLL: Duration = Duration::from_millis(100);

/// A word in QEMU's refusal to migrate if the back-end cannot log the pages that it writes.
const NO_LOG: &str = "LOG_SHMFD";

/// A machine moves while it sends a file. The two daemons' taps are on one bridge.
pub(crate) fn step(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let namespace = &setup.testbed.wire_namespace;
    let device = setup.testbed.device(0).clone();
    let mut other = Daemon::start(setup.inputs.pvnet, namespace, |folder| {
        format!(
            "[daemon]\ndirectory = {folder:?}\n\n[[uplink]]\nname = \"wire\"\ntap = \"{OTHER}\"\n{}",
            device.table(folder)
        )
    })?;
    for command in [
        "link add br0 type bridge stp_state 0 forward_delay 0",
        &format!("addr flush dev {TAP}"),
        &format!("link set {TAP} master br0"),
        &format!("link set {OTHER} master br0"),
        &format!("link set {OTHER} up"),
        &format!("addr add {WIRE}/24 dev br0"),
        "link set br0 up",
    ] {
        namespace.ip(&command.split(' ').collect::<Vec<_>>())?;
    }
    let receiver = traffic::receiver(namespace)?;
    let config = Testbed::machine(&device, setup.inputs.emulator, &other)?;
    let config = MachineConfig { is_incoming: true, ..config };
    let mut target = Machine::boot(setup.inputs.images, setup.inputs.emulator, &config)?;
    let script = format!(
        "set -e\ndd if=/dev/urandom of=/run/part bs=64k count=4 2>/dev/null\n\
         send() {{ n=0; while [ $n -lt 100 ]; do cat /run/part; $1; n=$((n + 1)); done; }}\n\
         send true | sha256sum >/run/digest\nsend 'sleep 0.1' | nc {WIRE} {FILE_PORT}\ntouch /run/sent"
    );
    setup.shell(0)?.spawn(&script)?;
    let flows = format!("netstat -tn | grep -w {FILE_PORT} | grep ESTABLISHED");
    setup.shell(0)?.until("a connection", &flows, COMMAND)?;

    if let Err(refused) = migrate(setup.machine(0)?, &mut target, other.folder()) {
        // The receiver's thread ends with the connection.
        setup.machines[0] = None;
        let words = refused.to_string();
        return if words.contains(NO_LOG) {
            Ok(("NOT RUN: pvnet offers no log of dirty pages yet".to_owned(), true))
        } else {
            Err(refused)
        };
    }
    let source = setup.machines[0].take().ok_or_else(gone)?;
    source.kill()?;
    other.until_port(&device.name, PortState::Up)?;
    target.shell().until("the end of the file", "[ -e /run/sent ]", COMMAND)?;
    let digest = target.run("cat /run/digest", COMMAND)?;
    let joined = receiver.join();
    let received = joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let is_same = digest.split_whitespace().next() == Some(received.as_str());
    let echoes = traffic::ping(Peer::Machine(target.shell()), WIRE, 3)?;
    let verdict = if is_same { "unchanged" } else { "CHANGED" };
    let seen = format!("the file is {verdict}; {} of {} echoes", echoes.received, echoes.sent);
    Ok((seen, is_same && echoes.received == echoes.sent))
}

/// Moves a machine's state.
fn migrate(source: &mut Machine, target: &mut Machine, folder: &std::path::Path) -> Result<()> {
    let uri = format!("unix:{}", folder.join("migration").display());
    target.monitor().execute("migrate-incoming", json!({ "uri": uri }))?;
    source.monitor().execute("migrate", json!({ "uri": uri }))?;
    loop {
        let state = source.monitor().execute("query-migrate", json!({}))?;
        match state["status"].as_str() {
            Some("completed") => return Ok(()),
            Some("failed" | "cancelled") => {
                return Err(Error::Content {
                    what: "the migration".to_owned(),
                    cause: state["error-desc"].as_str().unwrap_or("it failed").to_owned(),
                });
            }
            _ => Interrupt::sleep(POLL)?,
        }
    }
}

//! pvnet is killed and started again while its devices carry a connection.

use crate::Result;
use crate::host::{Domu, Shell};

use super::super::COMMAND_TIMEOUT;
use super::super::check::{self, Transfer};
use super::testbed::{BRIDGE, Testbed, address, device_name, verdict};

/// The number of echoes that show that frames still pass.
const ECHOES: u32 = 3;

pub(super) fn kill(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let names = testbed.guests.iter().map(|guest| device_name(guest, 0)).collect::<Vec<_>>();
    let before = ifindexes(testbed)?;
    let watch = testbed.shell().spawn("exec ip -o monitor link")?;
    let (from, to) = (testbed.guests[0].shell().clone(), testbed.guests[1].shell().clone());
    let same = during_a_restart(testbed, &from, &to, &address(3))?;
    let log = watch.printed(COMMAND_TIMEOUT)?;
    watch.stop()?;
    let mut wrong = Vec::new();
    if !same {
        wrong.push("the file is CORRUPTED".to_owned());
    }
    if before != ifindexes(testbed)? {
        wrong.push("another device".to_owned());
    }
    let left = names.iter().filter(|name| !stayed(&log, name));
    wrong.extend(left.map(|name| format!("{name} left the bridge")));
    let seen = format!("the file arrived; {} stayed in {BRIDGE}", names.join(" and "));
    Ok(verdict(seen, &wrong))
}

/// Sends a file while pvnet is killed and started again. Returns whether it arrived unchanged.
pub(super) fn during_a_restart(
    testbed: &mut Testbed<'_>,
    from: &Shell,
    to: &Shell,
    address: &str,
) -> Result<bool> {
    let transfer = Transfer::begin(from, to, address)?;
    testbed.backend.kill()?;
    testbed.backend.restart()?;
    transfer.finish()
}

/// An operator switches offloads off once, for a guest that forwards frames unchanged, such as a FreeBSD router. They must stay off.
pub(super) fn operators_features(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let name = device_name(&testbed.guests[0], 0);
    let features = |testbed: &Testbed<'_>, change: &str| -> Result<Vec<String>> {
        let script = format!("{change}\nethtool -k {name}");
        Ok(check::switched_on(&testbed.shell().run(&script, COMMAND_TIMEOUT)?))
    };
    let off = features(testbed, &format!("ethtool -K {name} tx off >/dev/null"))?;
    testbed.backend.kill()?;
    testbed.backend.restart()?;
    testbed.until_connected(&testbed.guests[0], 0)?;
    let ping = check::ping(testbed.shell(), &address(2), ECHOES)?;
    let after = features(testbed, "")?;
    let on = features(testbed, &format!("ethtool -K {name} tx on >/dev/null"))?;
    let mut wrong: Vec<String> = after
        .iter()
        .filter(|feature| !off.contains(feature))
        .map(|on| format!("{on} is on"))
        .collect();
    let sums = |features: &[String]| features.iter().any(|feature| feature == "tx-checksumming");
    wrong.extend((sums(&off) || !sums(&on)).then(|| "ethtool -K".to_owned()));
    wrong.extend((ping.received < ping.sent).then(|| "echoes are lost".to_owned()));
    Ok(verdict(format!("{name} has {} after a restart of pvnet", after.join(" ")), &wrong))
}

fn ifindexes(testbed: &Testbed<'_>) -> Result<Vec<String>> {
    let index = |guest: &Domu| Ok(testbed.device(guest, 0)?.get("ifindex").to_owned());
    testbed.guests.iter().map(index).collect()
}

/// Whether a device was in the bridge all the time, by the log of `ip monitor link`. The log need not have a short loss of the carrier.
fn stayed(log: &str, name: &str) -> bool {
    let marked = format!(" {name}: ");
    let is_in =
        |line: &str| !line.starts_with("Deleted") && line.contains(&format!("master {BRIDGE} "));
    log.lines().filter(|line| line.contains(&marked)).all(is_in)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_left_its_bridge_did_not_stay() {
        let line = |flags: &str, master: &str| {
            format!(
                "7: vif1.0: <{flags}> mtu 1400 qdisc mq {master} state UP group default \\    link/ether\n"
            )
        };
        let away = line("NO-CARRIER,BROADCAST,MULTICAST,UP", "master xenbr0");
        let back = line("BROADCAST,MULTICAST,UP,LOWER_UP", "master xenbr0");
        assert!(stayed(&(away.clone() + &back), "vif1.0"));
        assert!(!stayed(&(away.clone() + &line("BROADCAST", "")), "vif1.0"));
        assert!(!stayed(&(away.clone() + "Deleted " + &away), "vif1.0"));
        assert!(stayed(&(away + "Deleted 8: vif2.0: <>"), "vif1.0"));
    }
}

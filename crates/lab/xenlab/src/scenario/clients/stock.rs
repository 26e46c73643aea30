//! A guest with the kernel's frontend.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::Result;

use super::super::{COMMAND_TIMEOUT, check};
use super::program::{SECTION, drop_icmp};
use super::testbed::{STOCK, Side, Testbed, attach};

const ECHOES: u32 = 5;
/// The size of a file, in MiB.
const FILE: u32 = 1;

/// Payload of a TCP segment on Ethernet, with timestamps.
const MSS: usize = 1448;

/// xen-netfront tells the backend how much headroom a program needs, but only after it has asked the backend to look. netback often
/// misses it: the program then counts as loaded, and never runs. So netback is no measure for pvnet here.
pub(super) fn xdp(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let encoded = STANDARD.encode(drop_icmp());
    let script = format!(
        "set -e\nmount -t bpf bpf /sys/fs/bpf\necho {encoded} | base64 -d >/run/drop_icmp.o"
    );
    testbed.stock.run(&script, COMMAND_TIMEOUT)?;
    let mut seen = Vec::new();
    let mut passed = true;
    for side in Side::ALL {
        let (dom0, address) = (testbed.dom0(), side.inner(STOCK));
        let set = |program: &str| {
            let script = format!("ip link set dev eth{} xdpdrv {program}", side.devid());
            testbed.stock.run(&script, COMMAND_TIMEOUT).map(drop)
        };
        set(&format!("object /run/drop_icmp.o section {SECTION}"))?;
        let ping = check::ping(dom0, &address, ECHOES)?;
        let dropped = ping.sent - ping.received;
        let same = check::same_file(testbed.stock.shell(), dom0, side.outer(), FILE)?;
        set("off")?;
        let after = check::ping(dom0, &address, ECHOES)?;
        let file = if same { "a file passed" } else { "a file is CORRUPTED" };
        seen.push(format!(
            "{}: a program dropped {dropped} of {ECHOES} echoes, {file}, {} passed without it",
            side.name(),
            after.received
        ));
        passed &= same && after.received == after.sent;
        passed &= side == Side::Netback || dropped == ping.sent;
    }
    Ok((seen.join("; "), passed))
}

/// The TCP segments that came in at a guest.
#[derive(Default)]
struct Seen {
    segments: usize,
    /// Segments with more payload than a frame can have.
    unsegmented: usize,
    /// Segments with an unfinished checksum.
    unfinished: usize,
}

pub(super) fn no_offloads(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let with = capture(testbed)?;
    let key =
        "printf '\\n[[guest]]\\nname = \"stock.1\"\\nguest_offloads = false\\n' >>/lab/pvnet.toml";
    testbed.host.run(key, COMMAND_TIMEOUT)?;
    testbed.pvnet.restart()?;
    // The key applies from the next connection on.
    let devid = Side::Pvnet.devid();
    testbed.host.run(&format!("pvnet detach stock --vif {devid}"), COMMAND_TIMEOUT)?;
    let gone = format!("! [ -e /sys/class/net/eth{devid} ]");
    testbed.stock.shell().until("the end of the interface", &gone, COMMAND_TIMEOUT)?;
    testbed.host.sh(&attach("stock", STOCK), COMMAND_TIMEOUT)?;
    testbed.bring_up(devid, &Side::Pvnet.inner(STOCK))?;
    let without = capture(testbed)?;
    let offloads = testbed.stock.run(&format!("ethtool -k eth{devid}"), COMMAND_TIMEOUT)?;
    let is_on = check::switched_on(&offloads).iter().any(|name| name == "rx-checksumming");
    let words = |seen: &Seen| {
        format!(
            "{} segments, {} of more than {MSS} bytes, {} with an unfinished checksum",
            seen.segments, seen.unsegmented, seen.unfinished
        )
    };
    let passed = is_on
        && with.unsegmented > 0
        && with.unfinished > 0
        && without.segments > 0
        && without.unsegmented == 0
        && without.unfinished == 0;
    Ok((format!("{}; with offloads {}", words(&without), words(&with)), passed))
}

/// Sends a file to the guest, and counts the segments that come in, without its own GRO.
fn capture(testbed: &Testbed<'_>) -> Result<Seen> {
    let (guest, devid) = (testbed.stock.shell(), Side::Pvnet.devid());
    let address = Side::Pvnet.inner(STOCK);
    let script = format!(
        "ethtool -K eth{devid} gro off\nexec tcpdump -Z root -n -vv -l --immediate-mode -i eth{devid} tcp and dst host {address}"
    );
    let dump = guest.spawn(&script)?;
    let listening = format!("grep 'listening on' {}", dump.file());
    guest.until("tcpdump", &listening, COMMAND_TIMEOUT)?;
    let same = check::same_file(testbed.dom0(), guest, &address, FILE)?;
    guest.run("sleep 1; kill $(pidof tcpdump)", COMMAND_TIMEOUT)?;
    let text = dump.wait(COMMAND_TIMEOUT)?.text;
    let seen = segments(&text);
    Ok(if same { seen } else { Seen::default() })
}

/// Counts the segments in the output of `tcpdump -vv`.
fn segments(text: &str) -> Seen {
    let mut seen = Seen::default();
    for line in text.lines().filter(|line| line.contains(" cksum ") && line.contains("Flags")) {
        let length =
            line.rsplit_once(", length ").and_then(|(_, length)| length.trim().parse().ok());
        seen.segments += 1;
        seen.unsegmented += usize::from(length.unwrap_or(0) > MSS);
        seen.unfinished += usize::from(line.contains("(incorrect "));
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_counted_as_tcpdump_prints_them() {
        // Printed by tcpdump 4.99.3.
        let text = "12:00:00.000000 IP (tos 0x0, ttl 64, id 1, offset 0, flags [DF], proto TCP (6), length 2948)\n    \
             10.0.0.1.4 > 10.0.0.2.5555: Flags [.], cksum 0x1a2b (incorrect -> 0x3c4d), seq 0:2896, ack 1, win 502, options [nop,nop,TS val 1 ecr 2], length 2896\n\
             12:00:00.000000 IP (tos 0x0, ttl 64, id 1, offset 0, flags [DF], proto TCP (6), length 60)\n    \
             10.0.0.1.4 > 10.0.0.2.5555: Flags [F.], cksum 0x1a2b (correct), seq 0, ack 1, win 502, length 0\n";
        let seen = segments(text);
        assert_eq!((seen.segments, seen.unsegmented, seen.unfinished), (2, 1, 1));
    }
}

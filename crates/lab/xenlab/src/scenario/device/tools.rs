//! An operator's tools on a device.

use std::time::Duration;

use lab::Ping;

use crate::Result;
use crate::host::Shell;

use super::super::{COMMAND_TIMEOUT, check};
use super::testbed::{BRIDGE_ADDRESS, Testbed, address, device_name, mac, verdict};

/// The number of echoes of a test.
const ECHOES: u32 = 5;
/// The added delay, which is far above the emulated machine's own round trips.
const DELAY: Duration = Duration::from_millis(1500);
/// The number and size in bytes of echoes that are too fast for a policer.
const BURST: u32 = 20;
const BURST_BYTES: u32 = 1000;

pub(super) fn tcpdump(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let (dom0, guest) = (testbed.shell(), &testbed.guests[0]);
    let name = device_name(guest, 0);
    let script = format!(
        "timeout 60 tcpdump -Z root -n -e -l --immediate-mode -i {name} -c {} icmp",
        2 * ECHOES
    );
    let capture = dom0.spawn(&script)?;
    let listening = format!("grep 'listening on' {}", capture.file());
    dom0.until("tcpdump", &listening, COMMAND_TIMEOUT)?;
    let ping = check::ping(guest.shell(), BRIDGE_ADDRESS, ECHOES)?;
    let text = capture.wait(COMMAND_TIMEOUT)?.text;
    let requests =
        text.lines().filter(|line| line.contains("echo request") && line.contains(&mac(2)));
    let replies = text.lines().filter(|line| line.contains("echo reply"));
    let seen = [requests.count(), replies.count()];
    let words = format!("{} requests and {} replies of {} echoes", seen[0], seen[1], ping.received);
    Ok((words, ping.received == u64::from(ECHOES) && seen == [ECHOES as usize; 2]))
}

pub(super) fn traffic_control(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let (dom0, guest) = (testbed.shell(), &testbed.guests[0]);
    let name = device_name(guest, 0);
    let shortest = || -> Result<Duration> {
        let ping = ping(dom0, &format!("-c {ECHOES} -i 0.2 -W 5 {}", address(2)))?;
        Ok(ping.rtt.map_or(Duration::MAX, |rtt| rtt.min))
    };
    let run = |command: String| dom0.run(&command, COMMAND_TIMEOUT);
    run("modprobe -a sch_netem sch_ingress cls_matchall act_police".to_owned())?;
    run(format!("tc qdisc add dev {name} root netem delay {}ms", DELAY.as_millis()))?;
    let delayed = shortest()?;
    run(format!("tc qdisc del dev {name} root"))?;
    let after = shortest()?;
    run(format!(
        "tc qdisc add dev {name} ingress && tc filter add dev {name} ingress matchall \
         action police rate 8kbit burst 3k conform-exceed drop"
    ))?;
    let ping =
        ping(guest.shell(), &format!("-s {BURST_BYTES} -c {BURST} -i 0.1 -W 1 {BRIDGE_ADDRESS}"))?;
    let counts = run(format!("tc -s filter show dev {name} ingress"))?;
    run(format!("tc qdisc del dev {name} ingress"))?;
    let lost = ping.sent - ping.received;
    let dropped = number_after(&counts, "dropped ");
    let mut wrong = Vec::new();
    if !(delayed >= DELAY && delayed < Duration::MAX && after < DELAY) {
        wrong.push("the delay".to_owned());
    }
    if lost == 0 || ping.received == 0 || dropped < lost {
        wrong.push("the policer".to_owned());
    }
    let seen = format!(
        "round trips of {} ms with a delay of {} ms and {} ms without; a policer dropped {dropped}, {lost} of {} echoes are lost",
        delayed.as_millis(),
        DELAY.as_millis(),
        after.as_millis(),
        ping.sent
    );
    Ok(verdict(seen, &wrong))
}

pub(super) fn nftables(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let (dom0, guest) = (testbed.shell(), &testbed.guests[0]);
    let name = device_name(guest, 0);
    let rules = format!(
        "modprobe -a crc32c_generic nf_tables && nft -f - <<'END'\ntable netdev lab {{\n chain in {{\n\
         type filter hook ingress device \"{name}\" priority 0;\n ip protocol icmp counter drop\n }}\n}}\nEND"
    );
    dom0.run(&rules, COMMAND_TIMEOUT)?;
    let blocked = check::ping(guest.shell(), BRIDGE_ADDRESS, ECHOES)?;
    let table =
        dom0.run("nft list table netdev lab && nft delete table netdev lab", COMMAND_TIMEOUT)?;
    let passed = check::ping(guest.shell(), BRIDGE_ADDRESS, ECHOES)?;
    let counted = number_after(&table, "counter packets ");
    let seen = format!(
        "{} of {} echoes with the rule, which counted {counted}; {} of {} without",
        blocked.received, blocked.sent, passed.received, passed.sent
    );
    let is_right =
        blocked.received == 0 && counted == blocked.sent && passed.received == passed.sent;
    Ok((seen, is_right))
}

fn ping(from: &Shell, arguments: &str) -> Result<Ping> {
    let output = from.sh(&format!("ping -q -n {arguments}"), COMMAND_TIMEOUT)?;
    Ok(Ping::parse(&output.text)?)
}

/// The number after a word; 0 if there is none.
fn number_after(text: &str, word: &str) -> u64 {
    let after = text.split_once(word).map_or("", |(_, after)| after);
    let digits = after.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(after.len());
    after[..digits].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_from_what_the_tools_print() {
        // Printed by iproute2 6.1 and nftables 1.0.6.
        let tc = "\tSent 20840 bytes 20 pkts (dropped 17, overlimits 17) \n";
        assert_eq!(number_after(tc, "dropped "), 17);
        assert_eq!(
            number_after("ip protocol icmp counter packets 5 bytes 420 drop", "counter packets "),
            5
        );
        assert_eq!(number_after("nothing", "counter packets "), 0);
    }
}

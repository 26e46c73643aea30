//! Habits of frontends other than Linux's.

use lab::Ping;

use crate::Result;
use crate::host::Shell;

use super::super::{COMMAND_TIMEOUT, check};
use super::testbed::{CLIENT, Side, Testbed};

/// How long TCP runs, in seconds.
const SECONDS: u32 = 1;
/// The size of a file, in MiB.
const FILE: u32 = 1;
/// The sizes of echoes in bytes, so that a backend could choose any place in a buffer.
const SIZES: &str = "seq 18 104 1472";
const OF_EACH_SIZE: u32 = 20;
/// Numbers of receive buffers, each with the bytes of an echo that has more fragments.
const BURSTS: [(u16, u32); 2] = [(18, 40_000), (32, 60_000)];
const ECHOES: u32 = 8;
/// The least part of netback's throughput for a guest that sends to dom0.
const OF_NETBACK: f64 = 0.7;
/// The least throughput without checksums to complete, as a part of the throughput with them.
const OF_COMPLETED: f64 = 0.95;
/// As `OF_NETBACK`, where the guest's buffers limit the throughput: it differs from run to run.
const LIMITED_BY_BUFFERS: f64 = 0.4;

pub(super) fn half_pages(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let mut seen = Vec::new();
    let mut passed = true;
    for side in Side::ALL {
        let inner = side.inner(CLIENT);
        let sizes = format!(
            "for size in $({SIZES}); do ping -q -n -f -c {OF_EACH_SIZE} -W 1 -s $size {inner}; done"
        );
        let (echoes, report) = testbed.with_client(side, "--half-pages", |_| {
            let text = testbed.dom0().sh(&sizes, COMMAND_TIMEOUT)?.text;
            Ok(text.lines().filter(|line| line.contains(" 0% packet loss")).count())
        })?;
        let (overwritten, received) = (report.overwritten, report.received);
        seen.push(format!("{}: {overwritten} of {received} overwritten", side.name()));
        passed &= overwritten == 0 && received >= u64::from(OF_EACH_SIZE) && echoes > 0;
    }
    Ok((seen.join(", "), passed))
}

pub(super) fn few_buffers(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let mut seen = Vec::new();
    let mut passed = true;
    for (buffers, bytes) in BURSTS {
        let mut answered = [0; 2];
        for (answered, side) in answered.iter_mut().zip(Side::ALL) {
            let words = format!("--buffers {buffers}");
            let ping = |_: &Shell| burst(testbed.dom0(), &side.inner(CLIENT), bytes);
            let (ping, _) = testbed.with_client(side, &words, ping)?;
            *answered = ping.received;
        }
        let [netback, pvnet] = answered;
        seen.push(format!(
            "{bytes} bytes to {buffers} buffers: {pvnet} of {ECHOES} echoes, netback's {netback}"
        ));
        passed &= netback > 0 && pvnet >= netback;
    }
    Ok((seen.join("; "), passed))
}

fn burst(dom0: &Shell, address: &str, bytes: u32) -> Result<Ping> {
    let ping = format!("ping -q -n -c {ECHOES} -i 0.5 -W 3 -s {bytes} {address}");
    Ok(Ping::parse(&dom0.sh(&ping, COMMAND_TIMEOUT)?.text)?)
}

pub(super) fn slow_buffers(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let mut rates = [0.0; 2];
    for (rate, side) in rates.iter_mut().zip(Side::ALL) {
        let stream = |guest: &Shell| throughput(testbed, guest, side, "--reverse");
        (*rate, _) = testbed.with_client(side, "--buffers 64 --refill-ms 20", stream)?;
    }
    Ok(compared(rates, LIMITED_BY_BUFFERS))
}

pub(super) fn tso_without_csum_blank(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let mut rates = [0.0; 2];
    let mut completed = [0.0; 2];
    let mut counts = [0; 2];
    let mut refused = [0; 2];
    let mut passed = true;
    for (n, side) in Side::ALL.into_iter().enumerate() {
        let work = |guest: &Shell| {
            let rate = throughput(testbed, guest, side, "")?;
            let same = check::same_file(guest, testbed.dom0(), side.outer(), FILE)?;
            // Both backends count anew with each connection.
            Ok((rate, same, repaired(testbed, side)?))
        };
        let (done, report) = testbed.with_client(side, "--tso-without-csum-blank", work)?;
        (rates[n], counts[n], refused[n]) = (done.0, done.2, report.tx_errors);
        passed &= done.1 && report.unsegmented > 0 && counts[n] > 0 && refused[n] == 0;
        (completed[n], _) =
            testbed.with_client(side, "--tso", |guest| throughput(testbed, guest, side, ""))?;
    }
    let (seen, is_fast) = compared(rates, OF_NETBACK);
    let parts = [0, 1].map(|n| rates[n] / completed[n]);
    passed &= parts[1] >= OF_COMPLETED;
    let [[of_netback, by_netback], [own, by_own]] = [0, 1].map(|n| [counts[n], refused[n]]);
    let seen = format!(
        "{seen}, {:.2} of the rate with checksums to complete, netback {:.2}; {own} repaired and {by_own} refused, netback's {of_netback} \
         and {by_netback}",
        parts[1], parts[0]
    );
    Ok((seen, passed && is_fast))
}

/// The number of checksums that a backend has repaired in the client's unsegmented packets.
fn repaired(testbed: &Testbed<'_>, side: Side) -> Result<u64> {
    if side == Side::Pvnet {
        return testbed.counted("gso_checksum_fixups");
    }
    let id = testbed.client.id();
    let counter = format!("ethtool -S vif{id}.0 | sed -n 's/.*rx_gso_checksum_fixup: *//p'");
    Ok(testbed.host.run(&counter, COMMAND_TIMEOUT)?.trim().parse().unwrap_or(0))
}

pub(super) fn empty_fragments(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    let mut seen = Vec::new();
    let mut passed = true;
    for side in Side::ALL {
        let work = |guest: &Shell| {
            let ping = check::ping(guest, side.outer(), ECHOES)?;
            let same =
                ping.received > 0 && check::same_file(guest, testbed.dom0(), side.outer(), FILE)?;
            Ok((ping.received, same))
        };
        let ((echoes, same), report) = testbed.with_client(side, "--empty-fragments", work)?;
        let file = if same { "a file arrived" } else { "NO FILE arrived" };
        let refused = report.tx_errors;
        seen.push(format!("{}: {echoes} echoes, {file}, {refused} refused", side.name()));
        passed &= same && echoes == u64::from(ECHOES) && refused == 0;
    }
    Ok((seen.join("; "), passed))
}

/// TCP between the client and dom0, in 10⁶ bits of payload per second.
fn throughput(testbed: &Testbed<'_>, guest: &Shell, side: Side, more: &str) -> Result<f64> {
    let (dom0, outer) = (testbed.dom0(), side.outer());
    let server = dom0.spawn(&format!("iperf3 -s -1 -B {outer}"))?;
    check::listens(dom0, 5201)?;
    let client = format!("iperf3 --json -t {SECONDS} {more} -c {outer}");
    let output = guest.sh(&client, COMMAND_TIMEOUT)?;
    let throughput = lab::Throughput::parse(&output.text, outer)?;
    server.wait(COMMAND_TIMEOUT)?;
    Ok(throughput.mbps)
}

/// Compares pvnet's rate with netback's. Returns a description, and whether the ratio is at least `least`.
fn compared([netback, pvnet]: [f64; 2], least: f64) -> (String, bool) {
    let ratio = pvnet / netback;
    (format!("{ratio:.2} of netback's {netback:.1} Mb/s"), ratio >= least)
}

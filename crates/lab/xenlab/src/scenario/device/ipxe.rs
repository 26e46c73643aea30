//! An HVM guest without an emulated card boots over the network, by iPXE's own frontend.
//!
//! ```text
//!  iPXE, then Linux ── netif ── pvnet or netback ── bridge ── dom0: DHCP and HTTP
//! ```
//!
//! iPXE has 18 receive buffers and takes no offloads. The files that it fetches arrived unchanged if Linux runs.

use crate::Result;
use crate::host::{DomuConfig, GuestType};

use super::super::{BOOT_TIMEOUT, COMMAND_TIMEOUT, check};
use super::testbed::{BRIDGE, BRIDGE_ADDRESS, Testbed, address, verdict};

/// The number of the guest.
const NUMBER: u8 = 9;
/// The size of a file each way once Linux runs, in MiB.
const FILE: u32 = 1;

/// The DHCP server's configuration: one address, and the name of iPXE's script.
const DHCP: &str = "start 10.0.0.9
end 10.0.0.9
interface xenbr0
lease_file /run/dhcp.leases
pidfile /run/dhcp.pid
option subnet 255.255.255.0
boot_file http://10.0.0.1/boot";

pub(super) fn on_pvnet(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    boot(testbed, "tun")
}

pub(super) fn on_netback(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    testbed.backend.kill()?;
    testbed.host.run("modprobe xen-netback", COMMAND_TIMEOUT)?;
    boot(testbed, "vif")
}

/// Boots a guest. Its device must have this driver.
fn boot(testbed: &Testbed<'_>, driver: &str) -> Result<(String, bool)> {
    let config = DomuConfig::new("ipxe").vif(testbed.vif(NUMBER, BRIDGE, ",type=vif"));
    let config = DomuConfig { guest_type: GuestType::Ipxe, ..config };
    let dom0 = testbed.shell();
    // iPXE fetches the last file after all others have arrived: the server's log then has it.
    dom0.run(
        &format!(
            "set -e\nmkdir -p /run/www\nln -sf /lab/guests/vmlinuz /lab/guests/domu.cpio /run/www\n\
             echo fetched >/run/www/fetched\ntouch /run/dhcp.leases\n\
             cat >/run/dhcp.conf <<'END'\n{DHCP}\nEND\n\
             cat >/run/www/boot <<'END'\n#!ipxe\n\
             kernel http://{BRIDGE_ADDRESS}/vmlinuz {} initrd=domu.cpio\n\
             initrd http://{BRIDGE_ADDRESS}/domu.cpio\n\
             imgfetch http://{BRIDGE_ADDRESS}/fetched && imgfree fetched\nboot\nEND",
            config.command_line()
        ),
        COMMAND_TIMEOUT,
    )?;
    let addresses = dom0.spawn("exec busybox udhcpd -f /run/dhcp.conf")?;
    let files = dom0.spawn(
        "busybox httpd -f -vv -p 80 -h /run/www 2>&1 | while read -r line; do\n\
         read -r up rest </proc/uptime; echo \"$up $line\"; done",
    )?;
    let booted = testbed.host.create(&config, BOOT_TIMEOUT * 5);
    let requests = files.printed(COMMAND_TIMEOUT);
    files.stop()?;
    addresses.stop()?;
    let requests = requests?;
    let guest = booted.map_err(|cause| crate::Error::Explained {
        cause: Box::new(cause),
        log: format!("the server said: {requests}"),
    })?;
    let id = guest.id();
    let mut wrong = Vec::new();
    let device = format!("ethtool -i vif{id}.0 | sed -n 's/^driver: //p'");
    let device = dom0.run(&device, COMMAND_TIMEOUT)?.trim().to_owned();
    wrong.extend((device != driver).then(|| format!("its device is of {device:?}")));
    let line = guest.run("cat /proc/cmdline", COMMAND_TIMEOUT)?;
    wrong.extend((!line.contains("initrd=domu.cpio")).then(|| format!("booted by {line:?}")));
    testbed.bring_up(&guest, 0, &address(NUMBER))?;
    let arrived = check::same_file(guest.shell(), dom0, BRIDGE_ADDRESS, FILE)?
        && check::same_file(dom0, guest.shell(), &address(NUMBER), FILE)?;
    wrong.extend((!arrived).then(|| "a file is CORRUPTED".to_owned()));
    guest.destroy()?;
    wrong.extend(testbed.left(id, 0)?);
    let bytes = "cat /lab/guests/vmlinuz /lab/guests/domu.cpio | wc -c";
    let bytes: f64 = dom0.run(bytes, COMMAND_TIMEOUT)?.trim().parse().unwrap_or(0.0);
    let seconds = duration(&requests);
    wrong.extend(seconds.is_none().then(|| format!("requests {requests:?}")));
    let seconds = seconds.unwrap_or(f64::NAN);
    let mib = bytes / 1_048_576.0;
    Ok(verdict(
        format!(
            "a kernel and its archive, {mib:.0} MiB over HTTP, at {:.2} MiB/s; they run; then Linux's frontend: files \
             arrive both ways; nothing is left",
            mib / seconds
        ),
        &wrong,
    ))
}

/// Seconds between the requests for the kernel and for the last file in the server's log: `UPTIME CLIENT: url:PATH`.
fn duration(log: &str) -> Option<f64> {
    let at = |path: &str| {
        let line = log.lines().find(|line| line.ends_with(&format!("url:{path}")))?;
        line.split_whitespace().next()?.parse::<f64>().ok()
    };
    Some(at("/fetched")? - at("/vmlinuz")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_boot_is_from_the_kernel_to_the_last_file() {
        let log = "10.00 [::ffff:10.0.0.9]:57406: url:/boot\n12.50 [::ffff:10.0.0.9]:57406: url:/vmlinuz\n\
                   12.51 [::ffff:10.0.0.9]:57406: response:200\n40.00 [::ffff:10.0.0.9]:1: url:/fetched\n";
        assert_eq!(duration(log), Some(27.5));
        assert_eq!(duration("12.50 [::ffff:10.0.0.9]:57406: url:/vmlinuz\n"), None);
    }
}

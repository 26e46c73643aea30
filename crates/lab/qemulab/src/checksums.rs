//! Unfinished checksums behind many VLAN tags, and the checksum flags that a machine's driver gets.
//!
//! Trace events of the guests' kernels show the frames that pass their driver: `net_dev_start_xmit` and `napi_gro_receive_entry`
//! have each frame's `ip_summed`. The driver turns it into flags of the frame's virtio header, and back.

use std::fmt;

use lab::Namespace;
use xenlab::{Result, Shell};

use crate::COMMAND;
use crate::setup::Setup;
use crate::testbed::{Testbed, WIRE};
use crate::traffic::{self, Peer};

/// MiB of a file.
const MIB: u32 = 2;

/// Where tracefs is mounted in guests.
const TRACING: &str = "/sys/kernel/tracing";

/// Frames that passed a machine's driver in one direction, by their `ip_summed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Frames {
    /// `CHECKSUM_NONE`: the header has no flags.
    plain: u32,
    /// `CHECKSUM_UNNECESSARY`: `DATA_VALID`.
    valid: u32,
    /// `CHECKSUM_PARTIAL`: `NEEDS_CSUM`.
    unfinished: u32,
}

impl Frames {
    /// Whether there are frames, and none had flags in its header.
    fn have_no_flags(self) -> bool {
        self.plain > 0 && self.valid == 0 && self.unfinished == 0
    }

    /// Reads lines of `COUNT ip_summed=NUMBER`.
    fn parse(text: &str) -> Self {
        let mut frames = Self::default();
        for (count, what) in text.lines().filter_map(|line| line.trim().split_once(' ')) {
            let count = count.parse().unwrap_or(0);
            match what {
                "ip_summed=0" => frames.plain = count,
                "ip_summed=1" => frames.valid = count,
                "ip_summed=3" => frames.unfinished = count,
                _ => {}
            }
        }
        frames
    }
}

impl fmt::Display for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plain, valid, unfinished } = self;
        write!(f, "{plain} no flags, {valid} DATA_VALID, {unfinished} NEEDS_CSUM")
    }
}

/// A running trace of a machine's driver.
struct Trace<'a> {
    shell: &'a Shell,
    event: &'static str,
}

impl<'a> Trace<'a> {
    /// Frames that the stack gives to the driver.
    const SENT: &'static str = "net_dev_start_xmit";
    /// Frames that the driver gives to the stack.
    const RECEIVED: &'static str = "napi_gro_receive_entry";

    fn start(shell: &'a Shell, event: &'static str) -> Result<Self> {
        let script = format!(
            "set -e\n[ -e {TRACING}/trace ] || mount -t tracefs trace {TRACING}\ncd {TRACING}\n\
             echo >trace\necho 8192 >buffer_size_kb\necho 1 >events/net/{event}/enable"
        );
        shell.run(&script, COMMAND)?;
        Ok(Self { shell, event })
    }

    /// Ends the trace. Returns the frames of `eth0` whose lines contain `words`.
    fn finish(self, words: &str) -> Result<Frames> {
        let script = format!(
            "set -e\ncd {TRACING}\necho 0 >events/net/{}/enable\n\
             grep dev=eth0 trace | grep -e '{words}' | grep -o 'ip_summed=[0-9]' | sort | uniq -c\necho >trace",
            self.event
        );
        Ok(Frames::parse(&self.shell.run(&script, COMMAND)?))
    }
}

/// The address of a machine's innermost VLAN device.
fn tagged_address(number: usize) -> String {
    format!("10.3.0.{}", number + 1)
}

/// Stacks `depth` VLAN devices on both machines' interfaces. The outermost tag is a provider's (802.1ad). Linux stacks at most eight
/// devices, `eth0` included: the sixth tag comes behind a bridge, where the count begins anew.
fn tag(setup: &Setup<'_>, depth: u32) -> Result<()> {
    let script = format!(
        "set -e\nmodprobe -a 8021q bridge veth\nbelow=eth0 kind='protocol 802.1ad'\n\
         for level in $(seq {depth}); do\n\
         if [ $level = 6 ]; then\n\
         ip link add hop type bridge\nip link add low type veth peer name high\n\
         ip link set $below master hop\nip link set low master hop\n\
         for device in hop low high; do ip link set $device up; done\nbelow=high\n\
         fi\n\
         ip link add link $below name tag$level type vlan $kind id $((10 + level))\n\
         ip link set tag$level up\nbelow=tag$level kind=\n\
         done\n\
         ip link set $below mtu 1460\nip addr add"
    );
    for number in [0, 1] {
        let address = tagged_address(number);
        setup.shell(number)?.run(&format!("{script} {address}/24 dev $below"), COMMAND)?;
    }
    Ok(())
}

/// Removes them. A VLAN device is deleted with the device below it.
fn untag(setup: &Setup<'_>) -> Result<()> {
    let script = "for device in tag1 hop low; do [ ! -e /sys/class/net/$device ] || ip link del $device; done";
    for number in [0, 1] {
        setup.shell(number)?.run(script, COMMAND)?;
    }
    Ok(())
}

/// Sets a key of both machines' ports.
fn set_ports(setup: &Setup<'_>, key: &[&str]) -> Result<()> {
    for number in [0, 1] {
        let mut command = lab::command(&setup.inputs.pvnet.to_string_lossy())?;
        command.args(["port", "set", "--directory"]).arg(setup.testbed.daemon.folder());
        command.arg(&setup.testbed.device(number).name).args(key);
        lab::run(command, COMMAND)?;
    }
    Ok(())
}

/// Both machines have stacked VLAN devices. Their stacks leave the checksums behind all tags to the device, which is pvnet. pvnet finds
/// the headers behind three tags, and not behind nine.
pub(crate) fn tags(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let (one, two) = (setup.shell(0)?, setup.shell(1)?);
    let mut seen = Vec::new();
    let mut passed = true;
    for depth in [3, 9] {
        // A guard looks behind eight tags, and refuses frames with more.
        if depth > 8 {
            set_ports(setup, &["guard=off"])?;
        }
        tag(setup, depth)?;
        let echoes = traffic::ping(Peer::Machine(one), &tagged_address(1), 3)?;
        let trace = Trace::start(one, Trace::SENT)?;
        let same = [
            traffic::file(one, Peer::Machine(two), &tagged_address(1), MIB)?,
            traffic::file(two, Peer::Machine(one), &tagged_address(0), MIB)?,
        ];
        let sent = trace.finish("protocol=0x88a8")?;
        untag(setup)?;
        seen.push(format!(
            "{depth} tags: {} of {} echoes, {} of {} files unchanged, {} frames of one machine without their checksum",
            echoes.received,
            echoes.sent,
            same.iter().filter(|same| **same).count(),
            same.len(),
            sent.unfinished
        ));
        passed &=
            echoes.received == echoes.sent && same == [true; 2] && sent.unfinished > sent.plain;
    }
    set_ports(setup, &["--unset", "guard"])?;
    Ok((seen.join("; "), passed))
}

/// A host behind a router, and the router's address there.
const FAR: &str = "10.1.0.1";
const ROUTER: &str = "10.1.0.254";

/// Makes the tap's namespace a router to a host in a new namespace. The host sends finished checksums. The router verifies them, because it
/// merges segments (GRO): the tap carries frames with `DATA_VALID`, and merged ones with `NEEDS_CSUM`.
fn route(wire: &Namespace) -> Result<Namespace> {
    let far = Namespace::create("qemulab")?;
    let (host, router) = (far.name(), wire.name());
    let pair = [
        "link", "add", "name", "eth0", "netns", host, "type", "veth", "peer", "name", "far",
        "netns", router,
    ];
    far.ip(&pair)?;
    for (namespace, device, address, feature) in
        [(&far, "eth0", FAR, ["tx", "off"]), (wire, "far", ROUTER, ["gro", "on"])]
    {
        let mut command = namespace.exec("ethtool")?;
        command.args(["-K", device]).args(feature);
        lab::run(command, COMMAND)?;
        namespace.ip(&["address", "add", &format!("{address}/24"), "dev", device])?;
        namespace.ip(&["link", "set", device, "up"])?;
    }
    far.ip(&["route", "add", "default", "via", ROUTER])?;
    wire.inside(|| {
        let path = "/proc/sys/net/ipv4/ip_forward";
        std::fs::write(path, "1").map_err(|cause| lab::Error::Io { what: path.to_owned(), cause })
    })?;
    Ok(far)
}

/// Sends a file from the far host to the first machine. Returns whether it arrived unchanged, and the flags that the machine's driver got.
fn flags_of_file(setup: &Setup<'_>, far: &Namespace) -> Result<(bool, Frames)> {
    let shell = setup.shell(0)?;
    shell.run(&format!("ip route replace {FAR} via {WIRE}"), COMMAND)?;
    let trace = Trace::start(shell, Trace::RECEIVED)?;
    let is_same = traffic::file_to(far, shell, &Testbed::address(0), MIB)?;
    Ok((is_same, trace.finish("protocol=0x0800")?))
}

/// A device without `GUEST_CSUM` gets headers without flags, from the tap and from the other machine. With it, it gets flags for verified
/// checksums and for unfinished ones.
pub(crate) fn without_flags(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    const OFF: [(&str, bool); 5] = [
        ("guest_csum", false),
        ("guest_tso4", false),
        ("guest_tso6", false),
        ("guest_ecn", false),
        ("guest_ufo", false),
    ];
    let far = route(&setup.testbed.wire_namespace)?;
    let (is_same_with, with) = flags_of_file(setup, &far)?;
    setup.plug_again(0, &OFF)?;
    let (is_same_without, without) = flags_of_file(setup, &far)?;
    let (one, two) = (setup.shell(0)?, setup.shell(1)?);
    tag(setup, 3)?;
    let trace = Trace::start(one, Trace::RECEIVED)?;
    let is_same_tagged = traffic::file(two, Peer::Machine(one), &tagged_address(0), MIB)?;
    let tagged = trace.finish("protocol=0x88a8")?;
    untag(setup)?;
    setup.plug_again(0, &[])?;
    let same = [is_same_with, is_same_without, is_same_tagged];
    let seen = format!(
        "{} of {} files unchanged; frames from the tap with GUEST_CSUM: {with}; without: {without}; from a machine behind 3 tags: {tagged}",
        same.iter().filter(|same| **same).count(),
        same.len()
    );
    let has_flags = with.valid > 0 && with.unfinished > 0;
    Ok((seen, same == [true; 3] && has_flags && without.have_no_flags() && tagged.have_no_flags()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_counted_by_what_the_kernel_says_of_them() {
        let text = "     12 ip_summed=0\n      3 ip_summed=3\n";
        assert_eq!(Frames::parse(text), Frames { plain: 12, valid: 0, unfinished: 3 });
        assert_eq!(Frames::parse("1 ip_summed=1\n").valid, 1);
        assert_eq!(Frames::parse(""), Frames::default());
    }
}

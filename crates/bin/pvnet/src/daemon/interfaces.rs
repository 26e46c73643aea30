//! What the kernel says of the frames that it dropped at network interfaces.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek};

use control_socket::DeviceDrops;

/// The interfaces of a network namespace at one moment.
#[derive(Debug, Default)]
pub(super) struct Interfaces(BTreeMap<String, Dropped>);

/// What an interface has dropped, by direction as its namespace sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dropped {
    received: u64,
    sent: u64,
}

/// On which side of an interface the daemon is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// It reads what the namespace's stack sends: a tap.
    Behind,
    /// It reads what comes from the wire: a NIC, and a macvtap on one.
    InFront,
}

impl Interfaces {
    /// Those of the daemon's namespace; none if the kernel does not say.
    pub(super) fn read() -> Self {
        InterfaceFile::open().and_then(|file| file.read()).unwrap_or_default()
    }

    /// Whether there is an interface of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// What was dropped at the interface of this name. None if there is none.
    pub(super) fn drops(&self, name: &str, side: Side) -> Option<DeviceDrops> {
        let Dropped { received, sent } = *self.0.get(name)?;
        Some(match side {
            Side::Behind => DeviceDrops { ingress: sent, egress: received },
            Side::InFront => DeviceDrops { ingress: received, egress: sent },
        })
    }

    /// Reads proc_net_dev(5): two lines of titles, then a line per interface.
    fn parse(text: &str) -> Self {
        let lines = text.lines().filter_map(|line| {
            // A name has no colon.
            let (name, numbers) = line.split_once(':')?;
            let mut numbers = numbers.split_whitespace().map(|number| number.parse().ok());
            let received = numbers.nth(3)??;
            let sent = numbers.nth(7)??;
            Some((name.trim().to_owned(), Dropped { received, sent }))
        });
        Self(lines.collect())
    }
}

/// The interfaces of one namespace, for a daemon that cannot enter it any more.
#[derive(Debug)]
pub(super) struct InterfaceFile(File);

impl InterfaceFile {
    /// Of the namespace of the calling thread.
    pub(super) fn open() -> io::Result<Self> {
        File::open("/proc/thread-self/net/dev").map(Self)
    }

    pub(super) fn read(&self) -> io::Result<Interfaces> {
        let mut text = String::new();
        let mut file = &self.0;
        file.rewind()?;
        file.read_to_string(&mut text)?;
        Ok(Interfaces::parse(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_found_in_both_directions() {
        let text = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:  123       4    0    0    0     0          0         0      123       4    0    0    0     0       0          0
pvnet0: 9000      70    1   17    0     0          0         0     8000      60    2   23    0     0       0          0
 short: 1 2 3
";
        let interfaces = Interfaces::parse(text);
        let drops = |side| interfaces.drops("pvnet0", side);
        assert_eq!(drops(Side::Behind), Some(DeviceDrops { ingress: 23, egress: 17 }));
        assert_eq!(drops(Side::InFront), Some(DeviceDrops { ingress: 17, egress: 23 }));
        assert_eq!(interfaces.drops("lo", Side::Behind), Some(DeviceDrops::default()));
        assert_eq!(interfaces.drops("short", Side::Behind), None);
        assert_eq!(interfaces.drops("eth7", Side::InFront), None);
    }

    #[test]
    fn a_file_outlives_the_thread_that_has_opened_it() {
        let file = std::thread::spawn(|| InterfaceFile::open().unwrap()).join().unwrap();
        for _ in 0..2 {
            assert!(file.read().unwrap().drops("lo", Side::Behind).is_some());
        }
        assert!(Interfaces::read().drops("lo", Side::Behind).is_some());
    }
}

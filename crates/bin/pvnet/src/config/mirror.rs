//! `[[mirror]]`: the frames of some ports are copied to another port, or to files.

use std::collections::HashSet;

use schemars::JsonSchema;
use serde::Deserialize;

use super::table::{Effort, table};
use super::{Config, PlatformKind, Queues, check_name};

table! {
    /// `[[mirror]]`
    #[derive(Eq)]
    Mirror [Effort = Effort::InPlace] {
        /// Its name, for operators.
        name: String = String::new();
        /// The ports whose frames are copied.
        from: Vec<String> = Vec::new();
        /// Which of their frames.
        direction: Direction = Direction::Both;
        /// The port that gets the copies and nothing else. What it sends is dropped.
        to: Option<String> = None;
        /// The name of the files that the copies are written to, without number and ending.
        file: Option<String> = None;
        /// The most MiB of a file [default: 100].
        file_mib: Option<u32> = None;
        /// The most files; the oldest is removed for a new one [default: 10].
        files: Option<u32> = None;
        /// Which frames are written to files, in the language of `pvnet capture`.
        filter: Option<String> = None;
        /// The most bytes of a frame that are copied; 0 for all. A copy to a port has the first 128 in any case.
        snaplen: u32 = 0;
    }
}

/// `direction`: which frames of a port are copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// From the port into the switch.
    Ingress,
    /// From the switch out of the port.
    Egress,
    /// All.
    #[default]
    Both,
}

impl Mirror {
    /// The name of its files, to which a number and an ending are added.
    pub fn file_name(&self) -> Option<&str> {
        let file = self.file.as_deref()?;
        Some(file.strip_suffix(capture::EXTENSION).unwrap_or(file))
    }

    /// The most bytes of a file, and the most files.
    pub fn file_limits(&self) -> (u64, usize) {
        let bytes = u64::from(self.file_mib.unwrap_or(100)) << 20;
        (bytes, self.files.unwrap_or(10) as usize)
    }

    /// What is written to files.
    pub fn recorded(&self) -> capture::Options {
        let wanted = self.filter.as_deref().unwrap_or_default().trim();
        let filter = match (self.direction, wanted) {
            (Direction::Both, wanted) => wanted.to_owned(),
            (Direction::Ingress, "") => "inbound".to_owned(),
            (Direction::Egress, "") => "outbound".to_owned(),
            (Direction::Ingress, wanted) => format!("inbound and ({wanted})"),
            (Direction::Egress, wanted) => format!("outbound and ({wanted})"),
        };
        capture::Options { filter, snaplen: self.snaplen, ..capture::Options::default() }
    }
}

impl Direction {
    /// Whether frames from the port into the switch are copied, and those of the other direction.
    pub fn parts(self) -> [bool; 2] {
        [self != Self::Egress, self != Self::Ingress]
    }
}

/// Most mirrors: each one to files has a thread and memory for what it has not written yet.
pub(super) const MIRRORS_MAX: usize = 32;

impl Config {
    /// Checks the mirrors.
    pub(super) fn check_mirrors(&self) -> Result<(), String> {
        if self.mirrors.len() > MIRRORS_MAX {
            return Err(format!("there are more than {MIRRORS_MAX} mirrors"));
        }
        let (mut targets, mut files) = (HashSet::new(), HashSet::new());
        for mirror in &self.mirrors {
            let Mirror { name, from, .. } = mirror;
            check_name(name)?;
            let of_mirror = |reason| format!("mirror {name:?}: {reason}");
            if from.is_empty() {
                return Err(of_mirror("from names no port".into()));
            }
            for port in from.iter().chain(&mirror.to) {
                self.check_mirrored(port).map_err(of_mirror)?;
            }
            if let Some(to) = &mirror.to {
                self.check_target(to).map_err(of_mirror)?;
                if !targets.insert(to) {
                    return Err(of_mirror(format!(
                        "port {to:?} gets the copies of another mirror"
                    )));
                }
            }
            self.check_file(mirror).map_err(of_mirror)?;
            if mirror.file_name().is_some_and(|file| !files.insert(file)) {
                return Err(of_mirror("another mirror has the same file".into()));
            }
        }
        let sources = self.mirrors.iter().flat_map(|mirror| &mirror.from);
        match sources.into_iter().find(|port| targets.contains(port)) {
            Some(port) => Err(format!(
                "port {port:?} gets the copies of a mirror, and would be mirrored itself: a mirror of a mirror has no end"
            )),
            None => Ok(()),
        }
    }

    /// Checks that there is such a port. On Xen the toolstack makes guests' ports.
    fn check_mirrored(&self, port: &str) -> Result<(), String> {
        let is_known = self.known_ports().any(|(name, _)| name == port);
        match is_known || self.daemon.platform == PlatformKind::Xen {
            true => Ok(()),
            false => Err(format!("there is no port {port:?}")),
        }
    }

    /// Checks that a port can get copies only.
    fn check_target(&self, port: &str) -> Result<(), String> {
        let uplink = self.uplinks.iter().find(|uplink| uplink.name == port);
        if uplink.is_some_and(|uplink| uplink.queues == Queues::PerGuest) {
            return Err(format!(
                "uplink {port:?} has queues for guests, and cannot get copies only"
            ));
        }
        // On Xen the toolstack makes guests' ports, each with a table of its name or of `*`.
        let by_toolstack = self
            .single_ports()
            .all(|(name, _)| name != port)
            .then(|| self.guest(port).filter(|_| self.daemon.platform == PlatformKind::Xen))
            .flatten();
        let of_domain = by_toolstack.map(|guest| guest.vifs.first().cloned().unwrap_or_default());
        let has_device = self.devices().any(|(name, _)| name == port)
            || of_domain.is_some_and(|vif| self.device_of(&vif, None).is_some());
        match has_device {
            true => Err(format!(
                "port {port:?} has attach = \"device\": the network behind its device would see nothing but copies; give the \
                 analyser a port with attach = \"switch\", or mirror the device itself (tc mirred, ovs-vsctl create mirror)"
            )),
            false => Ok(()),
        }
    }

    /// Checks where copies are written to.
    fn check_file(&self, mirror: &Mirror) -> Result<(), String> {
        let Mirror { to, file_mib, files, filter, .. } = mirror;
        let Some(file) = mirror.file_name() else {
            return match (to, file_mib, files, filter) {
                (None, ..) => Err("it has neither to, a port, nor file".into()),
                (Some(_), None, None, None) => Ok(()),
                _ => Err("file_mib, files and filter are for a mirror with file".into()),
            };
        };
        if to.is_some() {
            return Err("it has both to and file; make two mirrors".into());
        }
        check_name(file).map_err(|reason| {
            let folder = self.daemon.recordings.display();
            format!("file: {reason}; it is in {folder}, see recordings in [daemon]")
        })?;
        if file_mib.is_some_and(|mib| !(1..=FILE_MIB_MAX).contains(&mib)) {
            return Err(format!("file_mib must be 1 to {FILE_MIB_MAX}"));
        }
        if files.is_some_and(|files| !(1..=FILES_MAX).contains(&files)) {
            return Err(format!("files must be 1 to {FILES_MAX}"));
        }
        if !self.daemon.capture {
            return Err("capture = false in [daemon] forbids recording".into());
        }
        let filter: Result<capture::Filter, _> = mirror.recorded().filter.parse();
        filter.map(|_| ()).map_err(|error| error.to_string())
    }
}

/// The most MiB of a file: 1 TiB.
const FILE_MIB_MAX: u32 = 1 << 20;
/// The most files: a folder is read for each new one.
const FILES_MAX: u32 = 10_000;

#[cfg(test)]
mod tests {
    use crate::config::Config;

    const PORTS: &str = "[[guest]]\nname = \"red\"\nmac = \"02:00:00:00:00:01\"\n\
                         [[guest]]\nname = \"probe\"\nmac = \"02:00:00:00:00:02\"\n\
                         [[uplink]]\nname = \"up\"\ntap = \"up0\"\n";

    fn check(mirrors: &str) -> Result<(), String> {
        let config = Config::parse(&format!("{PORTS}{mirrors}")).map_err(|e| e.to_string())?;
        config.check()
    }

    fn mirror(name: &str, from: &str, to: &str) -> String {
        format!("[[mirror]]\nname = \"{name}\"\nfrom = [{from}]\nto = \"{to}\"\n")
    }

    #[test]
    fn mirrors_that_cannot_be_are_refused() {
        assert_eq!(check(&mirror("span", "\"red\", \"up\"", "probe")), Ok(()));
        let two = |a: String, b: String| [a, b].concat();
        for (text, said) in [
            (mirror("span", "", "probe"), "names no port"),
            (mirror("span", "\"blue\"", "probe"), "no port \"blue\""),
            (mirror("span", "\"red\"", "blue"), "no port \"blue\""),
            (mirror("span", "\"red\", \"probe\"", "probe"), "a mirror of a mirror"),
            (
                two(mirror("a", "\"red\"", "probe"), mirror("b", "\"probe\"", "up")),
                "a mirror of a mirror",
            ),
            (
                two(mirror("a", "\"red\"", "probe"), mirror("b", "\"up\"", "probe")),
                "another mirror",
            ),
            (two(mirror("a", "\"red\"", "probe"), mirror("a", "\"red\"", "up")), "given twice"),
            (mirror("red", "\"red\"", "up"), "given twice"),
            (format!("{}colour = 1\n", mirror("a", "\"red\"", "up")), "colour"),
            (format!("{}direction = \"up\"\n", mirror("a", "\"red\"", "up")), "unknown value"),
        ] {
            let error = check(&text).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        let file = |keys: &str| {
            format!("[[mirror]]\nname = \"f\"\nfrom = [\"red\"]\nfile = \"span.pcapng\"\n{keys}")
        };
        assert_eq!(check(&file("direction = \"ingress\"\nfilter = \"arp\"\nfiles = 2\n")), Ok(()));
        for (keys, said) in [
            ("to = \"probe\"\n", "both to and file"),
            ("files = 0\n", "files must be 1 to"),
            ("file_mib = 0\n", "file_mib must be 1 to"),
            ("filter = \"colour red\"\n", "\"f\": filter, character 1: found"),
            ("[daemon]\ncapture = false\n", "capture = false"),
            ("[[mirror]]\nname = \"g\"\nfrom = [\"up\"]\nfile = \"span\"\n", "the same file"),
        ] {
            let error = check(&file(keys)).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        for name in ["../span", "/etc/span", ""] {
            let error = check(&file("").replace("span.pcapng", name)).unwrap_err();
            assert!(error.contains("recordings in [daemon]"), "{error}");
        }
        let none = check("[[mirror]]\nname = \"f\"\nfrom = [\"red\"]\n").unwrap_err();
        assert!(none.contains("neither to"), "{none}");
        let files = format!("{}files = 2\n", mirror("a", "\"red\"", "probe"));
        assert!(check(&files).unwrap_err().contains("for a mirror with file"));
        let device = PORTS.replace("02\"\n", "02\"\nattach = \"device\"\n");
        let config =
            Config::parse(&format!("{device}{}", mirror("a", "\"red\"", "probe"))).unwrap();
        assert!(config.check().unwrap_err().contains("attach = \"device\""));
    }

    /// The toolstack makes the ports; the configuration says what they are joined to.
    #[test]
    fn a_domain_with_a_device_cannot_be_a_target() {
        let check = |keys: &str| {
            let xen = "[daemon]\nplatform = \"xen\"\n";
            let text = format!("{xen}{keys}{}", mirror("a", "\"web\"", "ids"));
            Config::parse(&text).unwrap().check()
        };
        assert_eq!(check(""), Ok(()));
        let devices = "[xen]\nattach = \"device\"\n";
        assert!(check(devices).unwrap_err().contains("would see nothing but copies"));
        let all = "[[guest]]\nname = \"*\"\nattach = \"device\"\n";
        assert!(check(all).unwrap_err().contains("would see nothing but copies"));
        let ids = "[[guest]]\nname = \"ids\"\nattach = \"switch\"\n";
        assert_eq!(check(&format!("{devices}{ids}")), Ok(()));
    }
}

//! What the guests print about themselves for names and counts: `pvscope-tell`, and the scripts of workloads.

use std::collections::BTreeMap;

/// Kernel symbols, modules and processes of a machine's domains, as their guests printed them.
#[derive(Debug, Default)]
pub struct GuestReport {
    pub domains: BTreeMap<u16, DomainReport>,
}

/// What one domain printed.
#[derive(Debug, Default)]
pub struct DomainReport {
    /// The text of `/proc/kallsyms`, in part.
    pub kallsyms: String,
    /// The text of `/proc/modules`.
    pub modules: String,
    pub processes: Vec<ProcessReport>,
}

/// What a domain printed of one process.
#[derive(Debug)]
pub struct ProcessReport {
    pub pid: u32,
    /// The text of `/proc/PID/comm`.
    pub name: String,
    /// The executable mappings in `/proc/PID/maps`.
    pub maps: String,
}

impl GuestReport {
    /// Whether no domain printed anything.
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    /// The domain that printed something, if it is the only one.
    pub fn only_domain(&self) -> Option<u16> {
        let mut domains = self.domains.keys();
        domains.next().copied().filter(|_| domains.next().is_none())
    }

    /// Whether a kernel hid its addresses.
    pub fn hides_addresses(&self) -> bool {
        let hides = |report: &DomainReport| {
            let symbols = scope_symbols::kallsyms_text(&report.kallsyms);
            matches!(symbols, Err(scope_symbols::Error::Restricted))
        };
        self.domains.values().any(hides)
    }

    /// Parses what the scripts print: sections that begin with a line `@NAME ARGUMENTS`.
    pub fn parse(text: &str) -> Self {
        let mut report = Self::default();
        let mut domain = None;
        let mut section = Section::Other;
        for line in text.lines().map(|line| line.trim_end_matches('\r')) {
            if let Some(head) = line.strip_prefix('@') {
                let mut words = head.split(' ');
                let name = words.next().unwrap_or_default();
                if name == "domain" {
                    domain = words.next().and_then(|number| number.parse::<u16>().ok());
                }
                section = Section::new(name, &mut words);
                if let (Some(domain), Section::Process(pid, name)) = (domain, &section) {
                    let process =
                        ProcessReport { pid: *pid, name: name.clone(), maps: String::new() };
                    report.domains.entry(domain).or_default().processes.push(process);
                }
                continue;
            }
            let Some(domain) = domain.map(|domain| report.domains.entry(domain).or_default())
            else {
                continue;
            };
            let text = match section {
                Section::Kallsyms => &mut domain.kallsyms,
                Section::Modules => &mut domain.modules,
                Section::Process(..) => match domain.processes.last_mut() {
                    Some(process) => &mut process.maps,
                    None => continue,
                },
                Section::Other => continue,
            };
            text.push_str(line);
            text.push('\n');
        }
        report
    }
}

enum Section {
    Kallsyms,
    Modules,
    Process(u32, String),
    Other,
}

impl Section {
    fn new<'a>(name: &str, words: &mut impl Iterator<Item = &'a str>) -> Self {
        match name {
            "kallsyms" => Self::Kallsyms,
            "modules" => Self::Modules,
            "process" => {
                let pid = words.next().and_then(|pid| pid.parse().ok()).unwrap_or(0);
                Self::Process(pid, words.next().unwrap_or_default().to_owned())
            }
            _ => Self::Other,
        }
    }
}

/// The frames and bytes of both directions together, between the numbers after `@before` and those after `@after`.
pub fn frames_and_bytes(text: &str) -> Option<(u64, u64)> {
    let numbers = |mark: &str| -> Option<Vec<u64>> {
        let after = text.lines().skip_while(|line| line.trim() != mark).skip(1);
        after.take(4).map(|line| line.trim().parse().ok()).collect()
    };
    let (before, after) = (numbers("@before")?, numbers("@after")?);
    let [packets_rx, bytes_rx, packets_tx, bytes_tx] =
        [0, 1, 2, 3].map(|n| Some(after.get(n)?.saturating_sub(*before.get(n)?)));
    Some((packets_rx? + packets_tx?, bytes_rx? + bytes_tx?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_go_to_their_domain() {
        let text = "noise\n@domain 0\n@modules\nbridge 1 0 - Live 0xffffffffc0000000\n@kallsyms\n\
            ffffffffc0000010 t br_forward\t[bridge]\n@process 7 iperf3\n\
            00400000-00401000 r-xp 00000000 00:00 1 /usr/bin/iperf3\n@log\nboot\n@domain 1\n@process 9 init\n@end\n";
        let report = GuestReport::parse(text);
        assert_eq!(report.domains.keys().copied().collect::<Vec<_>>(), [0, 1]);
        let zero = &report.domains[&0];
        assert!(zero.kallsyms.contains("br_forward") && zero.modules.starts_with("bridge"));
        assert_eq!(zero.processes.len(), 1);
        assert!(zero.processes[0].maps.contains("/usr/bin/iperf3"));
        assert_eq!(report.domains[&1].processes[0].name, "init");
    }

    #[test]
    fn hidden_addresses_are_noticed() {
        let hidden = "@domain 0\n@kallsyms\n0000000000000000 t br_forward\t[bridge]\n";
        assert!(GuestReport::parse(hidden).hides_addresses());
    }

    #[test]
    fn frames_are_counted_between_before_and_after() {
        let text = "@before\n1\n100\n10\n1000\nother\n@after\n4\n700\n12\n1132\n";
        assert_eq!(frames_and_bytes(text), Some((5, 732)));
        assert_eq!(frames_and_bytes("@before\n1\n"), None);
        assert_eq!(frames_and_bytes(""), None);
    }
}

//! The plugin's arguments on QEMU's command line: `key=value`.

use std::ops::Range;
use std::path::PathBuf;

use scope_model::{Config, Policy, Preset};

use crate::frames::{FrameEntry, FrameProbe, SkbLayout};

/// What to record, and to which file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Arguments {
    /// The file of the recording.
    pub out: PathBuf,
    /// The caches and TLBs to model.
    pub config: Config,
    /// The address of Xen's `context_switch`.
    pub switch: Option<u64>,
    /// The addresses of Xen's function that switches to another address space.
    pub new_space: Range<u64>,
    /// The offset of the domain pointer in Xen's `struct vcpu`, in bytes.
    pub vcpu_domain: u64,
    /// Bytes of memory below the device hole; none if all of it lies there.
    pub low_memory: Option<u64>,
    /// Addresses whose execution is recorded as an event.
    pub probes: Vec<u64>,
    /// The functions that get frames.
    pub frame_probes: Vec<FrameProbe>,
    /// Where Linux has the fields of frames.
    pub skb: SkbLayout,
    /// The number of blocks in the recorded flow.
    pub flow: u32,
    /// Instructions before the flow begins.
    pub flow_after: u64,
    /// Whether to record the call graph.
    pub calls: bool,
    /// The file of the [functions](crate::Functions) that are known before; empty for none.
    pub functions: PathBuf,
    /// The file of the [sections](crate::LayoutPlan) that layouts put elsewhere; empty for no layouts.
    pub layouts: PathBuf,
    /// Whether there may be more than one recording, one for each pair of marks: the files then end with their numbers.
    pub windows: bool,
    /// While this file exists, the machine is held before its first mark; empty for none.
    pub hold: PathBuf,
    /// Whether to ignore the marks, so that nothing is recorded.
    pub ignore_marks: bool,
    /// Whether to compare TLB hits with QEMU's own translation.
    pub check: bool,
    /// Whether to hide writes of CR3 from the models, so that the comparison finds stale entries.
    pub ignore_cr3: bool,
    /// Whether to hide INVLPG and INVPCID from the models.
    pub ignore_invlpg: bool,
}

impl Arguments {
    /// The file of a recording by its number.
    #[must_use]
    pub fn file(&self, number: usize) -> PathBuf {
        if !self.windows {
            return self.out.clone();
        }
        let mut name = self.out.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }

    /// Parses the arguments.
    ///
    /// # Errors
    /// In words, with the argument that is wrong.
    pub fn parse(words: &[String]) -> Result<Self, String> {
        let mut arguments = Self::default();
        for word in words {
            let (key, value) =
                word.split_once('=').ok_or_else(|| format!("{word:?} is not KEY=VALUE"))?;
            arguments.set(key, value).ok_or_else(|| format!("{word:?} is not understood"))?;
        }
        arguments.config.check()?;
        if arguments.calls && arguments.check {
            return Err(
                "the call graph needs groups of accesses, which check=on leaves out".to_owned()
            );
        }
        let has_layouts = !arguments.layouts.as_os_str().is_empty();
        if has_layouts && (arguments.calls || arguments.switch.is_some()) {
            return Err(
                "layouts are for a machine without Xen, and without the call graph".to_owned()
            );
        }
        if arguments.out.as_os_str().is_empty() {
            return Err("out=FILE is missing".to_owned());
        }
        Ok(arguments)
    }

    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "out" => self.out = value.into(),
            "single" => self.config.single = on(value)?,
            "preset" => {
                let Config { single, kernel_superpages, policy, .. } = self.config;
                let preset = Preset::named(value)?.config();
                self.config = Config { single, kernel_superpages, policy, ..preset };
            }
            "kernel_superpages" => self.config.kernel_superpages = on(value)?,
            "policy" => self.config.policy = Policy::named(value)?,
            "l1" => self.config.l1_bytes = value.parse().ok()?,
            "l2" => self.config.l2 = choice(value, scope_model::L2_SIZES)?,
            "l3" => self.config.l3 = optional(value, scope_model::L2_SIZES)?,
            "tlb" => self.config.tlb = choice(value, scope_model::TLB_SIZES)?,
            "tlb2" => self.config.tlb2 = optional(value, scope_model::TLB_SIZES)?,
            "switch" => self.switch = Some(address(value)?),
            "new_space" => {
                let (first, end) = value.split_once('-')?;
                self.new_space = address(first)?..address(end)?;
            }
            "vcpu_domain" => self.vcpu_domain = address(value)?,
            "low_memory" => self.low_memory = Some(address(value)?),
            "probe" => self.probes.push(address(value)?),
            "frame" => {
                let (at, name) = value.split_once('-')?;
                let known = FrameEntry::NAMES.iter().find(|(known, _)| *known == name)?;
                let probe = FrameProbe { address: address(at)?, entry: known.1 };
                self.frame_probes.push(probe);
            }
            "skb" => {
                let offsets: Option<Vec<u64>> = value.split('-').map(address).collect();
                let [len, data, dev, name] = offsets?.try_into().ok()?;
                self.skb = SkbLayout { len, data, dev, name };
            }
            "flow" => self.flow = value.parse().ok()?,
            "flow_after" => self.flow_after = value.parse().ok()?,
            "calls" => self.calls = on(value)?,
            "functions" => self.functions = value.into(),
            "layouts" => self.layouts = value.into(),
            "windows" => self.windows = on(value)?,
            "hold" => self.hold = value.into(),
            "ignore_marks" => self.ignore_marks = on(value)?,
            "check" => self.check = on(value)?,
            "ignore_cr3" => self.ignore_cr3 = on(value)?,
            "ignore_invlpg" => self.ignore_invlpg = on(value)?,
            _ => return None,
        }
        Some(())
    }
}

fn on(value: &str) -> Option<bool> {
    match value {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

fn choice(value: &str, count: usize) -> Option<usize> {
    value.parse().ok().filter(|number| *number < count)
}

fn optional(value: &str, count: usize) -> Option<Option<usize>> {
    if value == "none" { Some(None) } else { choice(value, count).map(Some) }
}

fn address(value: &str) -> Option<u64> {
    u64::from_str_radix(value.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Arguments, String> {
        Arguments::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_are_parsed_or_refused_by_name() {
        let words = [
            "out=x",
            "single=on",
            "preset=server",
            "l3=none",
            "switch=0xffff82d040000000",
            "new_space=0x10-0x20",
            "low_memory=0xc0000000",
            "frame=0x5-receives2",
            "skb=0x70-0xd0-0x10-0x0",
            "probe=0x1",
            "probe=0x2",
        ];
        let arguments = parse(&words).unwrap();
        let server = Preset::Server.config();
        assert_eq!(arguments.config, Config { single: true, l3: None, ..server });
        assert_eq!(arguments.switch, Some(0xffff_82d0_4000_0000));
        assert_eq!(arguments.new_space, 0x10..0x20);
        assert_eq!(arguments.low_memory, Some(3 << 30));
        assert_eq!(arguments.probes, [1, 2]);
        let probe = FrameProbe { address: 5, entry: FrameEntry::ReceivesSecond };
        assert_eq!(arguments.frame_probes, [probe]);
        assert_eq!(arguments.skb, SkbLayout { len: 0x70, data: 0xd0, dev: 0x10, name: 0 });
        for (words, message) in [
            (&["single=on"][..], "out=FILE is missing"),
            (&["out=x", "single"], "\"single\" is not KEY=VALUE"),
            (&["out=x", "single=maybe"], "\"single=maybe\" is not understood"),
            (&["out=x", "new_space=0x10"], "\"new_space=0x10\" is not understood"),
            (&["out=x", "preset=2007", "l3=2"], "the L3 is no larger than the L2"),
            (
                &["out=x", "single=on", "policy=tagged"],
                "a single configuration has the processor's own policy only",
            ),
            (&["out=x", "policy=none"], "\"policy=none\" is not understood"),
            (&["out=x", "preset=1999"], "\"preset=1999\" is not understood"),
            (
                &["out=x", "calls=on", "check=on"],
                "the call graph needs groups of accesses, which check=on leaves out",
            ),
            (
                &["out=x", "calls=on", "layouts=plan"],
                "layouts are for a machine without Xen, and without the call graph",
            ),
            (&["out=x", "l2=7"], "\"l2=7\" is not understood"),
            (&["out=x", "low_memory=3G"], "\"low_memory=3G\" is not understood"),
            (&["out=x", "colour=red"], "\"colour=red\" is not understood"),
        ] {
            assert_eq!(parse(words).unwrap_err(), message);
        }
    }
}

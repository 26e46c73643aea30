//! The words after the plugin's name on QEMU's command line: `key=value`.

use std::path::PathBuf;

use scope_model::Config;

/// What is recorded, and where to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Arguments {
    /// The file.
    pub out: PathBuf,
    /// What is modelled.
    pub config: Config,
    /// The address of Xen's `context_switch`.
    pub switch: Option<u64>,
    /// The bytes of Xen's `struct vcpu` before its domain.
    pub vcpu_domain: u64,
    /// Bytes of memory that lie below the hole for devices; none where all of it does.
    pub low_memory: Option<u64>,
    /// Addresses whose execution is an event.
    pub probes: Vec<u64>,
    /// Blocks of the flow that are kept.
    pub flow: u32,
    /// Instructions before the first of them.
    pub flow_after: u64,
    /// Whether the marks are not heeded, so that nothing is recorded.
    pub wait: bool,
    /// Whether hits are compared with QEMU's own translation.
    pub check: bool,
    /// Writes of CR3 are kept from the model, so that the comparison has something to find.
    pub deaf_to_cr3: bool,
    /// INVLPG is.
    pub deaf_to_invlpg: bool,
}

impl Arguments {
    /// Reads them.
    ///
    /// # Errors
    /// In words, with the one that is not understood.
    pub fn parse(words: &[String]) -> Result<Self, String> {
        let mut arguments = Self::default();
        for word in words {
            let (key, value) =
                word.split_once('=').ok_or_else(|| format!("{word:?} is not KEY=VALUE"))?;
            arguments.set(key, value).ok_or_else(|| format!("{word:?} is not understood"))?;
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
            "l1" => self.config.l1_bytes = value.parse().ok()?,
            "l2" => self.config.l2 = choice(value, scope_model::L2_SIZES)?,
            "tlb" => self.config.tlb = choice(value, scope_model::TLB_SIZES)?,
            "switch" => self.switch = Some(address(value)?),
            "vcpu_domain" => self.vcpu_domain = address(value)?,
            "low_memory" => self.low_memory = Some(address(value)?),
            "probe" => self.probes.push(address(value)?),
            "flow" => self.flow = value.parse().ok()?,
            "flow_after" => self.flow_after = value.parse().ok()?,
            "wait" => self.wait = on(value)?,
            "check" => self.check = on(value)?,
            "deaf_to_cr3" => self.deaf_to_cr3 = on(value)?,
            "deaf_to_invlpg" => self.deaf_to_invlpg = on(value)?,
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
    fn words_are_taken_or_refused_by_name() {
        let words = [
            "out=x",
            "single=on",
            "switch=0xffff82d040000000",
            "low_memory=0xc0000000",
            "probe=0x1",
            "probe=0x2",
        ];
        let arguments = parse(&words).unwrap();
        assert!(arguments.config.single);
        assert_eq!(arguments.switch, Some(0xffff_82d0_4000_0000));
        assert_eq!(arguments.low_memory, Some(3 << 30));
        assert_eq!(arguments.probes, [1, 2]);
        for (words, message) in [
            (&["single=on"][..], "out=FILE is missing"),
            (&["out=x", "single"], "\"single\" is not KEY=VALUE"),
            (&["out=x", "single=maybe"], "\"single=maybe\" is not understood"),
            (&["out=x", "l2=7"], "\"l2=7\" is not understood"),
            (&["out=x", "low_memory=3G"], "\"low_memory=3G\" is not understood"),
            (&["out=x", "colour=red"], "\"colour=red\" is not understood"),
        ] {
            assert_eq!(parse(words).unwrap_err(), message);
        }
    }
}

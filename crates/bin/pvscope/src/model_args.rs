//! The options for the modelled processor and for its costs.

use std::path::Path;

use clap::Args;
use scope_model::{Config, Costs, L2_BYTES, Policy, Preset, TLB_ENTRIES};

use crate::error::{Error, Result};

/// The processor to model.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "The modelled processor")]
pub struct ModelArgs {
    /// Its sizes, and the costs that reports use: server (1 MiB of L2, 16 MiB of L3, 64 and 1024 TLB entries) or 2007 (2 MiB of
    /// L2, 64 TLB entries).
    #[arg(long, value_name = "NAME", default_value = "server", value_parser = preset)]
    preset: Preset,
    /// The size of L1I and of L1D, a power of two such as 32K [default: the preset's].
    #[arg(long, value_name = "BYTES", value_parser = l1)]
    l1: Option<usize>,
    /// The size of L2, from 256K to 16M [default: the preset's].
    #[arg(long, value_name = "BYTES", value_parser = l2)]
    l2: Option<usize>,
    /// The size of L3, up to 16M, or none [default: the preset's].
    #[arg(long, value_name = "BYTES", value_parser = optional(l2))]
    l3: Option<Level>,
    /// The entries of a TLB for small pages, from 16 to 1024 [default: the preset's].
    #[arg(long, value_name = "N", value_parser = tlb)]
    tlb: Option<usize>,
    /// The entries of the second level of TLBs, up to 1024, or none [default: the preset's].
    #[arg(long, value_name = "N", value_parser = optional(tlb))]
    tlb2: Option<Level>,
    /// What-if policies put superpages wherever a kernel has pages, with its image, modules and array of pages, and not into its
    /// linear map only.
    #[arg(long)]
    kernel_superpages: bool,
}

/// A level that may be missing.
#[derive(Clone, Copy, Debug)]
struct Level(Option<usize>);

impl ModelArgs {
    /// The sizes.
    pub fn config(&self) -> Result<Config> {
        let preset = self.preset.config();
        let config = Config {
            l1_bytes: self.l1.unwrap_or(preset.l1_bytes),
            l2: self.l2.unwrap_or(preset.l2),
            l3: self.l3.map_or(preset.l3, |level| level.0),
            tlb: self.tlb.unwrap_or(preset.tlb),
            tlb2: self.tlb2.map_or(preset.tlb2, |level| level.0),
            kernel_superpages: self.kernel_superpages,
            ..preset
        };
        config.check().map_err(Error::Usage)?;
        Ok(config)
    }
}

/// The words of the plugin's argument for a processor.
pub fn plugin_words(config: &Config) -> String {
    let Config { preset, l1_bytes, l2, l3, tlb, tlb2, kernel_superpages, policy, single } = *config;
    let on = |on: bool| if on { "on" } else { "off" };
    let optional =
        |level: Option<usize>| level.map_or("none".to_owned(), |level| level.to_string());
    format!(
        "preset={},l1={l1_bytes},l2={l2},l3={},tlb={tlb},tlb2={},kernel_superpages={},policy={},single={}",
        preset.name(),
        optional(l3),
        optional(tlb2),
        on(kernel_superpages),
        policy.name(),
        on(single)
    )
}

fn preset(name: &str) -> std::result::Result<Preset, String> {
    Preset::named(name).ok_or_else(|| {
        let names = Preset::ALL.map(Preset::name).join(" or ");
        format!("no preset of this name: use {names}")
    })
}

/// Parses the name of a policy.
pub fn policy(name: &str) -> std::result::Result<Policy, String> {
    Policy::named(name).ok_or_else(|| {
        let names = Policy::ALL.map(Policy::name).join(", ");
        format!("no policy of this name: use one of {names}")
    })
}

/// Parses a number of bytes, with K or M for the unit.
fn bytes(text: &str) -> Option<usize> {
    let (number, unit) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (&text[..at], 1 << 10),
        (at, 'm' | 'M') => (&text[..at], 1 << 20),
        _ => (text, 1),
    };
    number.parse::<usize>().ok()?.checked_mul(unit)
}

fn l1(text: &str) -> std::result::Result<usize, String> {
    let sizes = 4 << 10..=1 << 20;
    let size = bytes(text).filter(|size| size.is_power_of_two() && sizes.contains(size));
    size.ok_or_else(|| "use a power of two from 4K to 1M".to_owned())
}

fn l2(text: &str) -> std::result::Result<usize, String> {
    let index = bytes(text).and_then(|size| L2_BYTES.iter().position(|known| *known == size));
    index.ok_or_else(|| "use 256K, 512K, 1M, 2M, 4M, 8M or 16M".to_owned())
}

fn tlb(text: &str) -> std::result::Result<usize, String> {
    let entries = text.parse::<u16>().ok();
    let index = entries.and_then(|size| TLB_ENTRIES.iter().position(|known| *known == size));
    index.ok_or_else(|| "use 16, 32, 64, 128, 256, 512 or 1024".to_owned())
}

type Parser<T> = fn(&str) -> std::result::Result<T, String>;

fn optional(
    parse: Parser<usize>,
) -> impl Fn(&str) -> std::result::Result<Level, String> + Clone + Send + Sync {
    move |text| match text {
        "none" => Ok(Level(None)),
        _ => parse(text).map(|index| Level(Some(index))),
    }
}

/// The costs of events.
#[derive(Args)]
pub struct CostArgs {
    /// What events cost in model cycles: server, 2007, or a TOML file that changes some costs of the recording's preset, such as
    /// `pvscope calibrate --out` writes [default: the recording's preset].
    #[arg(long, value_name = "NAME|FILE")]
    costs: Option<String>,
}

impl CostArgs {
    /// The costs for a recording with this processor.
    pub fn read(&self, config: &Config) -> Result<Costs> {
        let Some(given) = &self.costs else { return Ok(config.preset.costs()) };
        if let Some(preset) = Preset::named(given) {
            return Ok(preset.costs());
        }
        let path = Path::new(given);
        let text = std::fs::read_to_string(path).map_err(Error::path(path))?;
        changed(config.preset.costs(), &text)
            .map_err(|error| Error::Usage(format!("{}: {}", path.display(), error.message())))
    }
}

/// Costs with those of a TOML text in place of their own.
fn changed(costs: Costs, text: &str) -> std::result::Result<Costs, toml::de::Error> {
    let own = toml::to_string(&costs).unwrap_or_default();
    let mut table: toml::Table = toml::from_str(&own)?;
    for (name, value) in toml::from_str::<toml::Table>(text)? {
        match (table.get_mut(&name), value) {
            (Some(toml::Value::Table(own)), toml::Value::Table(changes)) => own.extend(changes),
            (_, value) => drop(table.insert(name, value)),
        }
    }
    table.try_into()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use scope_recorder::Arguments;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        model: ModelArgs,
    }

    fn config(words: &str) -> std::result::Result<Config, String> {
        let line = Line::try_parse_from(["x"].into_iter().chain(words.split_whitespace()));
        line.map_err(|error| error.to_string())?.model.config().map_err(|error| error.to_string())
    }

    #[test]
    fn sizes_change_a_preset_and_reach_the_plugin() {
        for words in [
            "",
            "--preset 2007",
            "--preset 2007 --l1 16K --l2 512K --l3 8M --tlb 128 --tlb2 512",
            "--l3 none --tlb2 none",
            "--kernel-superpages",
        ] {
            let config = Config { policy: Policy::Tagged, ..config(words).expect("valid") };
            let words = format!("{},out=x", plugin_words(&config));
            let words: Vec<String> = words.split(',').map(str::to_owned).collect();
            let arguments = Arguments::parse(&words);
            assert_eq!(arguments.expect("valid").config, config, "{words:?}");
        }
        let small = config("--preset 2007 --l1 16K --l2 512K --l3 8M --tlb 128 --tlb2 512");
        let text = "L1 16 KiB, L2 512 KiB, L3 8192 KiB, TLBs of 128 and 512 entries";
        assert_eq!(small.expect("valid").to_string(), text);
        assert_eq!(config("").expect("valid"), Preset::Server.config());
    }

    #[test]
    fn sizes_that_are_not_modelled_are_refused_with_those_that_are() {
        for (words, message) in [
            ("--l2 3M", "256K, 512K"),
            ("--l1 48K", "power of two"),
            ("--tlb 100", "1024"),
            ("--preset 1999", "2007 or server"),
            ("--l3 512K", "L3 is no larger"),
            ("--tlb2 64", "second level"),
        ] {
            let error = config(words).expect_err(words);
            assert!(error.contains(message), "{error}");
        }
        assert_eq!(policy("grouped-superpages"), Ok(Policy::GroupedSuperpages));
        assert!(policy("none").is_err_and(|error| error.contains("real, no-global")));
    }

    #[test]
    fn a_file_changes_the_costs_that_it_names() {
        let server = Preset::Server.costs();
        let costs = changed(server, "memory = 7.0\n[event]\ncr3 = 9.0\n").expect("valid");
        assert_eq!((costs.memory, costs.event.cr3), (7.0, 9.0));
        assert_eq!((costs.l2_hit, costs.event.iret), (server.l2_hit, server.event.iret));
        let error = changed(server, "l4_hit = 1.0").expect_err("no such cost").to_string();
        assert!(error.contains("l4_hit"), "{error}");
        assert!(changed(server, "[event]\nnmi = 1.0").is_err());
    }
}

//! Measures each mechanism of the paper off and on, once, for `pvnet-lab demo`.

use super::measure::{Sample, measure};
use super::paper::{Bar, DRIVER_NONE, Figure, GUEST_NONE, ratio};
use super::plan::{Key, plan, superpages};
use super::topology;
use crate::error::{Error, Result};
use crate::repro::cpus::Cpus;

/// Two configurations of a figure that differ by one mechanism, or by all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mechanism {
    /// Its name in rows.
    pub key: &'static str,
    /// Its name in tables.
    pub label: &'static str,
    figure: Figure,
    off: &'static str,
    on: &'static str,
    /// The configuration that replaces `on` on a machine without superpages.
    small: Option<&'static str>,
}

const fn mechanism(
    key: &'static str,
    label: &'static str,
    (figure, off, on): (Figure, &'static str, &'static str),
) -> Mechanism {
    Mechanism { key, label, figure, off, on, small: None }
}

const ALL: Mechanism =
    mechanism("all", "all three for sending", (Figure::Five, "none", "high-ioc-sp"));

/// The mechanisms: all for sending together, each of them on top of the one before, then those for receiving.
pub const MECHANISMS: [Mechanism; 6] = [
    Mechanism { small: Some("high-ioc"), ..ALL },
    mechanism("high", "TSO and checksum offload", (Figure::Five, "none", "high")),
    mechanism("ioc", "shared pages for headers", (Figure::Five, "high", "high-ioc")),
    mechanism("sp", "pages of 2 MiB", (Figure::Five, "high-ioc", "high-ioc-sp")),
    mechanism("mtu", "receive buffers of an MTU", (Figure::Eleven, DRIVER_NONE, "Driver-MTU")),
    mechanism("copy", "copies, not exchanged pages", (Figure::Thirteen, GUEST_NONE, "Guest-copy")),
];

/// The gain by a mechanism.
#[derive(Clone, Debug)]
pub struct Gain {
    /// The mechanism.
    pub mechanism: Mechanism,
    /// Without and with it. `None` if this machine lacks something that one of them needs.
    pub samples: Option<[Sample; 2]>,
    /// The paper's factor.
    pub paper: Option<f64>,
}

impl Gain {
    /// The factor of the rates.
    pub fn factor(&self) -> Option<f64> {
        let [off, on] = self.samples.as_ref()?;
        (off.mbps > 0.0).then(|| on.mbps / off.mbps)
    }
}

/// Measures each configuration once. `step` gets its name before, and `done` its rate after.
pub fn gains(
    mechanisms: &[Mechanism],
    seconds: u32,
    step: impl Fn(&str),
    done: impl Fn(f64),
) -> Result<Vec<Gain>> {
    let cpus = Cpus::choose()?;
    let has_superpages = superpages();
    let has_superpages = has_superpages.as_ref().copied().map_err(|why| &**why);
    let mut seen: Vec<(Key, Sample)> = Vec::new();
    let mut sample = |figure: Figure, config: &'static str| -> Result<(Bar, Option<Sample>)> {
        let planned = plan(&[figure], &[config.to_owned()], has_superpages);
        // Each of these figures has a single bar of a name.
        let none = || Error::Failed(format!("figure {} has no {config}", figure.name()));
        let planned = planned.into_iter().next().ok_or_else(none)?;
        let Ok(key) = planned.key else { return Ok((planned.bar, None)) };
        if let Some((_, sample)) = seen.iter().find(|(known, _)| *known == key) {
            return Ok((planned.bar, Some(sample.clone())));
        }
        step(config);
        let server = topology::start(key.server, &cpus)?;
        let sample = measure(&server, key, seconds, &cpus)?;
        done(sample.mbps);
        seen.push((key, sample.clone()));
        Ok((planned.bar, Some(sample)))
    };
    let gain = |mechanism: &Mechanism| -> Result<Gain> {
        let (_, off) = sample(mechanism.figure, mechanism.off)?;
        let (bar, mut on) = sample(mechanism.figure, mechanism.on)?;
        if let (None, Some(small)) = (&on, mechanism.small) {
            on = sample(mechanism.figure, small)?.1;
        }
        let samples = off.zip(on).map(<[Sample; 2]>::from);
        Ok(Gain { mechanism: *mechanism, samples, paper: ratio(&bar, mechanism.off) })
    };
    mechanisms.iter().map(gain).collect()
}

#[cfg(test)]
mod tests {
    use super::super::paper::{Program, bars};
    use super::*;

    #[test]
    fn every_mechanism_is_two_bars_of_the_paper_with_a_factor_of_its_own() {
        let mut without = Vec::new();
        for Mechanism { key, figure, off, on, .. } in MECHANISMS {
            let find = |config| {
                let bars = bars().into_iter().filter(|bar| bar.figure == figure);
                let bars: Vec<Bar> = bars.filter(|bar| bar.config == config).collect();
                assert_eq!(bars.len(), 1, "{key}: {config}");
                assert_eq!(bars[0].program, Program::Sendfile, "{key}");
                bars[0]
            };
            let [off_bar, on_bar] = [off, on].map(find);
            assert_eq!(off_bar.direction, on_bar.direction, "{key}");
            if ratio(&on_bar, off).is_none() {
                without.push(key);
            }
        }
        assert_eq!(without, [""; 0]);
    }
}

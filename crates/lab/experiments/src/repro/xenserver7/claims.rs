//! The article's claims, compared with the measurements or the model.

use report::{Claim, Rule, Statement, Unit};

use super::flows::{Distribution, Shares};
use super::model::Check;
use super::rows::Row;
use super::{DEFAULT, DEFAULT_QUEUES, DIP, FOUR_QUEUES, ONE_QUEUE};
use crate::repro::document::statement;
use crate::repro::rounds::mean;

const WORKLOAD: &str = "8 TCP streams";
const PLOT: &str = "plot";
const BACKGROUND: &str = "background";

/// The best row for `queues` queues, with a worker for each: a measured one, or else the model's.
fn row(rows: &[Row], queues: usize) -> Option<&Row> {
    let is = |model: bool| {
        move |row: &&Row| {
            (row.queues, row.workers, row.model) == (queues, queues, model) && row.mbps.is_some()
        }
    };
    rows.iter().find(is(false)).or_else(|| rows.iter().find(is(true)))
}

/// The ratio of the rate with `queues` queues to that with one, both measured or both the model's, and whether they are the model's.
fn over_one(rows: &[Row], queues: usize) -> Option<(f64, bool)> {
    let row = row(rows, queues)?;
    let is_one = |other: &&Row| (other.queues, other.workers, other.model) == (1, 1, row.model);
    let one = rows.iter().find(is_one)?.mbps?.median;
    Some((row.mbps?.median / one, row.model))
}

/// Adds a remark to a claim if its number is the model's.
fn from(claim: Claim, model: bool) -> Claim {
    if model { claim.differs("The number is the model's.") } else { claim }
}

/// All claims. One that lacks a measurement cannot be told.
pub fn claims(
    rows: &[Row],
    checks: &[Check],
    switch: &[Distribution],
    uniform: &[Distribution],
) -> Vec<Claim> {
    let compare = |statement: Statement, what: &str, here: Option<(f64, bool)>, rule| {
        let claim = statement.compare(WORKLOAD, what, here.map(|(here, _)| here), rule);
        from(claim, here.is_some_and(|(_, model)| model))
    };
    let default = over_one(rows, DEFAULT_QUEUES);
    let four = over_one(rows, 4);
    let steps = [2, 3, 4].map(|queues| {
        let (more, model) = over_one(rows, queues)?;
        let fewer = if queues == 2 { 1.0 } else { over_one(rows, queues - 1)?.0 };
        Some((more / fewer, model))
    });
    let least = steps.into_iter().collect::<Option<Vec<_>>>();
    let least =
        least.and_then(|all| all.into_iter().min_by(|one, other| one.0.total_cmp(&other.0)));
    let proportional = default.map(|(times, model)| (times / DEFAULT_QUEUES as f64, model));
    let ring_full = |queues: usize| {
        let full = |row: &&Row| row.queues == queues && !row.model;
        rows.iter().filter(full).max_by_key(|row| row.workers)?.ring_full
    };
    let fuller = ring_full(1).zip(ring_full(4)).filter(|(one, _)| *one > 0.0);
    let busy = rows.iter().find(|row| (row.queues, row.workers, row.model) == (1, 1, false));
    let mut claims = vec![
        compare(
            statement(
                PLOT,
                "the default, eight queues, carries 41 Gb/s, and one 17 Gb/s: 140 % more",
                Some(DEFAULT / ONE_QUEUE),
                Unit::Times,
            ),
            "eight queues ÷ one",
            default,
            Rule::AtLeast(2.0, 1.3),
        ),
        compare(
            statement(PLOT, "four queues carry more than double", Some(FOUR_QUEUES), Unit::Times),
            "four queues ÷ one",
            four,
            Rule::AtLeast(FOUR_QUEUES, 1.5),
        ),
        compare(
            statement(PLOT, "it scales well up to four queues", None, Unit::Times),
            "the least step from one queue to four",
            least,
            Rule::Above(1.0),
        ),
        compare(
            statement(
                PLOT,
                "the throughput is not proportional to the number of rings",
                Some(DEFAULT / ONE_QUEUE / DEFAULT_QUEUES as f64),
                Unit::Times,
            ),
            "eight queues ÷ eight times one",
            proportional,
            Rule::AtMost(0.9, 0.9),
        ),
        statement(BACKGROUND, "the ring becomes full, and netfront waits", None, Unit::Times)
            .compare(
                WORKLOAD,
                "time in which a ring is full: four queues ÷ one",
                fuller.map(|(one, four)| four / one),
                Rule::AtMost(0.8, 0.95),
            ),
        statement(BACKGROUND, "the netback process fully consumes a CPU", Some(1.0), Unit::Share)
            .compare(
                WORKLOAD,
                "the worker's share of a CPU with one queue",
                busy.and_then(|row| row.worker_busy),
                Rule::AtLeast(0.9, 0.7),
            )
            .differs("On a machine with fewer CPUs than threads the guests compete with it."),
    ];
    claims.extend(dip(switch, uniform));
    claims.extend(fits(checks));
    claims
}

/// Whether the model fits what this machine can measure.
fn fits(checks: &[Check]) -> Vec<Claim> {
    let error = |workers: usize| {
        let of = checks.iter().filter(|check| check.workers == workers && !check.is_input);
        mean(of.map(|check| check.error.abs()))
    };
    let says = "a model that is fed with measured costs predicts the rates of this machine";
    let claim = |(workers, what)| {
        let rule = Rule::AtMost(0.15, 0.25);
        statement("model", says, None, Unit::Share).compare(WORKLOAD, what, error(workers), rule)
    };
    let all = [
        (1, "error of the model with one worker, the mean over the numbers of queues"),
        (2, "error of the model with two workers, the mean over the numbers of queues"),
    ];
    if checks.is_empty() { Vec::new() } else { all.map(claim).into() }
}

/// For each number of queues, the chance that its busiest queue has more flows than with one queue fewer, with other ports.
pub fn dips(distributions: &[Distribution]) -> Vec<(usize, f64)> {
    let pairs = distributions.windows(2).filter(|pair| pair[0].queues + 1 == pair[1].queues);
    pairs.map(|pair| (pair[1].queues, pair[1].most.exceeds(&pair[0].most))).collect()
}

/// The chance of at least one such dip, if every number of queues is measured with other ports.
pub fn any_dip(distributions: &[Distribution]) -> Option<f64> {
    let most = distributions.iter().map(|distribution| &distribution.most);
    (distributions.len() > 1).then(|| 1.0 - Shares::never_rise(most))
}

fn dip(switch: &[Distribution], uniform: &[Distribution]) -> Vec<Claim> {
    let at = |all: &[Distribution]| {
        dips(all).into_iter().find(|(queues, _)| *queues == DIP).map(|(_, share)| share)
    };
    let says = "the dip at five queues is an artefact of the hash of eight ports";
    let five = statement(PLOT, says, at(uniform), Unit::Share);
    let says = "with other ports this may not have happened";
    let any = statement(PLOT, says, any_dip(uniform), Unit::Share);
    let differs = "The paper's column is the exact chance of an even hash with a random key, as its kernels have.";
    vec![
        five.compare(
            "1,000 sets of ports",
            "chance of more flows on the busiest of five queues than of four",
            at(switch),
            Rule::AtLeast(0.02, 0.01),
        )
        .differs(differs),
        any.compare(
            "1,000 sets of ports",
            "chance of such a dip anywhere in the plot",
            any_dip(switch),
            Rule::AtLeast(0.5, 0.25),
        )
        .differs(differs),
    ]
}

#[cfg(test)]
mod tests {
    use report::Verdict;

    use super::super::fit::Fit;
    use super::super::rows::tests::{seen, sets};
    use super::super::rows::{Point, measured, modelled};
    use super::*;

    #[test]
    fn measured_rows_come_before_the_models() {
        let seen = seen();
        let points = [1, 2].map(|queues| Point { queues, workers: queues });
        let mut rows = measured(&points, &seen);
        let fit = Fit::new(&seen, &points, 2);
        let costs = fit.costs().unwrap();
        rows.extend(modelled(&[1, 2, 3, 4, 8], &costs, &sets()));
        assert_eq!(over_one(&rows, 2), Some((1.2, false)));
        assert!(over_one(&rows, 8).is_some_and(|(times, model)| times > 2.0 && model));
        let distributions: Vec<Distribution> =
            (1..=8).map(|queues| Distribution::of_sets(&sets(), queues)).collect();
        let uniform: Vec<Distribution> =
            (1..=8).map(|queues| Distribution::uniform(8, queues)).collect();
        let claims = claims(&rows, &fit.checks(&costs, &sets()), &distributions, &uniform);
        let find = |what: &str| {
            claims
                .iter()
                .find(|claim| claim.what.contains(what))
                .unwrap_or_else(|| panic!("{what}"))
        };
        let default = find("eight queues ÷ one");
        assert_eq!(default.verdict, Verdict::Holds);
        assert!(default.differs.contains("the model's"));
        // Four queues were not measured.
        assert_eq!(find("a ring is full").verdict, Verdict::CannotBeTold);
        assert_eq!(find("worker's share").verdict, Verdict::DoesNotHold);
        assert!(find("busiest of five").paper.is_some());
        assert_eq!(find("with two workers").verdict, Verdict::Holds);
        assert_eq!(find("with one worker").verdict, Verdict::CannotBeTold);
    }

    #[test]
    fn dips_are_chances_of_an_even_hash() {
        let uniform: Vec<Distribution> =
            (1..=8).map(|queues| Distribution::uniform(8, queues)).collect();
        let dips = dips(&uniform);
        assert_eq!(dips.len(), 7);
        // The busiest of two queues never has more of the eight flows than a single queue.
        assert!(dips[0] == (2, 0.0) && dips[3].0 == 5);
        assert!(dips[3].1 > 0.1 && dips[3].1 < 0.5, "{dips:?}");
        assert!(any_dip(&uniform).unwrap() > dips[3].1);
        assert_eq!(any_dip(&uniform[..1]), None);
    }
}

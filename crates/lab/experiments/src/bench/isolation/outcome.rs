//! Ratios of the good guests' figures with and without an attack, and the verdicts.

use report::{Ratio, Row, Rule, Samples, Stats, Verdict};

use super::class::Class;
use super::measure::Sample;
use crate::testbed::GuestKind;

/// The throughput that a good guest keeps: 0.9 of what it had.
pub const THROUGHPUT: Rule = Rule::AtLeast(0.9, 0.9);
/// The 99th percentile of its round trips: at most 1.5 times what it was.
pub const ROUND_TRIP: Rule = Rule::AtMost(1.5, 1.5);
/// The latest round trip, in µs: at most 50 ms, however late one is without an attack.
pub const LATEST: Rule = Rule::AtMost(50_000.0, 50_000.0);
/// The part of a CPU below which an attack takes no CPU time from the others.
const NO_CPU: f64 = 0.05;

/// One round: the good guests beside a hostile guest that is idle, that attacks, and that does no more than it may in
/// two ways.
#[derive(Clone, Debug)]
pub struct Round {
    /// Beside the idle guest.
    pub idle: Sample,
    /// During the attack.
    pub attack: Sample,
    /// Beside a process that uses as much CPU as the attack cost, and sends nothing.
    pub spin: Sample,
    /// Beside a guest that sends ordinary frames as fast as they are taken.
    pub busy: Sample,
}

/// A quantity of the good guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// The throughput of the TCP stream.
    Throughput,
    /// The 99th percentile of round trips.
    RoundTrip,
    /// The latest round trip.
    Latest,
}

/// The rounds of one class.
#[derive(Debug)]
pub struct Outcome {
    /// What the hostile guest did.
    pub class: Class,
    /// The kind of the good guests.
    pub victims: GuestKind,
    /// The daemon's workers.
    pub workers: usize,
    /// The rounds.
    pub rounds: Vec<Round>,
    /// Why there are no more rounds.
    pub failure: Option<String>,
}

impl Quantity {
    /// All.
    pub const ALL: [Self; 3] = [Self::Throughput, Self::RoundTrip, Self::Latest];

    fn of(self, sample: &Sample) -> f64 {
        match self {
            Self::Throughput => sample.mbps,
            Self::RoundTrip => sample.p99,
            Self::Latest => sample.latest,
        }
    }

    fn rule(self) -> Rule {
        match self {
            Self::Throughput => THROUGHPUT,
            Self::RoundTrip => ROUND_TRIP,
            Self::Latest => LATEST,
        }
    }

    /// The rule in words.
    pub fn rule_in_words(self) -> String {
        match self {
            Self::Throughput | Self::RoundTrip => self.rule().words(report::Unit::Times),
            Self::Latest => "holds up to 50 ms".to_owned(),
        }
    }

    /// Its name in rows, and its unit.
    fn name(self) -> (&'static str, &'static str) {
        match self {
            Self::Throughput => ("tcp", "Mb/s"),
            Self::RoundTrip => ("rtt-p99", "µs"),
            Self::Latest => ("rtt-latest", "µs"),
        }
    }
}

impl Outcome {
    /// Nothing measured yet.
    pub fn new(class: Class, victims: GuestKind, workers: usize) -> Self {
        Self { class, victims, workers, rounds: Vec::new(), failure: None }
    }

    /// The class, the victims and the workers in words.
    pub fn label(&self) -> String {
        let victims = self.victims.name();
        format!("{}, {victims} victims, {} workers", self.class, self.workers)
    }

    /// The median of a number of each round.
    pub fn median(&self, number: impl Fn(&Round) -> f64) -> Option<f64> {
        self.stats(number).map(|stats| stats.median)
    }

    /// The longest round trip of all rounds, in µs.
    pub fn latest(&self, of: impl Fn(&Round) -> &Sample) -> Option<f64> {
        self.rounds.iter().map(|round| of(round).latest).max_by(f64::total_cmp)
    }

    fn stats(&self, number: impl Fn(&Round) -> f64) -> Option<Stats> {
        self.rounds.iter().map(number).collect::<Samples>().stats()
    }

    /// The ratio of a quantity during the attack to the same beside an idle guest.
    pub fn against_idle(&self, quantity: Quantity) -> Option<Stats> {
        self.quotient(quantity, |round| &round.idle)
    }

    /// The same, compared with a process that uses as much CPU and does not attack.
    pub fn against_spin(&self, quantity: Quantity) -> Option<Stats> {
        self.quotient(quantity, |round| &round.spin)
    }

    /// The same, compared with a guest that sends ordinary frames.
    pub fn against_busy(&self, quantity: Quantity) -> Option<Stats> {
        self.quotient(quantity, |round| &round.busy)
    }

    /// Statistics of the rounds' quotients. The two samples of a round lie seconds apart; those of different rounds lie minutes apart,
    /// and the machine changes meanwhile.
    fn quotient(&self, quantity: Quantity, base: impl Fn(&Round) -> &Sample) -> Option<Stats> {
        self.stats(|round| quantity.of(&round.attack) / quantity.of(base(round)))
    }

    /// The verdict on a quantity. It holds weakly if the rule holds only in comparison with a process or a guest that
    /// takes its fair share of the CPUs.
    pub fn verdict(&self, quantity: Quantity) -> Verdict {
        if self.failure.is_some() {
            return Verdict::DoesNotHold;
        }
        if self.rounds.iter().any(|round| round.attack.operations == 0) {
            return Verdict::CannotBeTold;
        }
        if quantity == Quantity::Latest {
            return self.verdict_on_latest();
        }
        let rule = quantity.rule();
        let judge = |quotient: Option<Stats>| rule.of(quotient.map(|quotient| quotient.median));
        match judge(self.against_idle(quantity)) {
            Verdict::DoesNotHold if self.is_a_fair_share(quantity) => Verdict::HoldsWeakly,
            verdict => verdict,
        }
    }

    /// The verdict over all rounds, because one late round trip is one too many. It holds weakly if one was as late
    /// without the attack: then the machine itself is that late.
    fn verdict_on_latest(&self) -> Verdict {
        let attack = self.latest(|round| &round.attack);
        let others: [fn(&Round) -> &Sample; 3] =
            [|round| &round.idle, |round| &round.spin, |round| &round.busy];
        match LATEST.of(attack) {
            Verdict::DoesNotHold if others.into_iter().any(|of| self.latest(of) >= attack) => {
                Verdict::HoldsWeakly
            }
            verdict => verdict,
        }
    }

    /// Whether a fair share of the CPUs explains the attack's effect: a process that takes as much CPU time without
    /// attacking has nearly the same effect, or a guest that uses its share of the worker for ordinary frames.
    fn is_a_fair_share(&self, quantity: Quantity) -> bool {
        let harmless = [self.against_spin(quantity), self.against_busy(quantity)];
        self.median(|round| round.attack.cost(&round.idle)).is_some_and(|cpus| cpus >= NO_CPU)
            && harmless
                .into_iter()
                .flatten()
                .any(|quotient| quantity.rule().of(Some(quotient.median)) == Verdict::Holds)
    }

    /// The document's rows: all quantities beside the idle guest, the spinning one and the busy one, and during the
    /// attack. Only the last have a ratio and a verdict.
    pub fn rows(&self) -> Vec<Row> {
        Quantity::ALL.into_iter().flat_map(|quantity| self.rows_of(quantity)).collect()
    }

    fn rows_of(&self, quantity: Quantity) -> Vec<Row> {
        let (name, unit) = quantity.name();
        let victims = match self.victims {
            GuestKind::Netif => "",
            GuestKind::Virtio => "-virtio-victims",
        };
        let idle = format!("{}-{}w{victims}-{name}", self.class, self.workers);
        let row = |suffix: &str, of: fn(&Round) -> &Sample| {
            let stats = self.stats(|round| quantity.of(of(round)))?;
            let row = Row::new(format!("{idle}{suffix}"), unit, stats)
                .with("victims", self.victims.name())
                .with("hostile_cpus", self.median(|round| of(round).hostile))
                .with("daemon_cpus", self.median(|round| of(round).daemon))
                .with("operations", self.median(|round| of(round).operations as f64))
                .with("failures", self.median(|round| of(round).failures as f64));
            Some(row)
        };
        let attack = row("+attack", |round| &round.attack).map(|mut row| {
            if let Some(quotient) = self.against_idle(quantity) {
                row.ratio = Some(Ratio { to: idle.clone(), value: quotient.median });
                row = row.with("ratio_min", quotient.min).with("ratio_max", quotient.max);
            }
            let median = |quotient: Option<Stats>| quotient.map(|quotient| quotient.median);
            row.with("ratio_to_spin", median(self.against_spin(quantity)))
                .with("ratio_to_busy", median(self.against_busy(quantity)))
                .with("rule", quantity.rule_in_words())
                .with("verdict", self.verdict(quantity).words())
                .with("ended_by", self.failure.clone())
        });
        let harmless = [row("+spin", |round| &round.spin), row("+busy", |round| &round.busy)];
        [row("", |round| &round.idle)]
            .into_iter()
            .chain(harmless)
            .chain([attack])
            .flatten()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(mbps: f64, hostile: f64) -> Sample {
        Sample {
            mbps,
            p99: 100.0,
            latest: 200.0,
            daemon: 0.5,
            hostile,
            operations: 1,
            failures: 0,
            no_stream: None,
        }
    }

    fn outcome(idle: f64, attack: f64, spin: f64) -> Outcome {
        let round = |factor: f64| Round {
            idle: sample(idle * factor, 0.0),
            attack: sample(attack * factor, 0.9),
            spin: sample(spin * factor, 0.9),
            busy: sample(1000.0 * factor, 0.9),
        };
        let rounds = [1.0, 0.5, 2.0].map(round).to_vec();
        Outcome { rounds, ..Outcome::new(Class::EventStorm, GuestKind::Netif, 1) }
    }

    #[test]
    fn a_verdict_says_what_the_cpu_explains() {
        let verdict = |outcome: &Outcome| outcome.verdict(Quantity::Throughput);
        assert_eq!(verdict(&outcome(1000.0, 950.0, 900.0)), Verdict::Holds);
        assert_eq!(verdict(&outcome(1000.0, 600.0, 620.0)), Verdict::HoldsWeakly);
        assert_eq!(verdict(&outcome(1000.0, 600.0, 990.0)), Verdict::DoesNotHold);
        let mut beside_busy = outcome(1000.0, 600.0, 990.0);
        beside_busy.rounds.iter_mut().for_each(|round| round.busy = round.attack.clone());
        assert_eq!(verdict(&beside_busy), Verdict::HoldsWeakly);
        assert_eq!(outcome(1000.0, 600.0, 990.0).verdict(Quantity::RoundTrip), Verdict::Holds);
    }

    #[test]
    fn one_late_round_trip_is_too_many_unless_the_machine_is_as_late() {
        let verdict = |outcome: &Outcome| outcome.verdict(Quantity::Latest);
        let mut late = outcome(1000.0, 1000.0, 1000.0);
        late.rounds[1].attack.latest = 50_000.0;
        assert_eq!(verdict(&late), Verdict::Holds);
        late.rounds[1].attack.latest = 50_001.0;
        assert_eq!(verdict(&late), Verdict::DoesNotHold);
        assert_eq!(late.verdict(Quantity::RoundTrip), Verdict::Holds);
        late.rounds[0].busy.latest = 50_000.5;
        assert_eq!(verdict(&late), Verdict::DoesNotHold);
        late.rounds[0].busy.latest = 50_001.0;
        assert_eq!(verdict(&late), Verdict::HoldsWeakly);
        let row = late.rows().pop().unwrap();
        assert_eq!((&*row.name, row.stats.max), ("event-storm-1w-rtt-latest+attack", 50_001.0));
        assert_eq!(row.extra["verdict"], "holds weakly");
    }

    #[test]
    fn an_attack_without_an_operation_proves_nothing() {
        let mut idle = outcome(1000.0, 1000.0, 1000.0);
        idle.rounds[1].attack.operations = 0;
        assert_eq!(idle.verdict(Quantity::Throughput), Verdict::CannotBeTold);
    }

    #[test]
    fn a_failure_is_no_isolation() {
        let failed = Outcome { failure: Some("x".into()), ..outcome(1000.0, 1000.0, 1000.0) };
        assert_eq!(failed.verdict(Quantity::Throughput), Verdict::DoesNotHold);
    }

    #[test]
    fn rows_have_the_median_and_the_extremes_of_the_rounds_ratios() {
        let mut outcome = outcome(1000.0, 500.0, 1000.0);
        outcome.rounds[0].attack.mbps = 100.0;
        let rows = outcome.rows();
        let names: Vec<_> = rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(
            names[..4],
            ["", "+spin", "+busy", "+attack"].map(|of| format!("event-storm-1w-tcp{of}"))
        );
        let attack = &rows[3];
        // The rounds' quotients are 0.1, 0.5 and 0.5; the medians are 1000 and 250.
        assert_eq!(attack.ratio.as_ref().map(|ratio| ratio.value), Some(0.5));
        assert_eq!(attack.extra["ratio_min"], 0.1);
        assert_eq!(attack.extra["ratio_max"], 0.5);
        assert_eq!(attack.extra["verdict"], "does not hold");
        assert_eq!(attack.extra["victims"], "netif");
        outcome.victims = GuestKind::Virtio;
        let row = &outcome.rows()[0];
        assert_eq!(
            (&*row.name, &row.extra["victims"]),
            ("event-storm-1w-virtio-victims-tcp", &"virtio".into())
        );
    }
}

//! The measurements for each number of guests, and the verdicts.

use report::html::{LineChart, Report};
use report::{Benchmark, Ratio, Row, Rule, Samples, Stats, Table, Verdict, human};

use super::group::Attached;

/// An idle daemon uses no measurable CPU: at most half a per cent of one, for 64 guests or fewer.
const IDLE: Rule = Rule::AtMost(0.5, 0.5);
const IDLE_GUESTS: u16 = 64;
/// Up to 24 guests that send at once are served evenly, and together nearly as fast as the first number of guests.
const FAIRNESS: Rule = Rule::AtLeast(0.95, 0.95);
const AGGREGATE: Rule = Rule::AtLeast(0.9, 0.9);
const SENDING_GUESTS: u16 = 24;

/// The measurements for one number of guests.
#[derive(Debug)]
pub struct Point {
    /// How many guests.
    pub guests: u16,
    /// The cost of attaching them, or why that failed.
    pub attached: Result<Attached, String>,
    /// The daemon's CPU while they are idle, in per cent of one.
    pub idle: Samples,
    /// Millions of frames per second while all send.
    pub mpps: Samples,
    /// Jain's fairness index of the guests' frames while all send.
    pub jain: Samples,
}

/// The points, from few guests to many.
#[derive(Debug)]
pub struct Curve(pub Vec<Point>);

impl Point {
    /// Nothing measured yet.
    pub fn new(guests: u16, attached: Result<Attached, String>) -> Self {
        let [idle, mpps, jain] = [(); 3].map(|()| Samples::new());
        Self { guests, attached, idle, mpps, jain }
    }

    /// The verdicts for this number of guests, by name.
    fn verdicts(&self, to_first: Option<f64>) -> Vec<(&'static str, Verdict)> {
        let median = |samples: &Samples| samples.stats().map(|stats| stats.median);
        let attached = if self.attached.is_ok() { Verdict::Holds } else { Verdict::DoesNotHold };
        let mut verdicts = vec![("attach", attached)];
        if self.attached.is_err() {
            return verdicts;
        }
        if self.guests <= IDLE_GUESTS {
            verdicts.push(("idle", IDLE.of(median(&self.idle))));
        }
        if self.guests <= SENDING_GUESTS {
            verdicts.push(("fairness", FAIRNESS.of(median(&self.jain))));
            verdicts.push(("aggregate", AGGREGATE.of(to_first)));
        }
        verdicts
    }
}

impl Curve {
    /// A point's frames per second as a part of the first point's.
    fn to_first(&self, point: &Point) -> Option<f64> {
        let median = |point: &Point| point.mpps.stats().map(|stats| stats.median);
        Some(median(point)? / median(self.0.first()?)?)
    }

    /// The document.
    pub fn benchmark(&self) -> Benchmark {
        let mut benchmark = Benchmark::new("scale");
        for point in &self.0 {
            let once = |value: f64| Some(Stats::single(value));
            let attached = point.attached.as_ref().ok();
            let rows = [
                ("attach", "ms", attached.and_then(|a| once(a.milliseconds))),
                ("daemon-memory", "KiB", attached.and_then(|a| once(a.daemon_kib))),
                ("guest-memory", "KiB", attached.and_then(|a| once(a.memory_kib))),
                ("idle-cpu", "%", point.idle.stats()),
                ("frames", "Mpps", point.mpps.stats()),
                ("fairness", "Jain's index", point.jain.stats()),
            ];
            let verdicts = point.verdicts(self.to_first(point));
            for (name, unit, stats) in rows {
                let Some(stats) = stats else { continue };
                let mut row = Row::new(format!("{name}-{}", point.guests), unit, stats);
                if let (true, Some(value)) = (name == "frames", self.to_first(point)) {
                    let to = format!("frames-{}", self.0[0].guests);
                    row.ratio = Some(Ratio { to, value });
                }
                let rule = if name == "idle-cpu" { "idle" } else { name };
                let rule = if name == "frames" { "aggregate" } else { rule };
                if let Some((_, verdict)) = verdicts.iter().find(|(of, _)| *of == rule) {
                    row = row.with("verdict", verdict.words());
                }
                benchmark.rows.push(row);
            }
        }
        benchmark
    }

    /// A row for each number of guests.
    pub fn table(&self) -> Table {
        let table = Table::new().right("guests").right("attach ms each");
        let table = table.right("daemon KiB each").right("own memory KiB each").right("idle CPU %");
        let table = table.right("Mpps, all send").right("to the first").right("Jain's index");
        self.0.iter().fold(table.left("verdict"), |mut table, point| {
            table.row(self.cells(point));
            table
        })
    }

    fn cells(&self, point: &Point) -> [String; 9] {
        let attached = point.attached.as_ref().ok();
        let number = |value: Option<f64>| value.map_or(String::new(), human);
        let spread = |samples: &Samples| samples.stats().map_or(String::new(), |s| s.spread());
        let fails = point.verdicts(self.to_first(point)).into_iter();
        let fails = fails.filter(|(_, verdict)| *verdict != Verdict::Holds);
        let fails: Vec<_> =
            fails.map(|(name, verdict)| format!("{name} {}", verdict.words())).collect();
        let verdict = match (&point.attached, fails.as_slice()) {
            (Err(error), _) => error.clone(),
            (Ok(_), []) => Verdict::Holds.words().to_owned(),
            (Ok(_), fails) => fails.join(", "),
        };
        [
            point.guests.to_string(),
            number(attached.map(|attached| attached.milliseconds)),
            number(attached.map(|attached| attached.daemon_kib)),
            number(attached.map(|attached| attached.memory_kib)),
            spread(&point.idle),
            spread(&point.mpps),
            number(self.to_first(point)),
            spread(&point.jain),
            verdict,
        ]
    }

    /// The page.
    pub fn page(&self, benchmark: &Benchmark) -> Report {
        let mut page = Report::new("pvnet-lab bench scale");
        page.lead("Guests without a kernel stack, each of which sends to the next one.");
        page.paragraph(&rules()).table("", &self.table());
        for (title, unit, of) in [
            (
                "The daemon's CPU while all are idle",
                "%",
                (|point| &point.idle) as fn(&Point) -> &Samples,
            ),
            ("Frames per second while all send", "Mpps", |point| &point.mpps),
            ("Jain's index", "1", |point| &point.jain),
        ] {
            let points = self
                .0
                .iter()
                .filter_map(|point| Some((f64::from(point.guests), of(point).stats()?.median)));
            let chart = LineChart::new(title, "guests", unit).line(title, points);
            page.figure(&chart, "Medians of the rounds.");
        }
        page.machine(&benchmark.machine);
        page
    }
}

/// The rules, in a sentence.
pub fn rules() -> String {
    let times = report::Unit::Times;
    format!(
        "A guest's own memory is what its memory file takes; the daemon's is its private part. Wanted: all \
         guests attach; idle CPU of at most 0.5 % up to {IDLE_GUESTS} guests; up to {SENDING_GUESTS} \
         guests, Jain's index {} and the aggregate {} of the first row's.",
        FAIRNESS.words(times),
        AGGREGATE.words(times)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(guests: u16, mpps: f64, jain: f64) -> Point {
        let attached = Attached { milliseconds: 2.0, daemon_kib: 30.0, memory_kib: 2500.0 };
        let mut point = Point::new(guests, Ok(attached));
        point.idle.push(0.1);
        point.mpps.push(mpps);
        point.jain.push(jain);
        point
    }

    #[test]
    fn verdicts_name_what_does_not_hold() {
        let mut curve = Curve(vec![point(2, 8.0, 1.0), point(24, 6.0, 0.9), point(64, 1.0, 0.5)]);
        curve.0.push(Point::new(256, Err("no descriptors".to_owned())));
        let table = curve.table();
        let last: Vec<_> = table.rows().iter().map(|row| row[8].as_str()).collect();
        let unfair = "fairness does not hold, aggregate does not hold";
        assert_eq!(last, ["holds", unfair, "holds", "no descriptors"]);
    }

    #[test]
    fn rows_compare_with_the_first() {
        let benchmark = Curve(vec![point(2, 8.0, 1.0), point(24, 6.0, 0.9)]).benchmark();
        let row = benchmark.row("frames-24").unwrap();
        assert_eq!(row.ratio.as_ref().map(|ratio| ratio.value), Some(0.75));
        assert_eq!(row.extra["verdict"], "does not hold");
        assert_eq!(benchmark.row("idle-cpu-24").unwrap().extra["verdict"], "holds");
    }
}

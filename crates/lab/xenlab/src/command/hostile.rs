//! `pvnet-lab xen hostile`: a guest that attacks its backend.

use std::path::PathBuf;

use crate::scenario::{self, AttackTestbed, Baseline, Class, Echoes, Resources, Row};
use crate::{Host, Result};
use clap::Args;
use document::Document;
use lab::Progress;
use report::{Machine, Table};
use schemars::JsonSchema;
use serde::Serialize;

use super::args::{LabArgs, built};

/// Its arguments.
#[derive(Args)]
pub struct HostileArgs {
    /// Run only this attack; repeatable [default: all]. The program hostile lists them with `--list`.
    #[arg(long, value_name = "CLASS", hide_possible_values = true)]
    only: Vec<Class>,
    /// Duration of each repeating attack, in seconds.
    #[arg(long, value_name = "N", default_value_t = 2)]
    seconds: u64,
    /// How often the tests for leaks open and close a connection, and plug and unplug an interface.
    #[arg(long, value_name = "N", default_value_t = 100)]
    cycles: u32,
    /// The program hostile [default: the one beside this program].
    #[arg(long, value_name = "FILE")]
    hostile: Option<PathBuf>,
    #[command(flatten)]
    lab: LabArgs,
}

/// Progress steps besides the attacks and the quiet periods.
const STEPS: usize = 8;
/// The least share of CPU time that a program of dom0 gets beside pvnet while a guest floods. With pvnet's nice value of -5 it gets a quarter, with
/// -10 a tenth.
const SHARE_MIN: f64 = 0.17;
/// The number of periods without an attack, for comparison.
const QUIET: usize = 3;

/// The JSON document.
#[derive(JsonSchema, Serialize)]
pub struct HostileDocument<'a> {
    bench: &'static str,
    machine: Machine,
    rows: &'a [Row],
    /// The victim without an attack.
    baseline: &'a Baseline,
    /// What the daemon held before and after the attacks, and what the last daemon held after the restarts.
    held: [Resources; 3],
    leaks: &'a [String],
    /// A program's share of the CPU time that it and pvnet use in dom0 while a guest floods.
    share_beside_flood: f64,
}

impl Document for HostileDocument<'_> {
    const SCHEMA: &'static str = "lab-hostile/1";
}

/// Runs the attacks. Returns whether only the attacker suffered.
pub fn run(args: &HostileArgs) -> Result<bool> {
    let classes = if args.only.is_empty() { Class::all() } else { &args.only };
    let mut options = args.lab.options()?;
    options.files.push(built(args.hostile.as_ref(), "hostile")?);
    let images = args.lab.boot.build.images()?;
    let progress = args.lab.progress(STEPS + QUIET + classes.len());
    progress.step("boot Xen and dom0");
    let host = Host::boot(&images, &options)?;
    let mut testbed = AttackTestbed::new(&host, &progress)?;
    let before = testbed.resources()?;
    let baseline = baseline(&testbed, &progress)?;
    let mut rows = Vec::new();
    let attacks = |restart| classes.iter().filter(move |class| class.needs_restart() == restart);
    for class in attacks(false) {
        progress.step(class.to_string());
        let row = testbed.attack(*class, args.seconds, args.cycles, &baseline)?;
        progress.done(&row.complaints.join("; "));
        rows.push(row);
    }
    progress.step(format!("plug and unplug an interface, {} times", args.cycles));
    testbed.plug(args.cycles)?;
    progress.step("a program of dom0 beside a flood");
    let share = testbed.share_beside_flood()?;
    progress.step("check for leaks");
    let after = testbed.resources()?;
    let mut leaks = after.leaks_since(&before);
    // These come last, because they end the daemon that was checked for leaks.
    for class in attacks(true) {
        progress.step(class.to_string());
        let row = testbed.attack_across_restart(*class, &baseline)?;
        progress.done(&row.complaints.join("; "));
        rows.push(row);
    }
    progress.step("check for leaks after the restarts");
    let restarted = testbed.resources()?;
    leaks.extend(restarted.clone().without_memory().leaks_since(&after));
    leaks.extend(Some(testbed.kernels()?).filter(|words| !words.is_empty()));
    progress.finish();
    let held = [before, after, restarted];
    show(&rows, &held, &leaks)?;
    println!("{baseline}");
    println!(
        "a program of dom0 beside a flood: {share:.2} of its time and pvnet's, of at least {SHARE_MIN}"
    );
    let passed = leaks.is_empty() && rows.iter().all(Row::passed) && share >= SHARE_MIN;
    let document = document(&rows, &baseline, held, &leaks, share);
    scenario::write_json(args.lab.json.as_deref(), &document)?;
    Ok(passed)
}

fn document<'a>(
    rows: &'a [Row],
    baseline: &'a Baseline,
    held: [Resources; 3],
    leaks: &'a [String],
    share_beside_flood: f64,
) -> HostileDocument<'a> {
    HostileDocument {
        bench: "xen-hostile",
        machine: Machine::detect(),
        rows,
        baseline,
        held,
        leaks,
        share_beside_flood,
    }
}

/// The victim's replies in several quiet periods.
fn baseline(testbed: &AttackTestbed, progress: &Progress) -> Result<Baseline> {
    let quiet = (1..=QUIET).map(|period| {
        progress.step(format!("no attack, period {period} of {QUIET}"));
        testbed.quiet()
    });
    quiet.collect::<Result<_>>().map(Baseline::new)
}

fn show(rows: &[Row], held: &[Resources; 3], leaks: &[String]) -> Result<()> {
    let table = Table::new().left("attack").left("advisories").left("expected").left("seen");
    let table = table.right("victim's echoes").right("90 % within ms").right("longest ms").left("");
    let table = rows.iter().fold(table, |mut table, row| {
        let Echoes { answered, asked, p90_ms, longest_ms } = row.victim;
        table.row([
            row.class.to_string(),
            row.advisories.clone(),
            row.expected.clone(),
            row.seen(),
            format!("{answered}/{asked}"),
            format!("{p90_ms:.0}"),
            format!("{longest_ms:.0}"),
            if row.passed() { "ok" } else { "FAILED" }.to_owned(),
        ]);
        table
    });
    scenario::print(&table)?;
    let [before, after, restarted] = held;
    println!(
        "\nheld before:         {before}\nheld after:          {after}\nheld after restarts: {restarted}"
    );
    for row in rows {
        for complaint in &row.complaints {
            println!("{}: {complaint}", row.class);
        }
    }
    for leak in leaks {
        println!("leak: {leak}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::scenario::{PortSummary, Report};
    use control_socket::Reason;

    use super::*;

    #[test]
    fn the_document_is_as_its_schema_says() {
        let class = Class::all()[0];
        let victim = Echoes { answered: 20, asked: 21, p90_ms: 1.5, longest_ms: 3.0 };
        let port = PortSummary {
            name: "hostile".to_owned(),
            state: "down".to_owned(),
            reason: Some(Reason::Disabled("req_prod 1".to_owned())),
            drops: [("malformed".to_owned(), 1)].into(),
        };
        let row = Row {
            class,
            advisories: class.advisories(),
            expected: "down".to_owned(),
            report: Report { failure: Some("none".to_owned()), ..Report::new(class) },
            port,
            victim,
            complaints: vec!["late".to_owned()],
        };
        let (rows, baseline) = ([row], Baseline::new(vec![victim]));
        let document = document(&rows, &baseline, Default::default(), &[], 0.25);
        document::checked(&document);
    }
}

//! The pairs as a table, a page and JSON.

use std::collections::BTreeMap;

use document::Document;
use report::html::{BarChart, Report, StackedChart};
use report::{Stats, Table, human};
use schemars::JsonSchema;
use serde::Serialize;

use super::cost::{Cost, Counts, DOM0, FunctionCost, Share};
use super::groups::Group;
use super::pairs::{Pair, Unit};

/// Functions that a pair's difference names.
const NAMED: usize = 12;

/// All pairs, for programs.
#[derive(Debug, JsonSchema, Serialize)]
pub struct NetbackData {
    /// What the numbers were made with: a key and a value each.
    pub provenance: Vec<String>,
    /// The pairs.
    pub pairs: Vec<PairData>,
}

impl Document for NetbackData {
    const SCHEMA: &'static str = "pvscope-netback/1";
}

/// A pair.
#[derive(Debug, JsonSchema, Serialize)]
pub struct PairData {
    /// What is carried.
    pub about: String,
    /// What costs are counted for: `byte`, `packet` or `round`.
    pub unit: String,
    /// The costs with xen-netback.
    pub netback: Cost,
    /// The costs with pvnet.
    pub pvnet: Cost,
    /// pvnet's costs ÷ netback's.
    pub ratios: Ratios,
    /// Model cycles by what functions work for, where pvnet has most more first; none where netback's side is of a baseline.
    pub groups: Vec<Group>,
    /// The functions whose model cycles differ most, those that pvnet adds first; none where netback's side is of a baseline.
    pub functions: Vec<Difference>,
}

/// pvnet's costs ÷ netback's; none where netback has none.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Ratios {
    /// Of model cycles.
    pub cycles: Option<f64>,
    /// Of instructions.
    pub instructions: Option<f64>,
    /// Of the model cycles of dom0's kernel and programs.
    pub dom0_cycles: Option<f64>,
}

impl Ratios {
    fn new(netback: &Cost, pvnet: &Cost) -> Self {
        let ratio = |shares: &[Share], of: fn(Counts) -> f64| {
            let (netback, pvnet) = (of(netback.sum(shares)), of(pvnet.sum(shares)));
            (netback > 0.0).then(|| pvnet / netback)
        };
        Self {
            cycles: ratio(&Share::ALL, |counts| counts.cycles),
            instructions: ratio(&Share::ALL, |counts| counts.instructions),
            dom0_cycles: ratio(&DOM0, |counts| counts.cycles),
        }
    }
}

/// A function's model cycles for a unit on both sides.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Difference {
    /// Whose it is: a share's name.
    pub who: String,
    /// The module.
    pub module: String,
    /// The function.
    pub function: String,
    /// The cycles with netback.
    pub netback: f64,
    /// The cycles with pvnet.
    pub pvnet: f64,
}

impl Difference {
    /// pvnet's less netback's.
    pub fn by(&self) -> f64 {
        self.pvnet - self.netback
    }

    /// The functions whose cycles differ most.
    fn all(netback: &[FunctionCost], pvnet: &[FunctionCost]) -> Vec<Self> {
        if netback.is_empty() || pvnet.is_empty() {
            return Vec::new();
        }
        let mut all = BTreeMap::<_, (f64, f64)>::new();
        let key = |of: &FunctionCost| (of.who.clone(), of.module.clone(), of.function.clone());
        netback.iter().for_each(|of| all.entry(key(of)).or_default().0 += of.cycles);
        pvnet.iter().for_each(|of| all.entry(key(of)).or_default().1 += of.cycles);
        let all = all.into_iter().map(|((who, module, function), (netback, pvnet))| Self {
            who,
            module,
            function,
            netback,
            pvnet,
        });
        let mut all: Vec<Self> = all.collect();
        all.sort_by(|a, b| b.by().abs().total_cmp(&a.by().abs()));
        all.truncate(NAMED);
        all.sort_by(|a, b| b.by().total_cmp(&a.by()));
        all
    }
}

impl PairData {
    /// Of a pair's two costs.
    pub fn new(pair: Pair, netback: Cost, pvnet: Cost) -> Self {
        Self {
            about: pair.about.to_owned(),
            unit: pair.unit.name().to_owned(),
            ratios: Ratios::new(&netback, &pvnet),
            groups: Group::all(&netback.functions, &pvnet.functions),
            functions: Difference::all(&netback.functions, &pvnet.functions),
            netback,
            pvnet,
        }
    }

    /// The two sides with their names.
    fn sides(&self) -> [(&'static str, &Cost); 2] {
        [("netback", &self.netback), ("pvnet", &self.pvnet)]
    }

    /// Counts of the unit that is shown: a byte's are of a thousand.
    pub fn scale(&self) -> f64 {
        if self.unit == Unit::Byte.name() { 1000.0 } else { 1.0 }
    }

    /// What the counts of tables are for.
    pub fn shown_unit(&self) -> String {
        if self.unit == Unit::Byte.name() { "1000 bytes".to_owned() } else { self.unit.clone() }
    }

    fn title(&self) -> String {
        format!("{}: {}", self.about, self.pvnet.workload)
    }

    /// Both sides by who works, and their events.
    fn details(&self) -> Table {
        let scale = self.scale();
        let table = Table::new().left(format!("for {}", self.shown_unit()));
        let mut table = table.right("netback").right("pvnet").right("pvnet ÷ netback");
        let mut row = |name: String, [netback, pvnet]: [f64; 2]| {
            let ratio = (netback > 0.0).then(|| format!("{:.2}", pvnet / netback));
            let ratio = ratio.unwrap_or_else(|| "–".to_owned());
            table.row([name, human(netback), human(pvnet), ratio]);
        };
        let of = |get: &dyn Fn(&Cost) -> f64| [&self.netback, &self.pvnet].map(get);
        for (what, get) in [
            ("model cycles", (|counts: Counts| counts.cycles) as fn(Counts) -> f64),
            ("instructions", |counts| counts.instructions),
            ("bytes copied", |counts| counts.copied),
        ] {
            for share in Share::ALL {
                let name = format!("{what}: {}", share.name());
                row(name, of(&|cost| get(cost.sum(&[share])) * scale));
            }
            row(format!("{what}: all"), of(&|cost| get(cost.sum(&Share::ALL)) * scale));
        }
        for event in self.netback.events.keys() {
            let count = |cost: &Cost| cost.events.get(event).copied().unwrap_or_default() * scale;
            row(event.replace('-', " "), of(&count));
        }
        row("payload of a frame, bytes".to_owned(), of(&|cost| cost.frame_payload));
        row("acknowledgements for a frame with payload".to_owned(), of(&|cost| cost.acks));
        table
    }

    /// Model cycles by what functions work for.
    fn grouped(&self) -> Table {
        let table =
            Table::new().left("model cycles").right("netback").right("pvnet").right("difference");
        self.groups.iter().fold(table, |mut table, Group { name, netback, pvnet }| {
            let [netback, pvnet] = [netback, pvnet].map(|cycles| cycles * self.scale());
            table.row([name.clone(), human(netback), human(pvnet), signed(pvnet - netback)]);
            table
        })
    }

    /// The functions whose cycles differ most.
    fn differences(&self) -> Table {
        let scale = self.scale();
        let table = Table::new().left("who").left("module").left("function");
        let table = table.right("netback").right("pvnet").right("difference");
        self.functions.iter().fold(table, |mut table, of| {
            table.row([
                of.who.clone(),
                of.module.clone(),
                of.function.clone(),
                human(of.netback * scale),
                human(of.pvnet * scale),
                signed(of.by() * scale),
            ]);
            table
        })
    }
}

impl NetbackData {
    /// The ratios of all pairs.
    pub fn ratios(&self) -> Table {
        let table = Table::new().left("pair").left("pvnet's side").left("for");
        let table = table.right("netback, cycles").right("pvnet, cycles");
        let table = table.right("cycles ÷").right("instructions ÷").right("dom0's cycles ÷");
        self.pairs.iter().fold(table, |mut table, pair| {
            let ratio = |ratio: Option<f64>| {
                ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"))
            };
            let cycles = |cost: &Cost| human(cost.sum(&Share::ALL).cycles * pair.scale());
            table.row([
                pair.about.clone(),
                pair.pvnet.workload.clone(),
                pair.shown_unit(),
                cycles(&pair.netback),
                cycles(&pair.pvnet),
                ratio(pair.ratios.cycles),
                ratio(pair.ratios.instructions),
                ratio(pair.ratios.dom0_cycles),
            ]);
            table
        })
    }

    /// Everything, for a terminal.
    pub fn text(&self) -> String {
        format!(
            "Stock guests, pvnet's costs ÷ those of the kernel's netback and bridge:\n\n{}",
            self.ratios()
        )
    }

    /// The page.
    pub fn page(&self) -> Report {
        let mut page = Report::new("pvnet beside the kernel's netback");
        page.lead(
            "What a byte, a packet and a round cost on a Xen host with stock guests: instructions and model cycles of everybody but \
             the idle domain.",
        );
        page.table("pvnet's costs ÷ netback's", &self.ratios());
        let chart = BarChart::new("Model cycles", "pvnet ÷ netback");
        let chart = self.pairs.iter().fold(chart, |chart, pair| match pair.ratios.cycles {
            Some(ratio) => chart.bar(pair.title(), Stats::single(ratio)),
            None => chart,
        });
        page.figure(&chart, "Below 1 pvnet is cheaper.");
        for pair in &self.pairs {
            page.section(&pair.title());
            let unit = format!("model cycles for {}", pair.shown_unit());
            let chart = StackedChart::new("Who works", unit, Share::ALL.map(Share::name));
            let chart = pair.sides().into_iter().fold(chart, |chart, (name, cost)| {
                chart.bar(name, Share::ALL.map(|share| cost.sum(&[share]).cycles * pair.scale()))
            });
            page.figure(&chart, "");
            page.table("", &pair.details());
            if !pair.functions.is_empty() {
                page.table("By what functions work for, roughly", &pair.grouped());
                page.table("The functions whose cycles differ most", &pair.differences());
            }
        }
        self.provenance.iter().for_each(|line| {
            page.paragraph(line);
        });
        page
    }
}

pub fn signed(difference: f64) -> String {
    let sign = if difference > 0.0 { "+" } else { "" };
    format!("{sign}{}", human(difference))
}

#[cfg(test)]
pub mod tests {
    use super::super::pairs::PAIRS;
    use super::*;

    pub fn data() -> NetbackData {
        let pair = PAIRS[0];
        let cost = |name| super::super::cost::tests::cost(name, pair.unit);
        let mut pvnet = cost(pair.pvnet);
        for share in DOM0 {
            pvnet.shares.get_mut(share.name()).unwrap().cycles *= 2.0;
        }
        let mut added = pvnet.functions[0].clone();
        added.function = "added".to_owned();
        pvnet.functions.push(added);
        NetbackData {
            provenance: vec!["kernel x".to_owned()],
            pairs: vec![PairData::new(pair, cost(pair.netback), pvnet)],
        }
    }

    #[test]
    fn ratios_are_pvnets_by_netbacks() {
        let data = data();
        let ratios = data.pairs[0].ratios;
        assert_eq!((ratios.instructions, ratios.dom0_cycles), (Some(1.0), Some(2.0)));
        assert!(ratios.cycles.is_some_and(|ratio| ratio > 1.0 && ratio < 2.0));
        assert_eq!(data.pairs[0].functions[0].function, "added");
        let row = &data.ratios().rows()[0].clone();
        assert_eq!(row[1], "tx-pvnet");
        assert_eq!(row[7], "2.00");
    }

    #[test]
    fn page_text_and_document_have_every_pair() {
        let data = data();
        document::checked(&data);
        for text in [data.page().to_html(), data.text()] {
            assert!(text.contains("tx-pvnet"), "{text}");
        }
        assert!(data.page().to_html().contains("added"));
    }
}

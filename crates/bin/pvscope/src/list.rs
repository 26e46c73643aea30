//! `pvscope list`: what can be profiled.

use ::report::Table;
use clap::Args;
use document::Document;
use schemars::JsonSchema;
use serde::Serialize;

use crate::custom;
use crate::error::Result;
use crate::report::{json, show};
use crate::workload::Workload;

/// Arguments of `pvscope list`.
#[derive(Args)]
pub struct ListArgs {
    /// Print a JSON document instead.
    #[arg(long)]
    json: bool,
}

/// What can be profiled, for programs.
#[derive(JsonSchema, Serialize)]
pub struct ListData {
    /// The workloads of pvscope.
    workloads: Vec<Entry>,
    /// The forms of a machine of your own.
    custom: Vec<Entry>,
}

/// What `pvscope run` takes.
#[derive(JsonSchema, Serialize)]
struct Entry {
    /// The first word, or words, of the command line after `pvscope run`.
    name: &'static str,
    /// What it is.
    about: String,
}

impl Document for ListData {
    const SCHEMA: &'static str = "pvscope-list/1";
}

impl ListData {
    fn new() -> Self {
        let workloads = Workload::ALL.into_iter();
        let custom = custom::FORMS.into_iter();
        Self {
            workloads: workloads
                .map(|workload| Entry { name: workload.name, about: workload.describe() })
                .collect(),
            custom: custom.map(|(name, about)| Entry { name, about: about.to_owned() }).collect(),
        }
    }

    fn text(&self) -> String {
        let table = Table::new().left("workload").left("what it is");
        let entries = self.workloads.iter().chain(&self.custom);
        let table = entries.fold(table, |mut table, Entry { name, about }| {
            table.row([(*name).to_owned(), about.clone()]);
            table
        });
        table.render(false)
    }
}

/// Runs the command.
pub fn run(args: &ListArgs) -> Result<()> {
    let data = ListData::new();
    show(&if args.json { json(&data)? } else { data.text() })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn both_forms_have_every_workload_and_the_forms_of_ones_own() {
        let data = ListData::new();
        let value = document::checked(&data);
        let names = |list: &str| -> Vec<String> {
            let entries = value[list].as_array().unwrap().iter();
            entries.map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names("workloads"), Workload::ALL.map(|workload| workload.name));
        let described: BTreeSet<_> = Workload::ALL.map(Workload::describe).into();
        assert!(described.len() == Workload::ALL.len() && !described.contains(""), "{described:?}");
        assert_eq!(names("custom"), custom::FORMS.map(|(name, _)| name));
        let text = data.text();
        for name in names("workloads").iter().chain(&names("custom")) {
            assert!(text.contains(name), "{name}: {text}");
        }
    }
}

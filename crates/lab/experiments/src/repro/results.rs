//! Writes an experiment's results: to the terminal, as JSON, as a page and as Markdown.

use std::path::PathBuf;

use clap::Args;
use document::Document;
use report::html::Report;
use report::{Stats, Table, human, write_atomic};

use crate::error::{Error, Result};
use crate::output;

/// Options of all experiments.
#[derive(Args)]
pub struct Results {
    /// Write the rows to FILE as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the tables and figures to FILE as a page with plots.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the tables to FILE as Markdown.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Show no progress on standard error.
    #[arg(long, short)]
    pub quiet: bool,
}

/// A part of what is printed.
#[derive(Debug)]
pub struct Section {
    /// Its heading.
    pub title: String,
    /// Its table, if it has one.
    pub table: Option<Table>,
    /// Remarks that a reader needs.
    pub remarks: Vec<String>,
}

impl Section {
    /// A table without remarks.
    pub fn table(title: impl Into<String>, table: Table) -> Self {
        Self { title: title.into(), table: Some(table), remarks: Vec::new() }
    }

    /// Remarks without a table.
    pub fn remarks(title: impl Into<String>, remarks: Vec<String>) -> Self {
        Self { title: title.into(), table: None, remarks }
    }

    fn print(&self) -> Result<()> {
        output::print(&format!("\n{}\n", self.title))?;
        self.table.iter().try_for_each(|table| table.print().map_err(Error::Print))?;
        self.remarks.iter().try_for_each(|remark| output::print(&format!("{remark}\n")))
    }

    fn markdown(&self) -> String {
        let table = self.table.as_ref().map(|table| table.markdown() + "\n").unwrap_or_default();
        let remarks = self.remarks.iter().map(|remark| format!("- {remark}\n"));
        format!("## {}\n\n{table}{}\n", self.title, remarks.collect::<String>())
    }
}

/// A number in a table, or nothing.
pub fn number(value: Option<f64>) -> String {
    value.map_or_else(String::new, human)
}

/// Statistics in a table, or nothing.
pub fn spread(stats: Option<Stats>) -> String {
    stats.map_or_else(String::new, |stats| stats.spread())
}

impl Results {
    /// Checks that the files can be written, before minutes of measuring.
    pub fn prepare(&self) -> Result<()> {
        let files = self.json.iter().chain(&self.html).chain(&self.markdown);
        files.into_iter().try_for_each(|file| output::prepare(file))
    }

    /// Prints the result and writes the files. The error says how many measurements failed, if some did.
    pub fn write(
        &self,
        document: &impl Document,
        sections: &[Section],
        page: impl FnOnce() -> Report,
        failures: usize,
    ) -> Result<()> {
        sections.iter().try_for_each(Section::print)?;
        if let Some(file) = &self.json {
            output::write_json(file, document)?;
        }
        if let Some(file) = &self.markdown {
            let text: String = sections.iter().map(Section::markdown).collect();
            write_atomic(file, text.as_bytes())?;
        }
        if let Some(file) = &self.html {
            page().write(file)?;
        }
        match failures {
            0 => Ok(()),
            n => Err(Error::Failed(format!("{n} of the measurements failed; their rows say why"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_a_table_and_remarks() {
        let mut table = Table::new().left("line");
        table.row(["direct"]);
        let mut section = Section::table("Figure 8", table);
        section.remarks.push("a remark".to_owned());
        assert_eq!(
            section.markdown(),
            "## Figure 8\n\n| line |\n| --- |\n| direct |\n\n- a remark\n\n"
        );
        assert_eq!(Section::remarks("Notes", Vec::new()).markdown(), "## Notes\n\n\n");
    }
}

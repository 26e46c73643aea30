//! The page itself: sections of text, tables and figures.

use super::{Chart, escape};
use crate::{Align, Error, Machine, Table, file};
use std::fmt::Write as _;
use std::path::Path;

/// Inlined, so that the page is one file.
const STYLE: &str = include_str!("style.css");

/// A table of more columns does not fit beside the text.
const WIDE: usize = 7;

/// A page under construction, written from top to bottom. All text is escaped.
#[derive(Clone, Debug)]
pub struct Report {
    title: String,
    body: String,
    figures: usize,
    footer: Option<String>,
}

impl Report {
    /// A page with a title and nothing else.
    #[must_use]
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), body: String::new(), figures: 0, footer: None }
    }

    /// Adds the sentence or two that say the most important thing, in larger type.
    pub fn lead(&mut self, text: &str) -> &mut Self {
        self.block("<p class=\"lead\">", text, "</p>")
    }

    /// Adds headline numbers side by side, each `(number with unit, what it is)`.
    pub fn facts<'a>(&mut self, facts: impl IntoIterator<Item = (&'a str, &'a str)>) -> &mut Self {
        self.body.push_str("<dl class=\"facts\">\n");
        for (number, meaning) in facts {
            let (number, meaning) = (escape(number), escape(meaning));
            let _ = writeln!(self.body, "<div><dt>{meaning}</dt><dd>{number}</dd></div>");
        }
        self.body.push_str("</dl>\n");
        self
    }

    /// Begins a section.
    pub fn section(&mut self, heading: &str) -> &mut Self {
        self.block("<h2>", heading, "</h2>")
    }

    /// Adds a paragraph.
    pub fn paragraph(&mut self, text: &str) -> &mut Self {
        self.block("<p>", text, "</p>")
    }

    /// Adds a paragraph that begins with its result, in bold.
    pub fn point(&mut self, result: &str, text: &str) -> &mut Self {
        let open = format!("<p><strong>{}</strong> ", escape(result));
        self.block(&open, text, "</p>")
    }

    /// Adds a table under its caption.
    pub fn table(&mut self, caption: &str, table: &Table) -> &mut Self {
        self.body.push_str(&table_html(caption, table));
        self
    }

    /// Adds a chart with its title above, what to see in it below, and its numbers folded away under both.
    pub fn figure(&mut self, chart: &dyn Chart, caption: &str) -> &mut Self {
        self.figures += 1;
        let id = format!("figure-{}", self.figures);
        let (title, caption) = (escape(chart.title()), escape(caption));
        let (svg, data) = (chart.svg(&id), table_html("", &chart.data()));
        let _ = write!(
            self.body,
            "<figure>\n<h3>{title}</h3>\n<div class=\"plot\">\n{svg}</div>\n<figcaption>{caption}</figcaption>\n\
             <details><summary>Numbers</summary>\n{data}</details>\n</figure>\n"
        );
        self
    }

    /// Names, at the foot of the page, where and when it was measured.
    pub fn machine(&mut self, machine: &Machine) -> &mut Self {
        self.footer = Some(machine.summary());
        self
    }

    /// The whole page.
    #[must_use]
    pub fn to_html(&self) -> String {
        let (title, body) = (escape(&self.title), &self.body);
        let footer =
            self.footer.as_deref().map(|text| format!("<footer>{}</footer>\n", escape(text)));
        // The policy holds the page to its promise: no script and no resource from anywhere.
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n\
             </head>\n<body>\n<main>\n<h1>{title}</h1>\n{body}{}</main>\n</body>\n</html>\n",
            footer.unwrap_or_default()
        )
    }

    /// Writes the page to `path` in one step (see [`crate::write_atomic`]).
    ///
    /// # Errors
    /// [`Error::Write`], naming the file and the cause.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        file::write_atomic(path, self.to_html().as_bytes())
    }

    fn block(&mut self, open: &str, text: &str, close: &str) -> &mut Self {
        let _ = writeln!(self.body, "{open}{}{close}", escape(text));
        self
    }
}

fn table_html(caption: &str, table: &Table) -> String {
    let class = |align: Align| if align == Align::Right { " class=\"number\"" } else { "" };
    // Wide tables scroll by themselves, never the page; a keyboard reaches them too.
    let kind = if table.columns().len() > WIDE { "scroll wide" } else { "scroll" };
    let mut html = format!("<div class=\"{kind}\" tabindex=\"0\"><table>\n");
    if !caption.is_empty() {
        let _ = writeln!(html, "<caption>{}</caption>", escape(caption));
    }
    html.push_str("<thead><tr>");
    for (header, align) in table.columns() {
        let _ = write!(html, "<th scope=\"col\"{}>{}</th>", class(*align), escape(header));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in table.rows() {
        html.push_str("<tr>");
        for (cell, (_, align)) in row.iter().zip(table.columns()) {
            let _ = write!(html, "<td{}>{}</td>", class(*align), escape(cell));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody>\n</table></div>\n");
    html
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stats;
    use crate::html::{BarChart, LineChart, StackedChart};

    const HOSTILE: &str = "<script>alert(\"1\")</script>&'";

    /// Every place that takes text, given hostile text.
    fn hostile_page() -> String {
        let mut table = Table::new().left(HOSTILE).right(HOSTILE);
        table.row([HOSTILE, HOSTILE]);
        let bars = BarChart::new(HOSTILE, HOSTILE)
            .series([HOSTILE, HOSTILE])
            .bar(HOSTILE, Stats::single(1.0));
        let stacked =
            StackedChart::new(HOSTILE, HOSTILE, [HOSTILE]).rest(HOSTILE).bar(HOSTILE, [1.0, 2.0]);
        let lines =
            LineChart::new(HOSTILE, HOSTILE, HOSTILE).steps([HOSTILE]).values(HOSTILE, [1.0]);
        let mut report = Report::new(HOSTILE);
        report
            .lead(HOSTILE)
            .facts([(HOSTILE, HOSTILE)])
            .section(HOSTILE)
            .paragraph(HOSTILE)
            .point(HOSTILE, HOSTILE);
        report
            .table(HOSTILE, &table)
            .figure(&bars, HOSTILE)
            .figure(&stacked, HOSTILE)
            .figure(&lines, HOSTILE);
        report.to_html()
    }

    #[test]
    fn no_text_becomes_markup() {
        let page = hostile_page();
        assert!(!page.contains("<script"));
        assert!(!page.contains("alert(\""));
        assert!(page.matches("&lt;script&gt;").count() > 20);
    }

    #[test]
    fn nothing_is_fetched_from_anywhere() {
        let page = hostile_page();
        for outside in ["http:", "https:", "url(", "@import", "src=", "href="] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn elements_are_balanced_and_ids_unique() {
        let page = hostile_page();
        for element in [
            "figure", "svg", "table", "tr", "td", "th", "div", "text", "details", "main", "p", "g",
            "dl", "strong",
        ] {
            let opened = page.matches(&format!("<{element}>")).count()
                + page.matches(&format!("<{element} ")).count();
            assert_eq!(opened, page.matches(&format!("</{element}>")).count(), "{element}");
        }
        let ids: Vec<&str> =
            page.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        let distinct: std::collections::BTreeSet<&str> = ids.iter().copied().collect();
        assert_eq!((ids.len(), distinct.len()), (6, 6), "{ids:?}");
    }

    #[test]
    fn only_tables_of_many_columns_are_wide() {
        let table = |columns: usize| (0..columns).fold(Table::new(), |table, _| table.right("c"));
        let page = |columns| Report::new("t").table("", &table(columns)).to_html();
        assert!(!page(WIDE).contains("scroll wide") && page(WIDE + 1).contains("scroll wide"));
    }

    #[test]
    fn the_foot_names_the_machine() {
        let machine = Machine::detect();
        let page = Report::new("t").machine(&machine).to_html();
        assert!(page.contains(&format!("<footer>{}</footer>", escape(&machine.summary()))));
    }
}

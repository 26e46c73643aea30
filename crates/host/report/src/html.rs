//! Self-contained HTML reports: one file, no script, no external resource.
//!
//! A [`Report`] is written top to bottom like a page; its figures are charts drawn as inline SVG ([`BarChart`],
//! [`StackedChart`], [`LineChart`], [`Timeline`], [`FlameGraph`]). Every figure is followed by its numbers as a table, folded
//! away, so that nothing can be read only by eye or only by colour.

mod bars;
mod flame;
mod lines;
mod page;
mod scale;
mod stacked;
mod svg;
mod timeline;

use crate::Table;

pub use bars::BarChart;
pub use flame::FlameGraph;
pub use lines::LineChart;
pub use page::Report;
pub use stacked::StackedChart;
pub use timeline::Timeline;

/// A drawing that a [`Report`] can show.
pub trait Chart {
    /// What the chart shows, as a heading: short, without a full stop.
    fn title(&self) -> &str;

    /// What a reader who cannot see the drawing should know.
    fn description(&self) -> String;

    /// The numbers that were drawn.
    fn data(&self) -> Table;

    /// The drawing as an `<svg>` element. `id` is unique in the page and begins the ids used inside.
    fn svg(&self, id: &str) -> String;
}

/// `text` with the five characters that HTML gives a meaning replaced, fit for elements and quoted
/// attributes. Control characters that HTML forbids become U+FFFD.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(character),
            _ if character.is_control() => escaped.push('\u{fffd}'),
            _ => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn markup_becomes_text() {
        assert_eq!(
            escape(r#"<a href="x">'&'</a>"#),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;"
        );
        assert_eq!(escape("a\0b\x1b[1m\n\tµs"), "a\u{fffd}b\u{fffd}[1m\n\tµs");
    }

    proptest! {
        #[test]
        fn nothing_that_html_reads_is_left(text in any::<String>()) {
            let escaped = escape(&text);
            prop_assert!(!escaped.contains(['<', '>', '"', '\'']));
            let entities = ["amp;", "lt;", "gt;", "quot;", "#39;"];
            for (at, _) in escaped.match_indices('&') {
                prop_assert!(entities.iter().any(|entity| escaped[at + 1..].starts_with(entity)));
            }
        }
    }
}

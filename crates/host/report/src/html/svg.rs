//! The few SVG elements that the charts are made of, and what all charts share: width, text sizes, legend.
//!
//! Colours are classes, never attributes: the page's style sheet owns them, so a drawing follows
//! light, dark and print.

use super::escape;
use std::fmt::Write as _;

/// The width of every chart, in user units; a page scales it to the column.
pub(super) const WIDTH: f64 = 760.0;
/// The height of a line of text.
pub(super) const LINE: f64 = 20.0;
/// A generous mean width of a character of chart text: there are no font metrics here to ask.
const CHARACTER: f64 = 7.3;
/// How many series colours the style sheet has; further series begin again.
const COLOURS: usize = 6;

/// Where a text's anchor lies.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A drawing under construction.
#[derive(Default)]
pub(super) struct Svg {
    body: String,
}

impl Svg {
    pub(super) fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), class: &str) {
        let _ = writeln!(
            self.body,
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{:.1}" height="{height:.1}"/>"#,
            width.max(0.0)
        );
    }

    pub(super) fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        let _ = writeln!(
            self.body,
            r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#
        );
    }

    /// A path; `d` is built from numbers only.
    pub(super) fn path(&mut self, d: &str, class: &str) {
        let _ = writeln!(self.body, r#"<path class="{class}" d="{d}"/>"#);
    }

    /// Text whose baseline starts, centres or ends at the point.
    pub(super) fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(text);
        let _ = writeln!(
            self.body,
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#
        );
    }

    /// Text shortened to fit into `width`; the whole of it shows when pointed at.
    pub(super) fn label(&mut self, point: (f64, f64), anchor: Anchor, text: &str, width: f64) {
        if text_width(text) <= width {
            return self.text(point, anchor, "label", text);
        }
        let fitting = (1..=text.chars().count())
            .take_while(|count| (*count as f64 + 1.0) * CHARACTER <= width)
            .count();
        let short: String = text.chars().take(fitting.max(1)).chain(['…']).collect();
        self.open_group(text);
        self.text(point, anchor, "label", &short);
        self.close_group();
    }

    /// Begins a group, whose note shows when it is pointed at.
    pub(super) fn open_group(&mut self, note: &str) {
        let _ = writeln!(self.body, "<g><title>{}</title>", escape(note));
    }

    /// Ends a group.
    pub(super) fn close_group(&mut self) {
        self.body.push_str("</g>\n");
    }

    /// The shape that stands for a series on a line or in a legend: shapes differ as well as colours.
    pub(super) fn marker(&mut self, (x, y): (f64, f64), series: usize) {
        let d = match series % 4 {
            0 => format!("M{:.1} {y:.1}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", x - 4.0),
            1 => format!("M{:.1} {:.1}h7v7h-7z", x - 3.5, y - 3.5),
            2 => format!("M{x:.1} {:.1}l4.8 8.4h-9.6z", y - 5.2),
            _ => format!("M{x:.1} {:.1}l5 5l-5 5l-5 -5z", y - 5.0),
        };
        self.path(&d, &format!("marker {}", fill(series)));
    }

    /// A swatch and a name for each series on lines from the top; returns the height used.
    pub(super) fn legend<'a>(
        &mut self,
        entries: impl IntoIterator<Item = (&'a str, String)>,
    ) -> f64 {
        let (mut x, mut y) = (0.0, 0.0);
        for (name, class) in entries {
            let width = 18.0 + text_width(name) + 18.0;
            if x > 0.0 && x + width > WIDTH {
                (x, y) = (0.0, y + LINE);
            }
            self.rect((x, y + 3.0), (12.0, 12.0), &format!("swatch {class}"));
            self.text((x + 18.0, y + 14.0), Anchor::Start, "label", name);
            x += width;
        }
        y + LINE + 10.0
    }

    /// Closes the drawing.
    pub(super) fn finish(self, id: &str, height: f64, title: &str, description: &str) -> String {
        let (id, title, description) = (escape(id), escape(title), escape(description));
        format!(
            "<svg viewBox=\"0 0 {WIDTH:.0} {height:.0}\" role=\"img\" aria-labelledby=\"{id}-title {id}-desc\">\n\
             <title id=\"{id}-title\">{title}</title>\n<desc id=\"{id}-desc\">{description}</desc>\n{}</svg>\n",
            self.body
        )
    }
}

/// The class that fills with a series' colour.
pub(super) fn fill(series: usize) -> String {
    format!("f{}", series % COLOURS)
}

/// The class that strokes with a series' colour.
pub(super) fn stroke(series: usize) -> String {
    format!("s{}", series % COLOURS)
}

/// About how wide a text will be drawn.
pub(super) fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * CHARACTER
}

/// The width of a column that holds the labels, between a least and a most.
pub(super) fn label_column<'a>(labels: impl Iterator<Item = &'a str>) -> f64 {
    labels.map(text_width).fold(0.0, f64::max).clamp(60.0, 250.0) + 14.0
}

//! Self-contained HTML reports: one file, no script, no external resource.
//!
//! A [`Report`] is written top to bottom like a page; its figures are charts drawn as inline SVG ([`BarChart`],
//! [`StackedChart`], [`LineChart`], [`Timeline`], [`FlameGraph`]). Every figure is followed by its numbers as a table, folded
//! away, so that nothing can be read only by eye or only by colour.

mod bars;
mod escape;
mod flame;
mod lines;
mod page;
mod scale;
mod stacked;
mod svg;
mod timeline;

pub use bars::BarChart;
pub use escape::escape;
pub use flame::FlameGraph;
pub use lines::LineChart;
pub use page::Report;
pub use stacked::StackedChart;
pub use timeline::Timeline;

use crate::Table;

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

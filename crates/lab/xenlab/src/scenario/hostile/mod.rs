//! A guest that attacks its backend, and another that must not notice.
//!
//! ```text
//!  dom0: ping ──── pvnet ─┬── xen-netfront   victim
//!                         └── hostile        raw rings, keys and states, one class after another
//! ```

mod class;
mod echoes;
mod expected;
mod holdings;
mod stage;
mod status;

pub use class::{Answers, Class, Report};
pub use echoes::Echoes;
pub use expected::Expected;
pub use holdings::Holdings;
pub use stage::{Row, Stage};
pub use status::{Port, Status};

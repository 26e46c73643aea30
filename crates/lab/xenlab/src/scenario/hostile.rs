//! A guest that attacks its backend, and a second guest that must not suffer.
//!
//! ```text
//!  dom0: ping ──── pvnet ─┬── xen-netfront   victim
//!                         └── hostile        raw rings, keys and states, one attack class after another
//! ```

mod class;
mod echoes;
mod expected;
pub mod phase;
mod resources;
mod restart;
mod status;
mod testbed;

pub use class::{Answers, Class, Report};
pub use echoes::{Baseline, Echoes};
pub use expected::Expected;
pub use resources::Resources;
pub use status::{Port, Status};
pub use testbed::{AttackTestbed, Row};

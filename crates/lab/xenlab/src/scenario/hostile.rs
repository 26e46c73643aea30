//! A guest that attacks its backend, and a second guest that must not suffer.
//!
//! ```text
//!  dom0: ping ──── pvnet ─┬── xen-netfront   victim
//!                         └── hostile        raw rings, keys and states, one attack class after another
//! ```

mod class;
mod echoes;
mod expected;
mod resources;
mod restart;
mod status;
mod testbed;

pub use class::{Answers, Class, Report};
pub use echoes::{Baseline, Echoes};
pub use expected::Expected;
pub use resources::Resources;
pub use status::{PortSummary, Status};
pub use testbed::{AttackTestbed, Row};

/// The signals between the attacker and its host when pvnet is killed and started again in the middle of an attack.
pub mod phase {
    /// The attacker prints this line when it is connected and pvnet may be killed.
    pub const CONNECTED: &str = "connected";
    /// The host creates this file in the attacker's current folder when pvnet is dead.
    pub const KILLED: &str = "killed";
    /// The attacker prints this line when it has forged its memory.
    pub const FORGED: &str = "forged";
    /// The host creates this file in the same folder when the next pvnet runs.
    pub const RESTARTED: &str = "restarted";
}

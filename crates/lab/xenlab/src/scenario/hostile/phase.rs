//! How the attacker and its host take turns when pvnet is killed and started again in the middle of an attack.

/// The attacker prints this line when it is connected and pvnet may be killed.
pub const CONNECTED: &str = "connected";
/// The host creates this file in the attacker's current folder when pvnet is dead.
pub const KILLED: &str = "killed";
/// The attacker prints this line when it has forged its memory.
pub const FORGED: &str = "forged";
/// The host creates this file there when the next pvnet runs.
pub const RESTARTED: &str = "restarted";

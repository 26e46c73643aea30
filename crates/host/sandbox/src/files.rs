//! Files and TCP ports, by Landlock.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath,
    PathFd, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus,
    Scope,
};

/// The newest interface of the kernel that the rules use. An older kernel enforces a part of them.
const NEWEST: ABI = ABI::V6;

/// What a process may still reach. A folder stands for everything under it; what does not exist is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileRules {
    /// Files and folders to read.
    pub read: Vec<PathBuf>,
    /// Files and folders to read, create, write and remove; sockets and devices too.
    pub write: Vec<PathBuf>,
    /// Folders of programs that may be run.
    pub run: Vec<PathBuf>,
    /// TCP ports that may be bound.
    pub bind: Vec<u16>,
}

/// How far the kernel enforces the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// All of them.
    Full,
    /// Those that it knows.
    Partial,
    /// None: it has no Landlock.
    None,
}

/// The kernel has Landlock and refused a rule.
#[derive(Debug, thiserror::Error)]
#[error("landlock: {0}")]
pub struct FileError(#[from] RulesetError);

/// Restricts the calling thread, and the threads and programs that it starts, to these files. Descriptors that are open stay as they are.
/// The thread cannot mount anything, looks into no process but its children, and sends signals only to them.
///
/// # Errors
/// The kernel refused a rule.
pub fn restrict_files(rules: &FileRules) -> Result<Enforcement, FileError> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let write = AccessFs::from_all(NEWEST) & !BitFlags::from(AccessFs::Execute);
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?;
    let ruleset = allow(ruleset, &rules.read, read)?;
    let ruleset = allow(ruleset, &rules.write, write)?;
    let mut ruleset = allow(ruleset, &rules.run, read | AccessFs::Execute)?;
    for port in &rules.bind {
        ruleset = ruleset.add_rule(NetPort::new(*port, AccessNet::BindTcp))?;
    }
    Ok(match ruleset.restrict_self()?.ruleset {
        RulesetStatus::FullyEnforced => Enforcement::Full,
        RulesetStatus::PartiallyEnforced => Enforcement::Partial,
        RulesetStatus::NotEnforced => Enforcement::None,
    })
}

fn allow(
    mut ruleset: RulesetCreated,
    paths: &[PathBuf],
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, FileError> {
    for path in paths {
        // What is not there needs no rule.
        let Ok(fd) = PathFd::new(path) else { continue };
        ruleset = ruleset.add_rule(PathBeneath::new(fd, access & possible(path)))?;
    }
    Ok(ruleset)
}

/// The accesses that a path can have: a file has no entries.
fn possible(path: &Path) -> BitFlags<AccessFs> {
    match path.is_dir() {
        true => AccessFs::from_all(NEWEST),
        false => AccessFs::from_file(NEWEST),
    }
}

//! The dependencies against `deny.toml`, from `cargo metadata`.
//!
//! cargo-deny reads the same file. Only the keys that the project uses are implemented here; an unknown key is an
//! error.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::licence;

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Policy {
    graph: Graph,
    licenses: Licences,
    bans: Bans,
    #[serde(rename = "sources")]
    _sources: Sources,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Graph {
    targets: Vec<String>,
    all_features: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Licences {
    allow: Vec<String>,
    #[serde(rename = "unused-allowed-license")]
    _unused: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Bans {
    multiple_versions: Level,
    wildcards: Level,
    allow_wildcard_paths: bool,
    #[serde(default)]
    skip: Vec<Skip>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Sources {
    #[serde(rename = "unknown-registry")]
    _registry: Deny,
    #[serde(rename = "unknown-git")]
    _git: Deny,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Level {
    Allow,
    Warn,
    Deny,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Deny {
    Deny,
}

/// A version that may stand beside another one of the same crate.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Skip {
    /// `NAME@VERSION`
    #[serde(rename = "crate")]
    package: String,
    #[serde(rename = "reason")]
    _reason: String,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Clone, Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// `None` for a crate of the workspace.
    source: Option<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Clone, Deserialize)]
struct Dependency {
    name: String,
    req: String,
    path: Option<String>,
}

/// The rules that the dependencies of the workspace in `root` break, one line each.
///
/// # Errors
/// `deny.toml` is missing or has keys that are not implemented; cargo fails.
pub fn check(root: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let policy: Policy = toml::from_str(&fs::read_to_string(root.join("deny.toml"))?)?;
    let mut findings = BTreeSet::new();
    for target in &policy.graph.targets {
        let Metadata { packages } = metadata(root, target, policy.graph.all_features)?;
        findings.extend(judge(&policy, &packages));
    }
    Ok(findings.into_iter().collect())
}

/// The packages that are built for `target`, with the fields of `T`. It needs no network if all are in cargo's cache.
///
/// # Errors
/// cargo fails.
pub fn metadata<T: DeserializeOwned>(
    root: &Path,
    target: &str,
    all: bool,
) -> Result<T, Box<dyn Error>> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--locked", "--format-version", "1", "--filter-platform", target])
        .args(all.then_some("--all-features"))
        .current_dir(root)
        .output()?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo metadata failed: {}", why.trim()).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn judge(policy: &Policy, packages: &[Package]) -> Vec<String> {
    let mut findings = Vec::new();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages {
        let Package { name, version, license, source, dependencies } = package;
        match license {
            None => findings.push(format!("{name} {version}: states no licence")),
            Some(terms) if !licence::is_allowed(terms, &policy.licenses.allow) => {
                findings.push(format!("{name} {version}: licence {terms} is not allowed"));
            }
            Some(_) => {}
        }
        if let Some(source) = source.as_deref().filter(|source| *source != CRATES_IO) {
            findings.push(format!("{name} {version}: source {source} is not crates.io"));
        }
        // Published crates cannot have wildcards; those of the workspace could.
        if source.is_none() && policy.bans.wildcards == Level::Deny {
            let loose = dependencies.iter().filter(|dependency| {
                let is_path = dependency.path.is_some() && policy.bans.allow_wildcard_paths;
                dependency.req == "*" && !is_path
            });
            findings.extend(loose.map(|on| format!("{name}: any version of {} will do", on.name)));
        }
        let skipped = format!("{name}@{version}");
        if !policy.bans.skip.iter().any(|skip| skip.package == skipped) {
            versions.entry(name).or_default().insert(version);
        }
    }
    if policy.bans.multiple_versions == Level::Deny {
        let twice = versions.into_iter().filter(|(_, versions)| versions.len() > 1);
        findings.extend(twice.map(|(name, versions)| {
            let versions = versions.into_iter().collect::<Vec<_>>().join(", ");
            format!("{name}: more than one version: {versions}")
        }));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = r#"
        [graph]
        targets = ["x86_64-unknown-linux-gnu"]
        all-features = true
        [licenses]
        allow = ["MIT"]
        unused-allowed-license = "allow"
        [bans]
        multiple-versions = "deny"
        wildcards = "deny"
        allow-wildcard-paths = true
        skip = [{ crate = "old@1.0.0", reason = "" }]
        [sources]
        unknown-registry = "deny"
        unknown-git = "deny"
    "#;

    fn package(name: &str, version: &str, license: &str) -> Package {
        Package {
            name: name.into(),
            version: version.into(),
            license: Some(license.into()),
            source: Some(CRATES_IO.into()),
            dependencies: Vec::new(),
        }
    }

    fn findings(packages: &[Package]) -> Vec<String> {
        judge(&toml::from_str(POLICY).unwrap(), packages)
    }

    #[test]
    fn the_workspace_keeps_its_own_policy_readable() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        let text = fs::read_to_string(root.join("deny.toml")).unwrap();
        toml::from_str::<Policy>(&text).unwrap();
    }

    #[test]
    fn a_forbidden_licence_is_found() {
        let packages = [package("good", "1.0.0", "MIT"), package("bad", "1.0.0", "GPL-3.0-only")];
        assert_eq!(findings(&packages), ["bad 1.0.0: licence GPL-3.0-only is not allowed"]);
        let silent = Package { license: None, ..package("silent", "1.0.0", "") };
        assert_eq!(findings(&[silent]), ["silent 1.0.0: states no licence"]);
    }

    #[test]
    fn a_foreign_source_is_found() {
        let git = Some("git+https://example.org/x#0".to_owned());
        let packages = [Package { source: git, ..package("x", "1.0.0", "MIT") }];
        assert_eq!(
            findings(&packages),
            ["x 1.0.0: source git+https://example.org/x#0 is not crates.io"]
        );
    }

    #[test]
    fn duplicates_are_found_unless_they_are_listed() {
        let two = |name| [package(name, "1.0.0", "MIT"), package(name, "2.0.0", "MIT")];
        assert_eq!(findings(&two("new")), ["new: more than one version: 1.0.0, 2.0.0"]);
        assert!(findings(&two("old")).is_empty());
    }

    #[test]
    fn wildcards_are_found_unless_they_are_paths() {
        let on = |path: Option<&str>| Dependency {
            name: "y".into(),
            req: "*".into(),
            path: path.map(String::from),
        };
        let ours = |dependency| Package {
            source: None,
            dependencies: vec![dependency],
            ..package("x", "1.0.0", "MIT")
        };
        assert_eq!(findings(&[ours(on(None))]), ["x: any version of y will do"]);
        assert!(findings(&[ours(on(Some("../y")))]).is_empty());
    }
}

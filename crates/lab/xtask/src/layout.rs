//! The layout of the workspace: only tests of crates outside `crates/lab` may depend on crates inside, and a crate's
//! folder has the crate's name.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use toml::Table;

/// The profiler measures the laboratory's machines.
const EXEMPT: &str = "pvscope";

/// The crates that break a rule, one sentence each.
pub fn check(root: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let laboratory: Vec<String> = manifests(&root.join("crates/lab"))?
        .iter()
        .filter_map(|(_, manifest)| name(manifest).map(str::to_owned))
        .collect();
    let mut findings = Vec::new();
    for folder in fs::read_dir(root.join("crates"))? {
        let folder = folder?.path();
        let is_laboratory = folder.ends_with("lab");
        for (file, manifest) in manifests(&folder)? {
            let place = file.parent().and_then(Path::file_name);
            if place.is_some_and(|place| name(&manifest).is_none_or(|name| place != name)) {
                let file = file.strip_prefix(root).unwrap_or(&file).display();
                findings.push(format!("{file}: the crate and its folder have different names"));
            }
            if is_laboratory || name(&manifest) == Some(EXEMPT) {
                continue;
            }
            let dependencies = manifest.get("dependencies").and_then(|found| found.as_table());
            let linked = dependencies.into_iter().flat_map(Table::keys);
            for found in linked.filter(|name| laboratory.contains(name)) {
                let file = file.strip_prefix(root).unwrap_or(&file).display();
                findings.push(format!(
                    "{file}: {found} is of the laboratory, which only tests may use"
                ));
            }
        }
    }
    Ok(findings)
}

fn name(manifest: &Table) -> Option<&str> {
    manifest.get("package")?.get("name")?.as_str()
}

/// The manifests of the crates in a folder.
fn manifests(folder: &Path) -> Result<Vec<(PathBuf, Table)>, Box<dyn Error>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let file = entry?.path().join("Cargo.toml");
        if file.is_file() {
            let manifest = fs::read_to_string(&file)?.parse()?;
            found.push((file, manifest));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, folder: &str, dependencies: &str) {
        let folder = root.join("crates").join(folder);
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        fs::create_dir_all(&folder).unwrap();
        let text = format!("[package]\nname = \"{name}\"\n{dependencies}");
        fs::write(folder.join("Cargo.toml"), text).unwrap();
    }

    #[test]
    fn only_tests_of_the_product_use_the_laboratory() {
        let root = std::env::temp_dir().join(format!("xtask-layout-{}", std::process::id()));
        write(&root, "lab/attacks", "[dependencies]\nswitch = {}\n");
        write(&root, "switching/switch", "[dev-dependencies]\nattacks = {}\n");
        write(&root, "bin/pvscope", "[dependencies]\nattacks = {}\n");
        assert_eq!(check(&root).unwrap(), [""; 0]);
        write(&root, "bin/pvnet", "[dependencies]\nattacks = {}\n");
        let findings = check(&root).unwrap();
        assert!(findings[0].starts_with("crates/bin/pvnet/Cargo.toml: attacks"), "{findings:?}");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_folder_has_its_crates_name() {
        let root = std::env::temp_dir().join(format!("xtask-names-{}", std::process::id()));
        write(&root, "lab/attacks", "");
        assert_eq!(check(&root).unwrap(), [""; 0]);
        fs::rename(root.join("crates/lab/attacks"), root.join("crates/lab/hostile")).unwrap();
        let findings = check(&root).unwrap();
        assert!(findings[0].starts_with("crates/lab/hostile/Cargo.toml"), "{findings:?}");
        fs::remove_dir_all(root).unwrap();
    }
}

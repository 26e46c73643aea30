//! The bill of materials of a program, as CycloneDX 1.5, from `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::deny::metadata;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Link>,
}

#[derive(Deserialize)]
struct Link {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    /// `None` for what the program is linked with; else `build` or `dev`.
    kind: Option<String>,
}

/// The crates that `program` of the workspace in `root` is linked with on `target`, and their licences.
///
/// # Errors
/// cargo fails, or there is no such program.
pub fn of(root: &Path, program: &str, target: &str) -> Result<String, Box<dyn Error>> {
    let metadata = metadata(root, target, false)?;
    Ok(serde_json::to_string_pretty(&document(&metadata, program)?)?)
}

fn document(metadata: &Metadata, program: &str) -> Result<Value, String> {
    let packages: BTreeMap<&str, &Package> =
        metadata.packages.iter().map(|package| (&*package.id, package)).collect();
    let nodes: BTreeMap<&str, &Node> =
        metadata.resolve.nodes.iter().map(|node| (&*node.id, node)).collect();
    let main = metadata.packages.iter().find(|package| package.name == program);
    let main = main.filter(|package| package.source.is_none());
    let main = main.ok_or_else(|| format!("the workspace has no program {program}"))?;
    let mut linked = BTreeSet::new();
    let mut open = vec![&*main.id];
    while let Some(id) = open.pop() {
        if linked.insert(id) {
            open.extend(nodes.get(id).into_iter().flat_map(|node| links(node)));
        }
    }
    let library = |id: &&str| packages.get(id).map(|package| component(package, "library"));
    let dependency = |id: &&str| {
        let on = nodes.get(id).into_iter().flat_map(|node| links(node));
        let on: Vec<_> =
            on.filter_map(|id| packages.get(id)).map(|package| purl(package)).collect();
        packages.get(id).map(|package| json!({ "ref": purl(package), "dependsOn": on }))
    };
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": component(main, "application") },
        "components": linked.iter().filter(|id| **id != main.id).filter_map(library).collect::<Vec<_>>(),
        "dependencies": linked.iter().filter_map(dependency).collect::<Vec<_>>(),
    }))
}

/// What a crate is linked with.
fn links(node: &Node) -> impl Iterator<Item = &str> {
    let is_linked = |link: &&Link| link.dep_kinds.iter().any(|kind| kind.kind.is_none());
    node.deps.iter().filter(is_linked).map(|link| &*link.pkg)
}

fn purl(package: &Package) -> String {
    let Package { name, version, .. } = package;
    match package.source {
        Some(_) => format!("pkg:cargo/{name}@{version}"),
        None => format!("pkg:generic/{name}@{version}"),
    }
}

fn component(package: &Package, kind: &str) -> Value {
    let license = package.license.iter().map(|expression| json!({ "expression": expression }));
    json!({
        "type": kind,
        "bom-ref": purl(package),
        "name": package.name,
        "version": package.version,
        "purl": purl(package),
        "licenses": license.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_linked_is_listed_and_what_only_tests_need_is_not() {
        let package = |name: &str, source: Option<&str>| json!({ "id": name, "name": name, "version": "1.0.0", "license": "MIT", "source": source });
        let link = |name: &str, kind: Option<&str>| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "packages": [package("pvnet", None), package("a", Some("x")), package("b", Some("x")), package("t", Some("x"))],
            "resolve": { "nodes": [
                { "id": "pvnet", "deps": [link("a", None), link("t", Some("dev"))] },
                { "id": "a", "deps": [link("b", None)] },
                { "id": "b", "deps": [] },
                { "id": "t", "deps": [] },
            ] },
        });
        let metadata = serde_json::from_value(metadata).unwrap();
        let bill = document(&metadata, "pvnet").unwrap();
        let names: Vec<_> = bill["components"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(bill["metadata"]["component"]["type"], "application");
        assert_eq!(bill["components"][0]["purl"], "pkg:cargo/a@1.0.0");
        assert!(document(&metadata, "a").is_err() && document(&metadata, "c").is_err());
    }
}

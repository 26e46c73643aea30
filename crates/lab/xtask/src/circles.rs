//! Circles of imports: modules of one crate that import each other, directly or through others.
//!
//! A module and those within it are one concept, and may. Tests are not looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;

/// A module, by the names on the way to it from the crate's root.
type Module = Vec<String>;
type Imports = BTreeMap<Module, BTreeSet<Module>>;

/// The modules of circles in the crates below `root`, one line per crate.
///
/// # Errors
/// A folder or file cannot be read.
pub fn check(root: &Path) -> io::Result<Vec<String>> {
    let mut findings = Vec::new();
    for floor in fs::read_dir(root.join("crates"))? {
        for krate in fs::read_dir(floor?.path())? {
            let source = krate?.path().join("src");
            let mut texts = BTreeMap::new();
            read(&source, &Module::new(), &mut texts)?;
            let circle = circle(&texts);
            if !circle.is_empty() {
                let names: Vec<_> = circle.iter().map(|module| module.join("::")).collect();
                let (source, names) = (source.display(), names.join(", "));
                findings.push(format!("{source}: a circle of imports is among {names}"));
            }
        }
    }
    Ok(findings)
}

/// Reads the modules in a folder, without their comments and tests.
fn read(folder: &Path, parent: &Module, texts: &mut BTreeMap<Module, String>) -> io::Result<()> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        let Some(name) = path.file_stem().and_then(OsStr::to_str) else { continue };
        let module = match name {
            "lib" | "main" | "mod" => parent.clone(),
            name => [&parent[..], &[name.to_owned()]].concat(),
        };
        if name == "tests" {
        } else if path.is_dir() {
            read(&path, &module, texts)?;
        } else if path.extension() == Some(OsStr::new("rs")) {
            let text = fs::read_to_string(&path)?;
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let lines = code.lines().filter_map(|line| line.split("//").next());
            texts.insert(module, lines.collect::<Vec<_>>().join("\n"));
        }
    }
    Ok(())
}

/// Modules that remain when those that import none of the others, and those that none imports, are taken away again and again.
fn circle(texts: &BTreeMap<Module, String>) -> BTreeSet<Module> {
    let imports: Imports =
        texts.iter().map(|(module, text)| (module.clone(), imports(module, text, texts))).collect();
    let mut left: BTreeSet<Module> = texts.keys().cloned().collect();
    loop {
        let imported: BTreeSet<_> = left.iter().flat_map(|module| &imports[module]).collect();
        let stays = |module: &&Module| {
            imported.contains(module) && imports[*module].iter().any(|other| left.contains(other))
        };
        let next: BTreeSet<_> = left.iter().filter(stays).cloned().collect();
        if next.len() == left.len() {
            return left;
        }
        left = next;
    }
}

/// The modules of the same crate that a module names, but for those around and within it.
fn imports(module: &Module, text: &str, all: &BTreeMap<Module, String>) -> BTreeSet<Module> {
    let mut paths = Vec::new();
    for (at, start) in text.match_indices("crate::").chain(text.match_indices("super::")) {
        if text[..at].ends_with([':', '_', '$']) {
            continue;
        }
        let mut base = if start == "crate::" { Module::new() } else { module.clone() };
        let mut rest = &text[at..];
        while let Some(above) = rest.strip_prefix("super::") {
            base.pop();
            rest = above;
        }
        expand(rest.strip_prefix("crate::").unwrap_or(rest), &base, &mut paths);
    }
    let is_near = |path: &Module| path.starts_with(module) || module.starts_with(path);
    let known = paths.into_iter().filter_map(|mut path| {
        while !all.contains_key(&path) {
            path.pop()?;
        }
        Some(path)
    });
    known.filter(|path| !is_near(path)).collect()
}

/// Adds the paths that begin here, those in braces too. Returns what follows.
fn expand<'a>(text: &'a str, base: &[String], paths: &mut Vec<Module>) -> &'a str {
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = expand(rest.trim_start(), base, paths);
            rest = rest.trim_start_matches(|c| c != ',' && c != '}');
            match rest.strip_prefix(',') {
                Some(next) => rest = next,
                None => return rest.strip_prefix('}').unwrap_or(rest),
            }
        }
    }
    let len = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let path = [base, &[text[..len].to_owned()]].concat();
    match text[len..].strip_prefix("::") {
        Some(rest) => expand(rest, &path, paths),
        None => {
            paths.push(path);
            &text[len..]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circle_of(files: &[(&str, &str)]) -> Vec<String> {
        let module = |path: &str| path.split("::").map(str::to_owned).collect::<Module>();
        let texts = files.iter().map(|(path, text)| (module(path), (*text).to_owned())).collect();
        circle(&texts).iter().map(|module| module.join("::")).collect()
    }

    #[test]
    fn a_circle_is_found_through_others_and_braces() {
        let (a, b) = (("a", "use crate::b::{self, Two};"), ("b", "use crate::c;"));
        let nested = ("c::d", "use crate::{other::{E, F}, a::{G}};");
        assert_eq!(circle_of(&[a, b, nested, ("c", "mod d;"), ("other", "")]), [""; 0]);
        assert_eq!(
            circle_of(&[a, b, ("c", "use crate::{other::{E, F}, a::{G}};")]),
            ["a", "b", "c"]
        );
        assert_eq!(circle_of(&[("x::a", "use super::b::B;"), ("x::b", "super::a::f()")]).len(), 2);
    }

    #[test]
    fn a_module_and_those_within_it_are_one() {
        assert_eq!(circle_of(&[("a", "use self::b::B;"), ("a::b", "use super::A;")]), [""; 0]);
        assert_eq!(circle_of(&[("a", "use crate::c::C;"), ("c", "use std::fmt;")]), [""; 0]);
    }
}

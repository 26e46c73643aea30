//! Circles of imports: modules of one library, program or test that import each other, directly or through others.
//!
//! A module and the modules within it are one concept: they may import each other. A name that is passed on by `pub use`
//! counts for the module that defines it, but a `*` is not followed. Unit tests are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The path of a module or an item from the crate's root, name by name.
type Name = Vec<String>;
/// The code of each module.
type Modules = BTreeMap<Name, String>;
/// The names that `use` brings into a module, each with the path that it stands for.
type Uses = BTreeMap<Name, Name>;

/// The circles in the crates below `root`: one line of modules per library, program or test.
///
/// # Errors
/// A folder or file cannot be read.
pub fn check(root: &Path) -> io::Result<Vec<String>> {
    let mut findings = Vec::new();
    for floor in entries(&root.join("crates"))? {
        for krate in entries(&floor)? {
            for source in sources(&krate)? {
                let mut modules = Modules::new();
                read(&source, &Name::new(), &mut modules)?;
                let circle = circle(&modules);
                if !circle.is_empty() {
                    let names: Vec<_> = circle.iter().map(|module| module.join("::")).collect();
                    let (source, names) = (source.display(), names.join(", "));
                    findings.push(format!("{source}: a circle of imports is among {names}"));
                }
            }
        }
    }
    Ok(findings)
}

/// The folders whose modules are read together: `src`, `tests`, each program in `src/bin`, and each test with a `main.rs`.
fn sources(krate: &Path) -> io::Result<Vec<PathBuf>> {
    let (source, tests) = (krate.join("src"), krate.join("tests"));
    let mut roots = entries(&source.join("bin"))?;
    roots.extend(entries(&tests)?.into_iter().filter(|path| path.join("main.rs").is_file()));
    roots.extend([source, tests]);
    Ok(roots)
}

/// The entries of a folder; none if it does not exist.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(Vec::new()) };
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// Reads the modules in a folder, without their comments and unit tests.
fn read(folder: &Path, parent: &Name, modules: &mut Modules) -> io::Result<()> {
    for path in entries(folder)? {
        let Some(name) = path.file_stem().and_then(OsStr::to_str) else { continue };
        let module = match name {
            "lib" | "main" | "mod" => parent.clone(),
            name => [&parent[..], &[name.to_owned()]].concat(),
        };
        // Programs and tests with a root of their own.
        let is_root = parent.is_empty() && (name == "bin" || path.join("main.rs").is_file());
        if name == "tests" || is_root {
        } else if path.is_dir() {
            read(&path, &module, modules)?;
        } else if path.extension() == Some(OsStr::new("rs")) {
            let text = fs::read_to_string(&path)?;
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let lines = code.lines().filter_map(|line| line.split("//").next());
            modules.insert(module, lines.collect::<Vec<_>>().join("\n"));
        }
    }
    Ok(())
}

/// The modules of circles. Modules that import no other, and modules that no other imports, are removed until none is left of
/// either kind.
fn circle(modules: &Modules) -> BTreeSet<Name> {
    let uses = modules.iter().flat_map(|(module, code)| uses(module, code, modules)).collect();
    let of =
        |(module, code): (&Name, &String)| (module.clone(), imports(module, code, modules, &uses));
    let imports: BTreeMap<_, _> = modules.iter().map(of).collect();
    let mut left: BTreeSet<Name> = modules.keys().cloned().collect();
    loop {
        let imported: BTreeSet<_> = left.iter().flat_map(|module| &imports[module]).collect();
        let stays = |module: &&Name| {
            imported.contains(module) && imports[*module].iter().any(|other| left.contains(other))
        };
        let next: BTreeSet<_> = left.iter().filter(stays).cloned().collect();
        if next.len() == left.len() {
            return left;
        }
        left = next;
    }
}

/// The names that a module's `use` lines bring into it from the same crate.
fn uses(module: &Name, code: &str, modules: &Modules) -> Uses {
    let mut found = Vec::new();
    for (at, word) in code.match_indices("use ") {
        let (before, path) = (&code[..at], &code[at + word.len()..]);
        let (base, rest) = start(module, path);
        let first = [&base[..], &[rest[..word_len(rest)].to_owned()]].concat();
        // Any other first word is the name of another crate.
        let is_own = rest.len() < path.len() || modules.contains_key(&first);
        if is_own && (before.is_empty() || before.ends_with(char::is_whitespace)) {
            expand(rest, &base, &mut found);
        }
    }
    let in_module = |name: String| [&module[..], &[name]].concat();
    found.into_iter().map(|(path, name)| (in_module(name), path)).collect()
}

/// The modules of the same crate that a module names, without those around and within it.
fn imports(module: &Name, code: &str, modules: &Modules, uses: &Uses) -> BTreeSet<Name> {
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("crate::").chain(code.match_indices("super::")) {
        if !code[..at].ends_with([':', '_', '$']) {
            let (base, rest) = start(module, &code[at..]);
            expand(rest, &base, &mut paths);
        }
    }
    let mut found = BTreeSet::new();
    for (mut path, _) in paths {
        let mut passed = BTreeSet::new();
        while passed.insert(path.clone()) {
            let named = (0..=path.len()).rev().find(|&len| modules.contains_key(&path[..len]));
            let Some(len) = named else { break };
            found.insert(path[..len].to_vec());
            if let Some(other) = path.get(..=len).and_then(|name| uses.get(name)) {
                path = [other, &path[len + 1..]].concat();
            }
        }
    }
    found.retain(|other| !other.starts_with(module) && !module.starts_with(other));
    found
}

/// Splits a path in a module into the module where it begins, and the rest.
fn start<'a>(module: &Name, path: &'a str) -> (Name, &'a str) {
    if let Some(rest) = path.strip_prefix("crate::") {
        return (Name::new(), rest);
    }
    let (mut base, mut rest) = (module.clone(), path.strip_prefix("self::").unwrap_or(path));
    while let Some(above) = rest.strip_prefix("super::") {
        base.pop();
        rest = above;
    }
    (base, rest)
}

/// Adds the paths that begin here, also those in braces, each with the name that it gets. Returns the text after them.
fn expand<'a>(text: &'a str, base: &[String], paths: &mut Vec<(Name, String)>) -> &'a str {
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
    let (word, rest) = text.split_at(word_len(text));
    let path = [base, &[word.to_owned()]].concat();
    if let Some(rest) = rest.strip_prefix("::") {
        return expand(rest, &path, paths);
    }
    let path = if word == "self" { base.to_vec() } else { path };
    let name = match rest.strip_prefix(" as ") {
        Some(rest) => &rest[..word_len(rest)],
        None => path.last().map_or("", String::as_str),
    };
    let name = name.to_owned();
    paths.push((path, name));
    rest
}

/// The length of the word that a text begins with.
fn word_len(text: &str) -> usize {
    text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circle_of(files: &[(&str, &str)]) -> Vec<String> {
        let words = |path: &str| path.split("::").map(str::to_owned).collect();
        let module = |path: &str| if path.is_empty() { Name::new() } else { words(path) };
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

    #[test]
    fn a_name_counts_for_the_module_that_has_it() {
        let root = ("", "mod a; pub use a::A;\npub(crate) use self::b::{self as other, B as C};");
        let (a, b) = (("a", "use crate::C;"), ("b", "use crate::{fmt, A};"));
        assert_eq!(circle_of(&[root, a, b]), ["a", "b"]);
        assert_eq!(circle_of(&[root, ("a", "crate::other::f()"), b]), ["a", "b"]);
        assert_eq!(circle_of(&[root, ("a", "use crate::{A, D};"), b]), [""; 0]);
        let (passing, inner) = (("x", "use crate::c::C;"), ("x::y", "use super::C;"));
        assert_eq!(circle_of(&[passing, inner, ("c", "crate::x::y::f()")]), ["c", "x::y"]);
    }

    #[test]
    fn every_program_and_test_has_a_root_of_its_own() {
        let root = std::env::temp_dir().join(format!("xtask-circles-{}", std::process::id()));
        let krate = root.join("crates/lab/hostile");
        let write = |file: &str, text: &str| {
            let file = krate.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        for folder in ["src/bin/attack", "tests/attack"] {
            write(&format!("{folder}/main.rs"), "mod rings; mod link;");
            write(&format!("{folder}/rings.rs"), "use crate::link::Link;");
            write(&format!("{folder}/link.rs"), "");
        }
        write("src/lib.rs", "mod link;");
        write("src/link.rs", "");
        write("tests/common/mod.rs", "mod link;");
        write("tests/common/link.rs", "use super::Bed;");
        assert_eq!(check(&root).unwrap(), [""; 0]);
        for folder in ["src/bin/attack", "tests/attack"] {
            write(&format!("{folder}/link.rs"), "use crate::rings::Ring;");
        }
        let findings = check(&root).unwrap();
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].ends_with("attack: a circle of imports is among link, rings"));
        fs::remove_dir_all(root).unwrap();
    }
}

//! The links between the Markdown documents of the repository, and the files that they name.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Folders that hold no documents of the project: what is built, measured or lent.
const NOT_OURS: [&str; 4] = ["target", "out", "shared", ".git"];

/// Endings of the project's own files. Paths with others are mostly those of other projects.
const ENDINGS: [&str; 10] =
    [".rs", ".md", ".toml", ".sh", ".S", ".txt", ".conf", ".yml", ".json", ".service"];

/// The folders that a path from the root begins with.
const FOLDERS: [&str; 7] =
    ["crates/", "docs/", "scripts/", "examples/", "packaging/", "fuzz/", "bench/"];

/// The history names files that are gone.
const HISTORY: &str = "CHANGELOG.md";

/// Faults of the documents below `root`, one line each: links that lead nowhere, code spans with paths or modules that do
/// not exist, documents that no index lists, decisions without a status. Addresses of the web are not checked.
///
/// # Errors
/// A folder or document cannot be read.
pub fn check(root: &Path) -> io::Result<Vec<String>> {
    let documents = documents(root)?;
    let files = Files::of(root)?;
    let mut findings = Vec::new();
    for document in &documents {
        let text = fs::read_to_string(document)?;
        if document.file_name() != Some(OsStr::new(HISTORY)) {
            for path in paths(&text).filter(|path| !files.has(document, path)) {
                findings.push(format!("{}: `{path}` names no file", document.display()));
            }
            for module in modules(&text).filter(|module| !files.has_module(module)) {
                findings.push(format!("{}: `{module}` names no module", document.display()));
            }
        }
        for link in links(&text) {
            if !leads_somewhere(document, &text, link)? {
                findings.push(format!("{}: link to {link} leads nowhere", document.display()));
            }
        }
    }
    findings.extend(named_elsewhere(root)?);
    findings.extend(not_indexed(root)?);
    findings.extend(without_status(root)?);
    Ok(findings)
}

/// Documents (`docs/kvm.md`) that sources, configurations or units name, and that do not exist.
fn named_elsewhere(root: &Path) -> io::Result<Vec<String>> {
    let mut files = Vec::new();
    each(root, &mut |path| files.push(path))?;
    let mut findings = Vec::new();
    for file in files {
        let name = file.to_string_lossy();
        if name.ends_with(".md") || !ENDINGS.iter().any(|ending| name.ends_with(ending)) {
            continue;
        }
        let text = fs::read_to_string(&file)?;
        let gone = documents_named(&text).filter(|path| !root.join(path).exists());
        findings.extend(gone.map(|path| format!("{name}: {path} is no document")));
    }
    Ok(findings)
}

/// The paths of documents in a text.
fn documents_named(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !is_plain(c)).map(|word| word.trim_end_matches('.'));
    words.filter(|word| word.starts_with("docs/") && word.ends_with(".md"))
}

/// Decisions that do not say whether they are in force.
fn without_status(root: &Path) -> io::Result<Vec<String>> {
    let mut findings = Vec::new();
    for document in documents(&root.join("docs/decisions"))? {
        let is_index = document.file_name() == Some(OsStr::new("README.md"));
        if !is_index && !fs::read_to_string(&document)?.contains("\n**Status:** ") {
            findings.push(format!("{}: no line \"**Status:** …\"", document.display()));
        }
    }
    Ok(findings)
}

/// Documents in `docs`, `docs/decisions` and `docs/notebook` to which the `README.md` of their folder has no link.
fn not_indexed(root: &Path) -> io::Result<Vec<String>> {
    let mut findings = Vec::new();
    for folder in ["docs", "docs/decisions", "docs/notebook"].map(|folder| root.join(folder)) {
        let index = folder.join("README.md");
        let Ok(text) = fs::read_to_string(&index) else { continue };
        let listed: Vec<_> = links(&text).map(|link| link.split('#').next()).collect();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(OsStr::to_str);
            let is_document = path.extension() == Some(OsStr::new("md")) && path != index;
            if is_document && !listed.contains(&name) {
                findings.push(format!("{}: {} does not list it", path.display(), index.display()));
            }
        }
    }
    Ok(findings)
}

/// The files and folders that a document may name.
struct Files {
    root: PathBuf,
    /// Every folder that holds a crate.
    crates: Vec<PathBuf>,
    names: HashSet<String>,
}

impl Files {
    fn of(root: &Path) -> io::Result<Self> {
        let (mut crates, mut names) = (Vec::new(), HashSet::new());
        each(root, &mut |path| {
            if path.ends_with("Cargo.toml") {
                crates.extend(path.parent().map(Path::to_owned));
            }
            names.extend(path.file_name().and_then(OsStr::to_str).map(str::to_owned));
        })?;
        Ok(Self { root: root.to_owned(), crates, names })
    }

    /// Whether `path` is a file's name, or a path from the root, from the document's folder, or from a crate (with or
    /// without its `src`).
    fn has(&self, document: &Path, path: &str) -> bool {
        let Some((first, rest)) = path.split_once('/') else { return self.names.contains(path) };
        let beside = document.parent().unwrap_or(document);
        if [self.root.as_path(), beside].iter().any(|folder| folder.join(path).exists()) {
            return true;
        }
        let mut named = self.named(first);
        named.any(|folder| folder.join(rest).exists() || folder.join("src").join(rest).exists())
    }

    /// Whether the second part of `crate::module` is a file or folder of that crate. True for items, which may be in any
    /// file, and for other projects' crates.
    fn has_module(&self, path: &str) -> bool {
        let mut parts = path.split("::");
        let (Some(name), Some(module)) = (parts.next(), parts.next()) else { return true };
        // The daemon is a module of the program.
        let (name, within) = if name == "daemon" { ("pvnet", "src/daemon") } else { (name, "src") };
        let mut named = self.named(name).peekable();
        let is_item = module.starts_with(char::is_uppercase) || named.peek().is_none();
        is_item
            || named.any(|folder| {
                let module = folder.join(within).join(module);
                module.exists() || module.with_extension("rs").exists()
            })
    }

    /// The folders of the crates of that name.
    fn named(&self, name: &str) -> impl Iterator<Item = &PathBuf> {
        let name = name.replace('_', "-");
        self.crates.iter().filter(move |folder| folder.ends_with(&name))
    }
}

/// The code spans of a document's prose.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    prose(text).flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// Spans such as `datapath::carry`: modules and items of crates.
fn modules(text: &str) -> impl Iterator<Item = &str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-:".contains(c);
    spans(text).filter(move |span| span.contains("::") && span.chars().all(is_name))
}

/// The paths of the project's own files in the code spans of a document's prose.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    spans(text)
        .map(|span| span.split_once(".rs:").map_or(span, |(path, _)| &span[..path.len() + 3]))
        .filter(|span| span.chars().all(is_plain) && span.starts_with(char::is_alphanumeric))
        .filter(|span| {
            let ends = ENDINGS.iter().any(|ending| span.ends_with(ending));
            let is_ours = FOLDERS.iter().any(|folder| span.starts_with(folder));
            is_ours || ends && (span.ends_with(".rs") || span.contains('/'))
        })
        .filter(|span| !NOT_OURS.iter().any(|name| span.starts_with(name)))
}

/// Whether paths of the project may have this character.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "/._-".contains(c)
}

/// All documents below `root`.
///
/// # Errors
/// A folder cannot be read.
pub fn documents(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut documents = Vec::new();
    each(root, &mut |path| {
        documents.extend((path.extension() == Some(OsStr::new("md"))).then_some(path));
    })?;
    Ok(documents)
}

/// Shows each file of the project below a folder.
fn each(folder: &Path, see: &mut dyn FnMut(PathBuf)) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() {
            see(entry.path());
        } else if !NOT_OURS.iter().any(|other| entry.file_name() == *other) {
            each(&entry.path(), see)?;
        }
    }
    Ok(())
}

fn leads_somewhere(document: &Path, text: &str, link: &str) -> io::Result<bool> {
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = document.parent().unwrap_or(document).join(file);
    if !file.is_empty() && !target.exists() {
        return Ok(false);
    }
    if anchor.is_empty() {
        return Ok(true);
    }
    let other;
    let text = if file.is_empty() {
        text
    } else {
        other = fs::read_to_string(target)?;
        &other
    };
    Ok(prose(text).filter(|line| line.starts_with('#')).any(|line| slug(line) == anchor))
}

/// The targets of `](…)` in a document's prose.
fn links(text: &str) -> impl Iterator<Item = &str> {
    prose(text)
        .flat_map(|line| line.split("](").skip(1))
        .filter_map(|rest| rest.split_once(')').map(|(link, _)| link))
        .filter(|link| !link.contains("://") && !link.starts_with("mailto:"))
}

/// The lines outside fenced code.
pub fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The anchor that GitHub gives a heading.
fn slug(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_in_prose_only() {
        let text = "[a](x.md) and [b](y.md#z)\n```\n[c](no)\n```\n[d](https://example.org)";
        assert_eq!(links(text).collect::<Vec<_>>(), ["x.md", "y.md#z"]);
    }

    #[test]
    fn paths_of_other_projects_are_left_out() {
        let text = "`crates/x/y.rs:NAME`, `carry.rs`, `hw/net/vhost_net.c`, `a b.rs`, `out/x.md`, `/etc/x.toml`, `scripts/deb`";
        assert_eq!(paths(text).collect::<Vec<_>>(), ["crates/x/y.rs", "carry.rs", "scripts/deb"]);
    }

    #[test]
    fn documents_are_found_in_comments() {
        let text = "# (docs/kvm.md), see docs/xen.md.\ndocs/baseline.txt ../docs/xen.md";
        assert_eq!(documents_named(text).collect::<Vec<_>>(), ["docs/kvm.md", "docs/xen.md"]);
    }

    #[test]
    fn a_path_that_names_no_file_is_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let files = Files::of(root).unwrap();
        let here = root.join("README.md");
        for (path, good) in [
            ("links.rs", true),
            ("src/links.rs", true),
            ("xtask/links.rs", true),
            ("xtask/src/links.rs", true),
            ("nothing.rs", false),
            ("xtask/nothing.rs", false),
        ] {
            assert_eq!(files.has(&here, path), good, "{path}");
        }
        for (module, good) in
            [("xtask::links", true), ("xtask::Item", true), ("xtask::gone", false), ("x::y", true)]
        {
            assert_eq!(files.has_module(module), good, "{module}");
        }
    }

    #[test]
    fn headings_have_the_anchors_of_github() {
        assert_eq!(slug("## What a hostile guest meets"), "what-a-hostile-guest-meets");
        assert_eq!(slug("# 5. The header channel, again"), "5-the-header-channel-again");
    }

    #[test]
    fn a_link_that_leads_nowhere_is_found() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
        let text = "# Title\n";
        for (link, good) in [
            ("Cargo.toml", true),
            ("missing.md", false),
            ("#title", true),
            ("#nothing", false),
            ("README.md#xtask", true),
            ("README.md#nothing", false),
        ] {
            assert_eq!(leads_somewhere(&here, text, link).unwrap(), good, "{link}");
        }
    }
}

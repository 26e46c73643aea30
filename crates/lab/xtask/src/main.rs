//! Checks that `make` runs: `xtask deny` (dependencies) and `xtask docs` (documents).
//!
//! Both run in the repository's root, print one line per finding and exit with 1 if there is any.

#![forbid(unsafe_code)]

mod deny;
mod licence;
mod links;
mod specification;

use std::env;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let root = Path::new(".");
    let command = env::args().nth(1);
    let findings = match command.as_deref() {
        Some("deny") => deny::check(root),
        Some("docs") => docs(root),
        _ => {
            eprintln!("usage: xtask deny|docs");
            return ExitCode::from(2);
        }
    };
    match findings {
        Ok(findings) if findings.is_empty() => ExitCode::SUCCESS,
        Ok(findings) => {
            findings.iter().for_each(|finding| eprintln!("xtask: {finding}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn docs(root: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let mut findings = links::check(root)?;
    findings.extend(specification::check(root)?);
    Ok(findings)
}

//! What `make` runs, in the repository's root:
//!
//! - `xtask deny` checks the dependencies.
//! - `xtask docs` checks the documents and their length, that the product does not depend on the laboratory, that no
//!   files import each other in a circle, that short files have a reason, and that the programs that tests need are installed.
//! - `xtask words` counts the words of the documents.
//! - `xtask sbom PROGRAM TARGET` prints a program's bill of materials.
//!
//! A check prints a line for each finding, and exits with 1 if there is any.

#![forbid(unsafe_code)]

mod circles;
mod deny;
mod layout;
mod licence;
mod links;
mod programs;
mod sbom;
mod short_files;
mod specification;
mod words;

use std::env;
use std::error::Error;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let root = Path::new(".");
    let arguments: Vec<_> = env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let findings = match *arguments {
        ["deny"] => deny::check(root),
        ["docs"] => docs(root),
        ["words"] => words::report(root).map_err(Into::into).map(|text| {
            // The reader may have closed the pipe, as `head` does.
            let _ = writeln!(io::stdout(), "{text}");
            Vec::new()
        }),
        ["sbom", program, target] => sbom::of(root, program, target).map(|text| {
            println!("{text}");
            Vec::new()
        }),
        _ => {
            eprintln!("usage: xtask deny|docs|words|sbom PROGRAM TARGET");
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
    findings.extend(layout::check(root)?);
    findings.extend(circles::check(root)?);
    findings.extend(short_files::check(root)?);
    findings.extend(programs::check(root)?);
    findings.extend(words::check(root)?);
    Ok(findings)
}

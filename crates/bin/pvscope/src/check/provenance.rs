//! What a baseline's numbers depend on besides pvnet's source.

use std::path::Path;

use sha2::{Digest as _, Sha256};

use crate::error::{Error, Result};

/// The keys and values. Numbers of another machine or another compiler are not compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provenance(Vec<(String, String)>);

/// How rustc signs what it compiles.
const SIGNATURE: &[u8] = b"rustc version ";

impl Provenance {
    /// Of these keys and values.
    pub fn new(values: Vec<(&str, String)>) -> Self {
        Self(values.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    /// Adds one that was read.
    pub fn add(&mut self, key: &str, value: &str) {
        self.0.push((key.to_owned(), value.to_owned()));
    }

    /// The lines of a file: `KEY VALUE`.
    pub fn lines(&self) -> Vec<String> {
        self.0.iter().map(|(key, value)| format!("{key} {value}")).collect()
    }

    /// Says what differs.
    ///
    /// # Errors
    /// In words, if numbers of the two cannot be compared.
    pub fn check(&self, now: &Self) -> std::result::Result<(), String> {
        let value = |of: &Self, key: &str| {
            let found = of.0.iter().find(|(known, _)| known == key);
            found.map_or_else(|| "nothing".to_owned(), |(_, value)| value.clone())
        };
        let keys = now.0.iter().map(|(key, _)| key);
        let differing = keys.filter(|key| value(self, key) != value(now, key));
        let differing: Vec<String> = differing
            .map(|key| format!("{key} is {} here and {} there", value(now, key), value(self, key)))
            .collect();
        if differing.is_empty() {
            return Ok(());
        }
        Err(format!(
            "this baseline was made with something else, so its numbers say nothing here: {}. Use the same, or make it anew with \
             --update",
            differing.join("; ")
        ))
    }
}

/// The first bytes of a file's digest.
pub fn digest(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).map_err(Error::path(path))?;
    let digest = Sha256::digest(&bytes);
    Ok(digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

/// The compiler that made a program, as it says itself.
pub fn compiler(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).map_err(Error::path(path))?;
    let mut places = bytes.windows(SIGNATURE.len()).enumerate();
    // The program may contain the words too, so the last place counts: sections of notes come after the data.
    let found = places.rfind(|(_, words)| *words == SIGNATURE);
    let after = found.map(|(at, _)| &bytes[at + SIGNATURE.len()..]);
    let version = after.and_then(|rest| rest.split(|byte| *byte == b' ' || *byte == 0).next());
    Ok(version.map_or("unknown".to_owned(), |word| String::from_utf8_lossy(word).into_owned()))
}

/// The profile that a program was built with: the name of cargo's folder.
pub fn profile(path: &Path) -> String {
    let folder = path.parent().and_then(Path::file_name);
    folder.map_or("unknown".to_owned(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named() {
        let of = |kernel: &str| {
            Provenance::new(vec![("profile", "release".to_owned()), ("kernel", kernel.to_owned())])
        };
        assert_eq!(of("a").check(&of("a")), Ok(()));
        let message = of("a").check(&of("b")).unwrap_err();
        assert!(message.contains("kernel is b here and a there"), "{message}");
        assert!(!message.contains("profile"), "{message}");
    }

    #[test]
    fn the_compiler_signs() {
        let this = std::env::current_exe().unwrap();
        let compiler = compiler(&this).unwrap();
        assert!(compiler.starts_with("1."), "{compiler}");
    }
}

//! Kernel settings that are raised while an experiment runs.

use std::fs;

use crate::{Error, Result};

/// A number in a file below `/proc/sys` that was raised. Dropping this value restores the former number.
#[derive(Debug)]
pub struct Sysctl {
    path: String,
    raised: Option<[u64; 2]>,
}

impl Sysctl {
    /// Raises the setting `name`, such as `vm.max_map_count`, to `least` if it is lower.
    pub fn at_least(name: &str, least: u64) -> Result<Self> {
        Self::raise(format!("/proc/sys/{}", name.replace('.', "/")), least)
    }

    fn raise(path: String, least: u64) -> Result<Self> {
        let former = read(&path)?;
        let raised = (former < least).then_some([former, least]);
        if raised.is_some() {
            write(&path, least)?;
        }
        Ok(Self { path, raised })
    }

    /// The number before, if it was raised.
    #[must_use]
    pub fn former(&self) -> Option<u64> {
        self.raised.map(|[former, _]| former)
    }
}

impl Drop for Sysctl {
    fn drop(&mut self) {
        // If somebody changed it meanwhile, their value stays.
        let Some([former, least]) = self.raised else { return };
        if read(&self.path).is_ok_and(|now| now == least)
            && let Err(error) = write(&self.path, former)
        {
            eprintln!("clean-up: {error}");
        }
    }
}

fn read(path: &str) -> Result<u64> {
    let text = fs::read_to_string(path).map_err(Error::io(format!("cannot read {path}")))?;
    let number = text.trim().parse();
    number.map_err(|_| Error::Parse { what: path.to_owned(), cause: "not a number".to_owned() })
}

fn write(path: &str, number: u64) -> Result<()> {
    fs::write(path, format!("{number}\n")).map_err(Error::io(format!("cannot set {path}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TempDir;

    #[test]
    fn a_setting_is_raised_and_restored() {
        let folder = TempDir::new().expect("folder");
        let path = folder.path().join("limit").to_string_lossy().into_owned();
        let now = || fs::read_to_string(&path).expect("a file").trim().to_owned();
        fs::write(&path, "65530\n").expect("a file");
        let raised = Sysctl::raise(path.clone(), 100_000).expect("higher");
        assert_eq!((raised.former(), now().as_str()), (Some(65_530), "100000"));
        drop(raised);
        assert_eq!(now(), "65530");
        assert_eq!(Sysctl::raise(path.clone(), 10).expect("high enough").former(), None);
        let raised = Sysctl::raise(path.clone(), 70_000).expect("higher");
        fs::write(&path, "80000").expect("another's change");
        drop(raised);
        assert_eq!(now(), "80000");
        fs::write(&path, "many").expect("a file");
        assert!(Sysctl::raise(path, 1).is_err());
    }
}

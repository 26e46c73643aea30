//! Fetches packages by apt with a private state: it ignores the packages that are installed here, and installs nothing.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::{Error, Result, Suite};

/// How long the mirrors may take.
const LIMIT: Duration = Duration::from_secs(900);
/// The archive's keys, from the package `debian-archive-keyring`, which every Debian installs.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Dependencies that only an installation needs, and language runtimes that nothing here uses.
const UNNEEDED: [&str; 21] = [
    "adduser",
    "coreutils",
    "cpio",
    "debconf",
    "dpkg",
    "dracut",
    "init-system-helpers",
    "initramfs-tools",
    "klibc-utils",
    "libklibc",
    "libpam",
    "libperl",
    "libpython",
    "linux-sysctl",
    "passwd",
    "perl",
    "python",
    "tar",
    "ucf",
    "udev",
    "usrmerge",
];

/// A package in one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Package {
    name: String,
    version: String,
}

impl Package {
    /// One line of `apt-get --simulate install`: `Inst NAME [OLD] (VERSION ORIGIN [ARCHITECTURE]) [STATE]`.
    fn parse(line: &str) -> Option<Self> {
        let (name, rest) = line.strip_prefix("Inst ")?.split_once(' ')?;
        let (_, rest) = rest.split_once('(')?;
        let version = rest.split([' ', ')']).next().filter(|version| !version.is_empty())?;
        Some(Self { name: name.to_owned(), version: version.to_owned() })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn is_needed(&self) -> bool {
        !UNNEEDED.iter().any(|unneeded| self.name.starts_with(unneeded))
    }

    /// The beginning of its file's name. The colon after an epoch is percent-encoded.
    fn file_prefix(&self) -> String {
        format!("{}_{}_", self.name, self.version.replace(':', "%3a"))
    }
}

/// The addresses of this machine's mirrors.
#[derive(Debug, PartialEq, Eq)]
struct Mirrors {
    archive: String,
    security: Option<String>,
}

impl Mirrors {
    /// Reads the addresses of repositories, one per line.
    fn parse(text: &str) -> Option<Self> {
        let (security, archive): (Vec<&str>, Vec<&str>) = text
            .lines()
            .filter(|line| !line.is_empty())
            .partition(|line| line.contains("security"));
        let archive = (*archive.first()?).to_owned();
        Some(Self { archive, security: security.first().map(|address| (*address).to_owned()) })
    }

    /// The `sources.list` of a suite.
    fn sources(&self, suite: Suite, preferred: Option<&str>) -> String {
        let Self { archive, security } = self;
        let mut text = String::new();
        let own = [suite.name().to_owned(), format!("{suite}-updates")];
        for pocket in own.into_iter().chain(preferred.map(str::to_owned)) {
            let _ = writeln!(text, "deb [signed-by={KEYRING}] {archive} {pocket} main");
        }
        if let Some(security) = security {
            let _ = writeln!(text, "deb [signed-by={KEYRING}] {security} {suite}-security main");
        }
        text
    }
}

/// A private state of apt.
#[derive(Debug)]
pub(crate) struct Apt {
    suite: Suite,
    /// A pocket whose packages are preferred to the suite's own.
    preferred: Option<String>,
    configuration: PathBuf,
}

impl Apt {
    /// Makes the state in `folder` and fetches the package lists. Packages of another pocket, such as backports, are preferred to the
    /// suite's own.
    pub(crate) fn update(suite: Suite, preferred: Option<String>, folder: &Path) -> Result<Self> {
        for inside in ["etc", "state/lists/partial", "cache/archives/partial"] {
            let path = folder.join(inside);
            std::fs::create_dir_all(&path).map_err(Error::path(path))?;
        }
        let apt = Self { suite, preferred, configuration: folder.join("apt.conf") };
        let failed = |cause: String| apt.error("cannot find this machine's mirrors", cause);
        let mut targets = lab::command("apt-get")?;
        targets.args(["indextargets", "--format", "$(REPO_URI)"]);
        let addresses = crate::tool::run(targets).map_err(|error| failed(error.to_string()))?;
        let mirrors = Mirrors::parse(&addresses);
        let mirrors = mirrors.ok_or_else(|| failed("apt has no sources".to_owned()))?;
        write(&folder.join("status"), "")?;
        write(&folder.join("etc/sources.list"), &mirrors.sources(suite, apt.preferred.as_deref()))?;
        write(&apt.configuration, &configuration(folder, &proxies()?))?;

        let mut update = apt.command()?;
        update.args(["-qq", "update"]);
        apt.run(update, "cannot fetch the lists of packages")?;
        Ok(apt)
    }

    /// Resolves these packages and all their dependencies.
    pub(crate) fn closure(&self, names: &[String]) -> Result<Vec<Package>> {
        let mut simulate = self.command()?;
        simulate.args(["-qq", "--simulate"]);
        if let Some(preferred) = &self.preferred {
            simulate.args(["--target-release", preferred]);
        }
        simulate.arg("install").args(names);
        let text = self.run(simulate, &format!("cannot install {}", names.join(" ")))?;
        Ok(text.lines().filter_map(Package::parse).filter(Package::is_needed).collect())
    }

    /// Downloads packages into `folder`, unless they are there. Returns the files.
    pub(crate) fn download(&self, packages: &[Package], folder: &Path) -> Result<Vec<PathBuf>> {
        std::fs::create_dir_all(folder).map_err(Error::path(folder))?;
        let missing = packages.iter().filter(|package| find(package, folder).is_none());
        let missing: Vec<_> =
            missing.map(|package| format!("{}={}", package.name, package.version)).collect();
        if !missing.is_empty() {
            let mut download = self.command()?;
            download.current_dir(folder).args(["-qq", "download"]).args(&missing);
            self.run(download, &format!("cannot download {}", missing.join(" ")))?;
        }
        let file = |package: &Package| {
            let lost = || self.error("a package's file is missing", package.file_prefix());
            find(package, folder).ok_or_else(lost)
        };
        packages.iter().map(file).collect()
    }

    fn command(&self) -> Result<Command> {
        let mut command = lab::command("apt-get")?;
        command.env("APT_CONFIG", &self.configuration);
        Ok(command)
    }

    fn run(&self, command: Command, what: &str) -> Result<String> {
        lab::run(command, LIMIT).map_err(|error| match error {
            lab::Error::Failed { message, .. } => self.error(what, message),
            other => other.into(),
        })
    }

    fn error(&self, what: &str, cause: String) -> Error {
        Error::Packages { what: what.to_owned(), suite: self.suite.name(), cause }
    }
}

/// The proxy and other HTTP settings of this machine's apt.
fn proxies() -> Result<String> {
    let mut dump = lab::command("apt-config")?;
    dump.arg("dump");
    let settings = crate::tool::run(dump)?;
    let wanted = |line: &&str| {
        let line = line.to_ascii_lowercase();
        line.starts_with("acquire::http::") || line.starts_with("acquire::https::")
    };
    Ok(settings.lines().filter(wanted).flat_map(|line| [line, "\n"]).collect())
}

fn configuration(folder: &Path, proxies: &str) -> String {
    let folder = folder.display();
    format!(
        "Dir \"{folder}\";\n\
         Dir::Etc \"{folder}/etc\";\n\
         Dir::State \"{folder}/state\";\n\
         Dir::State::status \"{folder}/status\";\n\
         Dir::Cache \"{folder}/cache\";\n\
         APT::Architecture \"amd64\";\n\
         APT::Architectures {{ \"amd64\"; }};\n\
         APT::Install-Recommends \"false\";\n\
         APT::Sandbox::User \"root\";\n\
         Acquire::Languages \"none\";\n\
         {proxies}"
    )
}

fn find(package: &Package, folder: &Path) -> Option<PathBuf> {
    let prefix = package.file_prefix();
    let mut files = std::fs::read_dir(folder).ok()?.flatten();
    let named = |file: &std::fs::DirEntry| {
        let name = file.file_name();
        name.to_str().is_some_and(|name| name.starts_with(&prefix) && name.ends_with(".deb"))
    };
    files.find(named).map(|file| file.path())
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(Error::path(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str) -> Package {
        Package { name: name.to_owned(), version: version.to_owned() }
    }

    #[test]
    fn lines_of_a_simulation_are_packages_and_others_are_not() {
        for (line, expected) in [
            (
                "Inst libc6 (2.36-9+deb12u14 Debian:12.15/oldstable [amd64]) []",
                Some(package("libc6", "2.36-9+deb12u14")),
            ),
            (
                "Inst busybox-static (1:1.35.0-4+deb12u1+b1 Debian:12.15/oldstable [amd64])",
                Some(package("busybox-static", "1:1.35.0-4+deb12u1+b1")),
            ),
            ("Inst tar [1.34] (1.35 Debian [amd64])", Some(package("tar", "1.35"))),
            ("Conf libc6 (2.36-9+deb12u14 Debian:12.15/oldstable [amd64])", None),
            ("Inst libc6", None),
            ("Inst libc6 ()", None),
            ("", None),
        ] {
            assert_eq!(Package::parse(line), expected, "{line}");
        }
    }

    #[test]
    fn packages_that_only_an_installation_needs_are_left_out() {
        for name in ["perl-base", "libpython3.11-minimal", "udev", "initramfs-tools-core"] {
            assert!(!package(name, "1").is_needed(), "{name}");
        }
        for name in ["libc6", "linux-image-amd64", "xen-utils-4.17", "libssl3", "libudev1"] {
            assert!(package(name, "1").is_needed(), "{name}");
        }
    }

    #[test]
    fn a_file_is_found_by_name_and_exact_version() {
        let folder = lab::TempDir::new().expect("folder");
        let name = "busybox-static_1%3a1.35.0-4+b1_amd64.deb";
        write(&folder.path().join(name), "").expect("write");
        let found = |version: &str| find(&package("busybox-static", version), folder.path());
        assert_eq!(found("1:1.35.0-4+b1"), Some(folder.path().join(name)));
        assert_eq!(found("1:1.35.0-4"), None);
    }

    #[test]
    fn the_mirrors_of_this_machine_serve_any_suite() {
        let mirrors = Mirrors::parse(
            "http://one.test/debian/\nhttp://one.test/debian/\nhttp://two.test/debian-security/\n",
        );
        let sources = mirrors.expect("two").sources(Suite::Trixie, None);
        let fields: Vec<_> =
            sources.lines().map(|line| line.split_once("] ").expect("options").1).collect();
        assert_eq!(
            fields,
            [
                "http://one.test/debian/ trixie main",
                "http://one.test/debian/ trixie-updates main",
                "http://two.test/debian-security/ trixie-security main",
            ]
        );
        assert_eq!(Mirrors::parse("\n"), None);
        let alone = Mirrors::parse("http://one.test/debian/").expect("one");
        assert_eq!(alone.sources(Suite::Bookworm, None).lines().count(), 2);
    }
}

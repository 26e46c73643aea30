//! A namespace with a folder: where the daemons of a host run.

use std::path::PathBuf;

use lab::{Namespace, Process, TempDir};
use xenlab::Result;

use crate::programs::{LIMIT, Programs, content, until};

/// A host's namespace, the folder with all files of its daemons, and the programs.
pub(crate) struct Node {
    pub(crate) programs: Programs,
    pub(crate) folder: TempDir,
    pub(crate) namespace: Namespace,
}

impl Node {
    pub(crate) fn create(programs: &Programs) -> Result<Self> {
        let (namespace, folder) = (Namespace::create("ovnlab")?, TempDir::new()?);
        Ok(Self { programs: programs.clone(), folder, namespace })
    }

    /// The socket of the database with this name.
    pub(crate) fn socket(&self, database: &str) -> PathBuf {
        self.folder.path().join(format!("{database}.sock"))
    }

    /// The same in the syntax of OVN's and Open vSwitch's programs.
    pub(crate) fn remote(&self, database: &str) -> String {
        format!("unix:{}", self.socket(database).display())
    }

    /// The option that says where a daemon takes commands.
    pub(crate) fn control(&self, name: &str) -> String {
        format!("--unixctl={}", self.folder.path().join(format!("{name}.ctl")).display())
    }

    /// Runs a client of a database.
    pub(crate) fn client(&self, program: &str, database: &str, words: &[&str]) -> Result<String> {
        let mut command = self.programs.client(program)?;
        command.arg(format!("--db={}", self.remote(database))).arg("--timeout=30").args(words);
        Ok(lab::run(command, LIMIT)?)
    }

    pub(crate) fn daemon(&self, program: &str, arguments: &[&str]) -> Result<Process> {
        let program = self.programs.path(program)?;
        let command = self.namespace.exec(&program.to_string_lossy())?;
        let mut command = self.programs.with_libraries(command);
        for suite in ["OVS", "OVN"] {
            for kind in ["RUNDIR", "LOGDIR", "DBDIR", "SYSCONFDIR"] {
                command.env(format!("{suite}_{kind}"), self.folder.path());
            }
        }
        // DPDK's folder.
        command.env("RUNTIME_DIRECTORY", self.folder.path());
        command.args(arguments);
        Ok(Process::capture(command)?)
    }

    /// Starts the server of a new database. `remotes` are where it listens, beside its socket.
    pub(crate) fn database(&self, name: &str, schema: &str, remotes: &[&str]) -> Result<Process> {
        let file = self.folder.path().join(format!("{name}.db")).display().to_string();
        let schema = self.programs.file(schema).display().to_string();
        let mut create = self.programs.client("ovsdb-tool")?;
        create.args(["create", &file, &schema]);
        lab::run(create, LIMIT)?;
        let (socket, control) = (self.socket(name), self.control(name));
        let unix = format!("--remote=punix:{}", socket.display());
        let mut arguments = vec![file.as_str(), &unix, &control, "-vconsole:warn"];
        arguments.extend(remotes);
        let mut server = self.daemon("ovsdb-server", &arguments)?;
        until(&format!("the database {name}"), || match server.ended()? {
            Some(status) => Err(content("ovsdb-server", &format!("{status}: {}", server.stderr()))),
            None => Ok(socket.exists()),
        })?;
        Ok(server)
    }
}

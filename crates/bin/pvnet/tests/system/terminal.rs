//! `pvnet top` on a terminal of 80 columns and 24 lines: tmux is the terminal.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::testbed::{LIMIT, Testbed, pvnet, requires, wait};

/// A terminal with a program in it, which ends with this value.
struct Terminal {
    socket: PathBuf,
}

impl Terminal {
    fn start(socket: PathBuf, program: &str) -> Self {
        let terminal = Self { socket };
        let size = ["-x", "80", "-y", "24"];
        let mut command = terminal.tmux("new-session");
        command.arg("-d").args(size).arg(program);
        lab::run(command, LIMIT).unwrap();
        terminal
    }

    fn tmux(&self, subcommand: &str) -> Command {
        let mut command = lab::command("tmux").unwrap();
        command.arg("-S").arg(&self.socket).args(["-f", "/dev/null", subcommand]);
        command
    }

    fn press(&self, keys: &[&str]) {
        let mut command = self.tmux("send-keys");
        command.args(keys);
        lab::run(command, LIMIT).unwrap();
    }

    fn screen(&self) -> String {
        let mut command = self.tmux("capture-pane");
        command.arg("-p");
        lab::run(command, LIMIT).unwrap()
    }

    /// Waits until the screen has these words, and returns it.
    fn shows(&self, words: &str) -> String {
        let mut screen = String::new();
        wait(words, || {
            screen = self.screen();
            screen.contains(words)
        });
        screen
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.tmux("kill-server").output();
    }
}

#[test]
fn top_sorts_filters_and_gives_the_terminal_back() {
    requires!("tmux", "stty");
    let mut testbed = Testbed::start(2, "workers = 1");
    testbed.join(0, &[]);
    testbed.join(1, &[]);
    let mut names: Vec<_> = testbed.guests.iter().map(|guest| guest.namespace.name()).collect();
    names.sort_unstable();
    let folder = testbed.folder();
    let program = format!(
        "{} top --interval 0.2 --directory {}; echo ended $?; stty -a; sleep 1000",
        env!("CARGO_BIN_EXE_pvnet"),
        folder.display()
    );
    let terminal = Terminal::start(folder.join("tmux"), &program);
    let screen = terminal.shows("drops/s");
    assert!(screen.contains("in the daemon's order; ? for help"), "{screen}");
    let order = |screen: &str| {
        let listed = |name: &&str| screen.find(&format!("\n{name} "));
        names.iter().map(listed).collect::<Vec<_>>()
    };
    terminal.press(&["n"]);
    let screen = terminal.shows("ports by name;");
    assert!(order(&screen).is_sorted() && order(&screen)[0].is_some(), "{screen}");
    terminal.press(&["-"]);
    let screen = terminal.shows("ports by name, Z first;");
    assert!(order(&screen)[0] > order(&screen)[1] && order(&screen)[1].is_some(), "{screen}");

    // The filter narrows while it is written; q is a letter in it.
    terminal.press(&["/", "q"]);
    terminal.shows("filter: q_");
    terminal.shows("0 of 2 ports");
    terminal.press(&["BSpace"]);
    terminal.press(&["-l", names[1]]);
    let screen = terminal.shows("1 of 2 ports");
    assert!(order(&screen)[0].is_none() && order(&screen)[1].is_some(), "{screen}");
    terminal.press(&["Enter"]);
    terminal.shows(&format!("ports with {:?} by name", names[1]));
    terminal.press(&["Escape"]);
    terminal.shows("ports by name, Z first;");
    terminal.press(&["Right"]);
    terminal.shows("ports by rate, the least first");
    terminal.press(&["?"]);
    terminal.shows("quit");
    terminal.press(&["q"]);
    let screen = terminal.shows("speed");
    assert!(screen.contains("ended 0"), "{screen}");
    let screen = terminal.shows(" icanon");
    assert!(screen.contains(" echo ") && !screen.contains("-icanon"), "{screen}");
}

#[test]
fn output_that_cannot_be_written_is_an_error_and_no_panic() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    for (stdout, reason) in [
        (Stdio::from(full), "pvnet: standard output: No space left on device (os error 28)\n"),
        (closed.into(), ""),
    ] {
        let mut command = pvnet();
        command.args(["run", "--check", "--config"]);
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/pvnet.toml"));
        let output = command.stdout(stdout).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), reason);
        assert_eq!(output.status.code(), Some(1));
    }
}

//! The other process of a test: this test binary again, running one ignored test of it. It is
//! killed with its handle, and ends by itself when its parent does.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, Stdio};

/// What a child prints before its news, so that the harness's own lines are told apart.
const PREFIX: &str = "peer says: ";

/// A running peer process.
#[derive(Debug)]
pub struct PeerProcess {
    child: Child,
    /// The child ends when this does.
    _lifeline: ChildStdin,
}

impl PeerProcess {
    /// Runs the ignored test `test` of this binary, with these variables set, until it has said
    /// its first line. Gives the process and the line.
    #[allow(dead_code, reason = "not every test file needs every helper")]
    pub fn start(test: &str, variables: &[(&str, String)]) -> (PeerProcess, String) {
        let program = Command::new(std::env::current_exe().expect("the test's own path"));
        PeerProcess::start_by(program, test, variables)
    }

    /// The same, where `command` runs what this binary is called by, and its arguments.
    pub fn start_by(
        mut command: Command,
        test: &str,
        variables: &[(&str, String)],
    ) -> (PeerProcess, String) {
        let mut child = command
            .args([
                "--exact",
                test,
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .envs(variables.iter().map(|(name, value)| (*name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test binary runs again");
        let lifeline = child.stdin.take().expect("piped");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let said = lines
            .find_map(|line| {
                let line = line.expect("the child's output");
                line.find(PREFIX)
                    .map(|at| line[at + PREFIX.len()..].to_owned())
            })
            .expect("the child says where it listens before it ends");
        // Whatever else it prints must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        (
            PeerProcess {
                child,
                _lifeline: lifeline,
            },
            said,
        )
    }

    /// Stops it, as a debugger would (`SIGSTOP`): its system goes on, it does not.
    #[allow(dead_code, reason = "not every test file needs every helper")]
    pub fn stop(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on (`SIGCONT`).
    #[allow(dead_code, reason = "not every test file needs every helper")]
    pub fn go_on(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args([signal, &self.child.id().to_string()])
            .status();
        assert!(sent.expect("the command runs").success(), "{signal}");
    }

    /// `kill -9`.
    #[allow(dead_code, reason = "not every test file needs every helper")]
    pub fn kill(&mut self) {
        self.child.kill().expect("the child is killed");
        self.child.wait().expect("the child is reaped");
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In the child: tells the parent.
pub fn say(what: impl std::fmt::Display) {
    println!("{PREFIX}{what}");
}

/// In the child: ends the process when the parent has ended.
pub fn end_with_the_parent() {
    std::thread::spawn(|| {
        let mut byte = [0];
        while !matches!(std::io::stdin().read(&mut byte), Ok(0) | Err(_)) {}
        std::process::exit(0);
    });
}

//! The other process of a test: this test binary again, running one ignored test of it. It is
//! killed with its handle, and ends by itself when its parent does.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, Stdio};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// What a child prints before its news, to distinguish it from the harness's own lines.
const PREFIX: &str = "peer says: ";

/// A running peer process.
#[derive(Debug)]
pub struct PeerProcess {
    child: Child,
    said: UnboundedReceiver<String>,
    /// The child ends when this does.
    _lifeline: ChildStdin,
}

impl PeerProcess {
    /// Runs the ignored test `test` of this binary, with these variables set.
    pub fn spawn(test: &str, variables: &[(&str, String)]) -> PeerProcess {
        let program = Command::new(std::env::current_exe().expect("the test's own path"));
        PeerProcess::spawn_by(program, test, variables)
    }

    /// The same, where `command` runs what this binary is called by, and its arguments.
    pub fn spawn_by(mut command: Command, test: &str, variables: &[(&str, String)]) -> PeerProcess {
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
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let (saying, said) = unbounded_channel();
        // Whatever else it prints must not fill the pipe.
        std::thread::spawn(move || {
            for line in lines {
                let line = line.expect("the child's output");
                if let Some(at) = line.find(PREFIX) {
                    let _ = saying.send(line[at + PREFIX.len()..].to_owned());
                }
            }
        });
        PeerProcess {
            child,
            said,
            _lifeline: lifeline,
        }
    }

    /// The same, until it has said its first line. Gives the process and the line.
    pub fn start(test: &str, variables: &[(&str, String)]) -> (PeerProcess, String) {
        let mut process = PeerProcess::spawn(test, variables);
        let said = process.line_now();
        (process, said)
    }

    /// What it says next; blocks until then.
    pub fn line_now(&mut self) -> String {
        let said = futures::executor::block_on(self.said.recv());
        said.expect("the child says what it has come to before it ends")
    }

    /// What it says next.
    pub async fn line(&mut self) -> String {
        let said = self.said.recv().await;
        said.expect("the child says what it has come to before it ends")
    }

    /// What it had still said before it ended; waits for that.
    pub async fn remaining_lines(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(line) = self.said.recv().await {
            lines.push(line);
        }
        lines
    }

    /// Stops it, as a debugger would (`SIGSTOP`): its system goes on, it does not. The signal takes
    /// its time to reach every thread; this waits until it has.
    pub fn stop(&self) {
        signal(self.id(), libc::SIGSTOP);
        while !self.is_stopped() {
            std::thread::yield_now();
        }
    }

    /// True if none of its threads runs.
    fn is_stopped(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.id()));
        tasks.expect("a living child").flatten().all(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat"));
            // The state stands behind the name, which is in brackets and may hold anything.
            stat.map_or(true, |stat| {
                let state = stat.rsplit(')').next().unwrap_or_default();
                matches!(state.trim_start().chars().next(), Some('T' | 't'))
            })
        })
    }

    /// Lets it go on (`SIGCONT`).
    pub fn go_on(&self) {
        signal(self.id(), libc::SIGCONT);
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.child.kill().expect("the child is killed");
        self.child.wait().expect("the child is reaped");
    }

    /// Its process number, for signals.
    pub fn id(&self) -> i32 {
        self.child.id().try_into().expect("a process number")
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Signals a process of ours that has not been waited for.
pub fn signal(process: i32, signal: i32) {
    // SAFETY: a plain system call, which touches no memory of this process.
    let answer = unsafe { libc::kill(process, signal) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
}

/// In the child: prints a line for the parent.
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

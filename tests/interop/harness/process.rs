//! A C program that runs: its input, its output, its end.

use std::ffi::OsStr;
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{LOOK_AGAIN, compile};

/// What spares the programs the reading of the kernel's symbols; `None` where nothing is compiled.
fn without_symbols() -> Option<&'static Path> {
    static LIBRARY: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
        let options = ["-shared", "-fPIC", "-Wl,--as-needed"];
        compile("tests/interop/symbols.c", "interop-symbols.so", &options).ok()
    });
    LIBRARY.as_deref()
}

/// A running C program. Dropping it kills it.
pub struct Process {
    name: String,
    child: Child,
    stdout: Lines,
    stderr: Lines,
    pub(super) port: Option<u16>,
}

impl Process {
    /// Starts any program with its output collected; `name` is for messages.
    #[track_caller]
    pub fn start<S: AsRef<OsStr>>(
        name: String,
        program: &Path,
        arguments: impl IntoIterator<Item = S>,
    ) -> Self {
        Process::start_with(name, program, arguments, Stdio::null())
    }

    /// The same, for a program that waits for words ([`Process::say`]).
    #[track_caller]
    pub fn start_to_talk<S: AsRef<OsStr>>(
        name: String,
        program: &Path,
        arguments: impl IntoIterator<Item = S>,
    ) -> Self {
        Process::start_with(name, program, arguments, Stdio::piped())
    }

    #[track_caller]
    fn start_with<S: AsRef<OsStr>>(
        name: String,
        program: &Path,
        arguments: impl IntoIterator<Item = S>,
        stdin: Stdio,
    ) -> Self {
        let mut command = Command::new(program);
        if let Some(library) = without_symbols() {
            command.env("LD_PRELOAD", library);
        }
        let mut child = command
            .args(arguments)
            // The reason of a teardown is only in the provider's log.
            .env("FI_LOG_LEVEL", "warn")
            .env_remove("FI_PROVIDER")
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: {}: {error}", program.display()));
        let stdout = Lines::collect(child.stdout.take().expect("its output is piped"));
        let stderr = Lines::collect(child.stderr.take().expect("its errors are piped"));
        Process {
            name,
            child,
            stdout,
            stderr,
            port: None,
        }
    }

    /// The port it listens on.
    #[track_caller]
    pub fn port(&self) -> u16 {
        self.port.expect("only listening programs have a port")
    }

    /// The address it listens on.
    #[track_caller]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    /// What it is, as given when it was started.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process number, for signals.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Writes a line to its input.
    #[track_caller]
    pub fn say(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("it was started to talk");
        // It may have ended, which the caller that waits for it will see.
        let _ = writeln!(input, "{line}");
    }

    /// Kills it (SIGKILL), as an operator or the kernel would.
    pub fn kill(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.child.kill();
    }

    /// All lines so far that start with `start`.
    pub fn lines(&self, start: &str) -> Vec<String> {
        let mut lines = self.stdout.all();
        lines.retain(|line| line.starts_with(start));
        lines
    }

    /// Waits for a line of output that starts with `start`, blocking the thread.
    ///
    /// # Panics
    ///
    /// When the program ends before, or the time is over.
    #[track_caller]
    pub fn wait_for_line(&mut self, start: &str, patience: Duration) -> String {
        let deadline = Instant::now() + patience;
        loop {
            // Asked before looking: what an ended program has written is all there afterwards.
            let ended = self.try_status().is_some();
            if ended {
                self.stdout.join();
            }
            if let Some(line) = self.stdout.find(start) {
                return line;
            }
            assert!(!ended, "no line {start:?} before the end\n{self}");
            assert!(
                Instant::now() < deadline,
                "no line {start:?} within {patience:?}\n{self}"
            );
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// [`Process::wait_for_line`] without blocking the runtime.
    ///
    /// # Panics
    ///
    /// As there.
    pub async fn line(&mut self, start: &str, patience: Duration) -> String {
        let deadline = Instant::now() + patience;
        while self.stdout.find(start).is_none() && self.try_status().is_none() {
            if Instant::now() >= deadline {
                break;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        self.wait_for_line(start, Duration::ZERO)
    }

    /// Waits for the end, blocking the thread. After `patience` it is killed, and the outcome says
    /// so.
    pub fn finish(mut self, patience: Duration) -> Outcome {
        let deadline = Instant::now() + patience;
        while self.try_status().is_none() && Instant::now() < deadline {
            std::thread::sleep(LOOK_AGAIN);
        }
        self.outcome()
    }

    /// [`Process::finish`] without blocking the runtime.
    pub async fn finished(mut self, patience: Duration) -> Outcome {
        let deadline = Instant::now() + patience;
        while self.try_status().is_none() && Instant::now() < deadline {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        self.outcome()
    }

    /// How it ended, or `None` while it runs.
    pub fn try_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("it is our child")
    }

    fn outcome(mut self) -> Outcome {
        let timed_out = self.try_status().is_none();
        self.kill();
        let status = self.child.wait().expect("it is our child");
        self.stdout.join();
        self.stderr.join();
        Outcome {
            name: self.name.clone(),
            status,
            timed_out,
            stdout: self.stdout.all(),
            stderr: self.stderr.all(),
        }
    }
}

impl fmt::Display for Process {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_output(
            formatter,
            &self.name,
            &self.stdout.all(),
            &self.stderr.all(),
        )
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        // Reaped, so that no zombie outlives its test. A killed child ends at once.
        let _ = self.child.wait();
    }
}

/// How a C program ended.
pub struct Outcome {
    /// Which one it was.
    pub name: String,
    /// Its exit status.
    pub status: ExitStatus,
    /// Whether it was killed because it took too long.
    pub timed_out: bool,
    /// Its output, by lines.
    pub stdout: Vec<String>,
    /// Its errors, and the provider's log, by lines.
    pub stderr: Vec<String>,
}

impl Outcome {
    /// It ended by itself with exit code 0.
    pub fn success(&self) -> bool {
        !self.timed_out && self.status.success()
    }

    /// Fails the test, with all that the program wrote, unless it is a success whose last line is
    /// `OK`.
    #[track_caller]
    pub fn assert_ok(&self) {
        let last = self.stdout.last().map(String::as_str);
        assert!(self.success() && last == Some("OK"), "{self}");
    }

    /// Fails the test, with all that the program wrote, unless it ended with exit code 0: for
    /// `fi_pingpong`, which has no last word.
    #[track_caller]
    pub fn assert_success(&self) {
        assert!(self.success(), "{self}");
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let late = if self.timed_out {
            " (killed: out of time)"
        } else {
            ""
        };
        writeln!(formatter, "{} ended with {}{late}", self.name, self.status)?;
        write_output(formatter, &self.name, &self.stdout, &self.stderr)
    }
}

fn write_output(
    formatter: &mut fmt::Formatter<'_>,
    name: &str,
    stdout: &[String],
    stderr: &[String],
) -> fmt::Result {
    for line in stdout {
        writeln!(formatter, "[{name}] {line}")?;
    }
    for line in stderr {
        writeln!(formatter, "[{name}, stderr] {line}")?;
    }
    Ok(())
}

/// The lines of a pipe, collected by a thread, so that the program never waits for us to read.
struct Lines {
    lines: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Lines {
    fn collect(pipe: impl Read + Send + 'static) -> Self {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(pipe).split(b'\n') {
                // A broken pipe ends the collection as its end does.
                let Ok(line) = line else { break };
                let line = String::from_utf8_lossy(&line).into_owned();
                sink.lock()
                    .expect("no reader panics with the lock held")
                    .push(line);
            }
        });
        Lines {
            lines,
            reader: Some(reader),
        }
    }

    /// Waits for the end of the pipe; the program must have ended.
    fn join(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the reader does not panic");
        }
    }

    fn find(&self, start: &str) -> Option<String> {
        let lines = self
            .lines
            .lock()
            .expect("no reader panics with the lock held");
        lines.iter().find(|line| line.starts_with(start)).cloned()
    }

    fn all(&self) -> Vec<String> {
        self.lines
            .lock()
            .expect("no reader panics with the lock held")
            .clone()
    }
}

//! The example's program as a process: started, asked what it said, interrupted, killed.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::child::signal;

/// Long enough for a loaded machine; a hang is reported the same minute.
const LIMIT: Duration = Duration::from_secs(60);

/// The program, which `cargo test` has built beside the tests.
fn program() -> Command {
    let test = std::env::current_exe().expect("this test has a path");
    let built = test.ancestors().nth(2);
    let built = built.expect("deps, and above it the profile");
    let program: PathBuf = built.join("examples").join("rdm_all_to_all");
    assert!(
        program.is_file(),
        "{program:?} is missing: cargo build --example rdm_all_to_all makes it"
    );
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs it to its end.
#[track_caller]
pub fn run(args: &[&str]) -> Output {
    finish(program().args(args).spawn().expect("the program starts"))
}

/// Runs it to its end, which has to be a good one; what it came to.
#[track_caller]
pub fn run_json(args: &[&str]) -> Value {
    object(&run(&[&["--json"], args].concat()))
}

fn finish(mut child: Child) -> Output {
    // What it prints is some lines, so the pipes hold all of it.
    let start = Instant::now();
    while child.try_wait().expect("it can be waited for").is_none() {
        if start.elapsed() > LIMIT {
            let _ = child.kill();
            panic!("it does not end: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("its output can be read")
}

#[track_caller]
fn object(output: &Output) -> Value {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{:?}: {out}{err}", output.status);
    assert_eq!(out.lines().count(), 1, "{out}");
    assert!(!err.contains("panicked"), "{err}");
    serde_json::from_str(&out).expect("one JSON object")
}

/// All that arrived is right, and all arrived.
#[track_caller]
pub fn assert_well(object: &Value) {
    for field in ["wrong", "misordered", "missing"] {
        assert_eq!(object[field], 0, "{field}: {object}");
    }
}

pub fn number(object: &Value, field: &str) -> u64 {
    object[field].as_u64().expect("a count")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs it on a terminal of its own; what it showed there.
pub fn on_a_terminal(args: &[&str]) -> String {
    use std::os::fd::{FromRawFd, OwnedFd};

    let (mut ours, mut its) = (-1, -1);
    let null = std::ptr::null_mut();
    // SAFETY: the two places are ours, and nothing else is asked for.
    let opened = unsafe { libc::openpty(&mut ours, &mut its, null, null.cast(), null.cast()) };
    assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: both were just opened, and have no other owner.
    let [ours, its] = [ours, its].map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    // The command goes with its line, and with it our end of the program's side.
    let child = program().args(args).stdout(its).spawn();
    let (mut shown, mut piece) = (Vec::new(), [0; 4096]);
    let mut ours = std::fs::File::from(ours);
    // When the program has ended the terminal's other end is closed, which is an error.
    while let Ok(count @ 1..) = ours.read(&mut piece) {
        shown.extend_from_slice(&piece[..count]);
    }
    let output = finish(child.expect("the program starts"));
    let (shown, err) = (text(&shown), text(&output.stderr));
    assert!(output.status.success(), "{:?}: {shown}{err}", output.status);
    shown
}

/// A line as it is seen.
pub fn without_escapes(line: &str) -> String {
    let mut pieces = line.split("\x1b[");
    let mut seen = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let end = piece.find(|sign: char| sign.is_ascii_alphabetic());
        seen.push_str(&piece[end.map_or(0, |end| end + 1)..]);
    }
    seen.trim_end().to_owned()
}

/// A program that runs, with `--json`; it ends with this value.
pub struct Running {
    child: Child,
    /// Where its first endpoint listens.
    pub address: String,
    said: Arc<(Mutex<Said>, Condvar)>,
}

#[derive(Default)]
struct Said {
    lines: Vec<String>,
    over: bool,
}

impl Running {
    #[track_caller]
    pub fn start(args: &[&str]) -> Running {
        let child = program().arg("--json").args(args).spawn();
        let mut child = child.expect("the program starts");
        let lines = BufReader::new(child.stderr.take().expect("it was piped")).lines();
        let said = Arc::<(Mutex<Said>, Condvar)>::default();
        let hearing = Arc::clone(&said);
        std::thread::spawn(move || {
            let (said, news) = &*hearing;
            for line in lines.map_while(Result::ok) {
                said.lock().expect("no thread panics").lines.push(line);
                news.notify_all();
            }
            said.lock().expect("no thread panics").over = true;
            news.notify_all();
        });
        let mut running = Running {
            child,
            address: String::new(),
            said,
        };
        let first = running.said("others --join ");
        let address = first.rsplit(' ').next();
        running.address = address.expect("the line's form").to_owned();
        running
    }

    /// Waits until it has said a line with these words, and gives it.
    #[track_caller]
    pub fn said(&self, words: &str) -> String {
        self.said_of(1, words).remove(0)
    }

    /// Waits until it has said so many lines with these words.
    #[track_caller]
    pub fn said_of(&self, count: usize, words: &str) -> Vec<String> {
        let (said, news) = &*self.said;
        let with = |said: &Said| -> Vec<String> {
            let lines = said.lines.iter().filter(|line| line.contains(words));
            lines.cloned().collect()
        };
        let said = said.lock().expect("no thread panics");
        let waited =
            news.wait_timeout_while(said, LIMIT, |said| with(said).len() < count && !said.over);
        let (said, _) = waited.expect("no thread panics");
        let found = with(&said);
        assert!(
            found.len() >= count,
            "{count} times {words:?} are not in {:#?}",
            said.lines
        );
        found
    }

    /// Ctrl-C; what it came to.
    #[track_caller]
    pub fn interrupt(mut self) -> Value {
        signal(self.child.id().try_into().expect("a process"), libc::SIGINT);
        let start = Instant::now();
        while self.child.try_wait().expect("it is a child").is_none() {
            assert!(start.elapsed() < LIMIT, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        let status = self.child.wait().expect("it is a child");
        let mut out = String::new();
        let mut stdout = self.child.stdout.take().expect("it was piped");
        stdout.read_to_string(&mut out).expect("its output");
        let lines = &self.said.0.lock().expect("no thread panics").lines;
        assert!(status.success(), "{status:?}: {out} {lines:#?}");
        serde_json::from_str(&out).expect("one JSON object")
    }

    /// `kill -9`.
    pub fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it is a child");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

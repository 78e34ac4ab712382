//! The example's program as a process: started, watched, asked what it said.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Long enough for a loaded machine; a hang is reported the same minute.
const LIMIT: Duration = Duration::from_secs(60);

/// The program, which `cargo test` has built beside the tests.
pub fn program() -> Command {
    let test = std::env::current_exe().expect("this test has a path");
    let built = test
        .ancestors()
        .nth(2)
        .expect("deps, and above it the profile");
    let program: PathBuf = built.join("examples").join("rpc_bulk");
    assert!(
        program.is_file(),
        "{program:?} is missing: cargo build --example rpc_bulk makes it"
    );
    let mut command = Command::new(program);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs it to its end, which must come within the limit.
#[track_caller]
pub fn run(args: &[&str]) -> Output {
    finish(program().args(args).spawn().expect("the program starts"))
}

#[track_caller]
pub fn finish(mut child: Child) -> Output {
    // What it prints is a few lines, so the pipes hold all of it.
    let start = Instant::now();
    while child.try_wait().expect("it can be waited for").is_none() {
        if start.elapsed() > LIMIT {
            let _ = child.kill();
            panic!(
                "still running after {LIMIT:?}: {:?}",
                child.wait_with_output()
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("its output can be read")
}

/// The JSON object of a run that went well, and with nothing else said.
#[track_caller]
pub fn object(output: &Output) -> Value {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{:?}: {err}", output.status);
    assert_eq!(err, "");
    assert_eq!(out.lines().count(), 1, "{out}");
    serde_json::from_str(&out).expect("one JSON object")
}

/// The object says that these bytes were moved.
#[track_caller]
pub fn assert_moved(object: &Value, bytes: &[u8]) {
    assert_eq!(object["verified"], true, "{object}");
    assert_eq!(object["bytes"], bytes.len(), "{object}");
    assert_eq!(
        object["digest"],
        blake3::hash(bytes).to_hex().as_str(),
        "{object}"
    );
}

/// The run failed with one line that contains all of `words`, and printed no result.
#[track_caller]
pub fn assert_refused(output: &Output, words: &[&str]) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(!output.status.success(), "it went well: {out}");
    assert!(
        output.status.code().is_some(),
        "it crashed: {:?}",
        output.status
    );
    assert_eq!(out, "");
    assert_eq!(err.lines().count(), 1, "one line, not {err:?}");
    for word in words {
        assert!(err.contains(word), "{word:?} is not in {err:?}");
    }
    assert!(!err.contains("panicked"), "{err}");
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A file of so many bytes that repeat nowhere.
pub fn file(len: usize) -> (tempfile::NamedTempFile, Vec<u8>) {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let mut bytes = vec![0; len];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    std::fs::write(file.path(), &bytes).expect("it can be written");
    (file, bytes)
}

/// A server process; it ends with this value.
pub struct Server {
    pub child: Child,
    pub address: SocketAddr,
    stdout: BufReader<ChildStdout>,
}

impl Server {
    pub fn start() -> Server {
        let mut command = program();
        command.args(["serve", "127.0.0.1:0"]);
        let mut child = command.spawn().expect("the server starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("it was piped"));
        let mut line = String::new();
        stdout
            .read_line(&mut line)
            .expect("it says where it listens");
        let address = line.trim().strip_prefix("serving at ").map(str::parse);
        let address = address.expect("the line's form").expect("an address");
        Server {
            child,
            address,
            stdout,
        }
    }

    /// Runs a client against it.
    pub fn call(&self, args: &[&str]) -> Output {
        finish(self.client(args))
    }

    pub fn client(&self, args: &[&str]) -> Child {
        let address = self.address.to_string();
        let mut command = program();
        command
            .args(["call", &address])
            .args(args)
            .spawn()
            .expect("the client starts")
    }

    /// Kills it; what it said on standard error.
    pub fn kill(mut self) -> String {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it is a child");
        let mut out = String::new();
        self.stdout
            .read_to_string(&mut out)
            .expect("the rest of its output");
        assert_eq!(out, "", "one line is all that serve prints");
        let mut err = String::new();
        let mut stderr = self.child.stderr.take().expect("it was piped");
        stderr.read_to_string(&mut err).expect("its errors");
        err
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Peak resident memory of a process that runs, in bytes; `None` if it has none (any more).
pub fn peak_memory(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Waits until the process has used so much memory, so that a transfer is under way.
pub fn await_resident(child: &Child, bytes: u64) {
    let start = Instant::now();
    while peak_memory(child.id()).is_none_or(|peak| peak < bytes) {
        assert!(
            start.elapsed() < LIMIT,
            "process {} moves nothing",
            child.id()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

//! `examples/pingpong`, built and run as a program.

#![allow(dead_code, reason = "not every test target needs all of it")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Instant, SystemTime};

use crate::harness::{Outcome, PATIENCE, PingPong, PingPongKind, Process, free_port, listens};

/// Rows of `-S all`: 0, 1, and two for each power of two from 2 bytes to 4 MiB.
const ALL_SIZES: usize = 46;
/// Those of them that a datagram of libfabric's `udp` provider takes: up to 1,024 bytes.
const DATAGRAM_SIZES: usize = 21;

/// The example did well, and printed a row of each of all sizes, with every round trip.
#[track_caller]
pub fn assert_table(outcome: &Outcome, options: &PingPong) {
    outcome.assert_success();
    let columns = [
        "bytes",
        "#sent",
        "#ack",
        "total",
        "time",
        "MB/sec",
        "usec/xfer",
        "Mxfers/sec",
    ];
    let head: Vec<&str> = outcome.stdout[0].split_whitespace().collect();
    assert_eq!(head, columns);
    let rows: Vec<&String> = outcome.stdout[1..].iter().collect();
    let sizes = match options.kind {
        PingPongKind::Datagrams => DATAGRAM_SIZES,
        _ => ALL_SIZES,
    };
    assert_eq!(rows.len(), sizes, "{outcome}");
    let count = format!("={}", options.iterations.unwrap_or(10));
    let is_complete = |row: &&String| row.split_whitespace().nth(2) == Some(&count);
    assert!(rows.iter().all(is_complete), "{outcome}");
}

/// Our example.
#[derive(Debug)]
pub struct Example {
    program: PathBuf,
}

impl Example {
    /// The example of the profile that this test was built with. `cargo test` builds it beside the
    /// tests; when only a test target was asked for it is built here, should it be missing or older
    /// than what it is made from.
    pub fn get() -> &'static Example {
        static EXAMPLE: OnceLock<Example> = OnceLock::new();
        EXAMPLE.get_or_init(|| {
            let test = std::env::current_exe().unwrap();
            let directory = test.ancestors().nth(2).expect("tests lie in PROFILE/deps");
            let program = directory.join("examples/pingpong");
            let built = modified(&program);
            if built.is_none() || built < newest_source() {
                build(directory);
            }
            assert!(program.is_file(), "{} was not built", program.display());
            Example { program }
        })
    }

    /// Runs it with these arguments.
    #[track_caller]
    pub fn start(&self, arguments: Vec<String>) -> Process {
        let name = format!("pingpong {}", arguments.join(" "));
        Process::start(name, &self.program, arguments)
    }

    /// The server form, once its side channel listens; and its port.
    #[track_caller]
    pub fn server(&self, options: &PingPong) -> (Process, u16) {
        self.server_with(options, &[])
    }

    /// The same, with more options of its own.
    #[track_caller]
    pub fn server_with(&self, options: &PingPong, more: &[&str]) -> (Process, u16) {
        for _ in 0..5 {
            let port = free_port();
            let mut arguments = options.arguments();
            arguments.extend(["-B".to_owned(), port.to_string()]);
            arguments.extend(more.iter().map(|&option| option.to_owned()));
            let mut process = self.start(arguments);
            let deadline = Instant::now() + PATIENCE;
            while process.try_status().is_none() {
                // It takes the first client, so it must not be found out by connecting.
                if listens(port) {
                    return (process, port);
                }
                assert!(Instant::now() < deadline, "it does not listen\n{process}");
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        }
        panic!("pingpong found no free port");
    }

    /// The client form.
    #[track_caller]
    pub fn client(&self, options: &PingPong, port: u16) -> Process {
        self.client_with(options, &[], port)
    }

    /// The same, with more options of its own.
    #[track_caller]
    pub fn client_with(&self, options: &PingPong, more: &[&str], port: u16) -> Process {
        let mut arguments = options.arguments();
        arguments.extend(more.iter().map(|&option| option.to_owned()));
        arguments.extend(["-P".to_owned(), port.to_string(), "127.0.0.1".to_owned()]);
        self.start(arguments)
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata()
        .and_then(|metadata| metadata.modified())
        .ok()
}

fn newest_source() -> Option<SystemTime> {
    fn newest(path: PathBuf) -> Option<SystemTime> {
        match path.read_dir() {
            Ok(entries) => entries
                .flatten()
                .filter_map(|entry| newest(entry.path()))
                .max(),
            Err(_) => modified(&path),
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    ["src", "examples/pingpong", "Cargo.toml"]
        .into_iter()
        .filter_map(|part| newest(root.join(part)))
        .max()
}

fn build(directory: &Path) {
    let profile = directory
        .file_name()
        .and_then(|name| name.to_str())
        .expect("a profile's name");
    let profile = if profile == "debug" { "dev" } else { profile };
    let output = Command::new(env!("CARGO"))
        .args([
            "build",
            "--example",
            "pingpong",
            "--profile",
            profile,
            "--target-dir",
        ])
        .arg(
            directory
                .parent()
                .expect("a profile's directory lies in the target directory"),
        )
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo built this test");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

//! Starts the C ends of the interoperation tests: `peer.c`, compiled here against libfabric, and
//! libfabric's own `fi_pingpong`.
//!
//! ```ignore
//! #[path = "interop/harness.rs"]
//! mod harness;
//!
//! let Some(peer) = harness::libfabric().or_left_out("write") else { return };
//! let c = peer.listen("write");
//! /* ... our side connects to c.address() ... */
//! c.finished(harness::PATIENCE).await.assert_ok();
//! ```
//!
//! The processes are watched by polling, from plain threads for their output, so that both blocking
//! tests and tests on any kind of runtime can wait for them. A process that a test leaves behind is
//! killed when its handle is dropped.

// Each test target takes what it needs.
#![allow(dead_code)]

// Programs include this file by its path: then modules are looked for beside it.
#[path = "harness/process.rs"]
mod process;

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

#[allow(unused_imports, reason = "not every test target needs every one")]
pub use process::{Outcome, Process};

/// Long enough for any scenario on a loaded machine, and longer than the C program's own watchdog,
/// whose message says more than "timed out".
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How often a waiting test looks.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// When set to `1`, a missing libfabric is a failure: so that CI cannot leave these tests out.
const REQUIRE: &str = "TOKIO_FABRIC_REQUIRE_LIBFABRIC";

/// Whether a program of the other side can be had on this machine.
pub enum Availability<T> {
    /// It is here.
    Present(T),
    /// It is not, for this reason.
    Missing(String),
}

impl<T> Availability<T> {
    /// What is present; or `None`, having printed that `test` was left out and why.
    ///
    /// # Panics
    ///
    /// When it is missing and `TOKIO_FABRIC_REQUIRE_LIBFABRIC=1` is set.
    #[track_caller]
    pub fn or_left_out(self, test: &str) -> Option<T> {
        match self {
            Availability::Present(present) => Some(present),
            Availability::Missing(reason) => {
                let required = std::env::var_os(REQUIRE).is_some_and(|value| value == "1");
                assert!(
                    !required,
                    "{test}: {reason}, and {REQUIRE}=1 forbids leaving it out"
                );
                // Not by `println!`, which the test runner keeps to itself when a test passes.
                let _ = writeln!(std::io::stderr(), "left out: {test}: {reason}");
                None
            }
        }
    }
}

/// The C program of the scenarios, compiled at the first call.
///
/// # Panics
///
/// When libfabric is there and the program does not compile: that is a fault, not an absence.
pub fn libfabric() -> Availability<&'static PeerProgram> {
    static PROGRAM: OnceLock<Result<PeerProgram, String>> = OnceLock::new();
    match PROGRAM.get_or_init(PeerProgram::compile) {
        Ok(program) => Availability::Present(program),
        Err(reason) => Availability::Missing(reason.clone()),
    }
}

/// libfabric's `fi_pingpong`, if it is on the path.
pub fn fi_pingpong() -> Availability<PingPongProgram> {
    match find_in_path("fi_pingpong") {
        Some(program) => Availability::Present(PingPongProgram { program }),
        None => {
            Availability::Missing("fi_pingpong (package libfabric-bin) is not on the path".into())
        }
    }
}

/// Compiles a C program against libfabric. `Err` says what is not installed.
///
/// # Panics
///
/// When libfabric is there and the program does not compile.
pub fn compile(source: &str, name: &str, options: &[&str]) -> Result<PathBuf, String> {
    let flags = pkg_config()?;
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // Test binaries may run side by side: each compiles apart and puts its result in place in
    // one step. The file is always the same one, so that nothing is left lying about.
    let apart = tempfile::tempdir_in(directory).expect("a directory inside the target directory");
    let fresh = apart.path().join(name);
    let output = Command::new(&compiler)
        .args(["-O1", "-Wall", "-Wextra", "-Werror"])
        .args(options)
        .arg("-o")
        .arg(&fresh)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(source))
        .args(flags.split_whitespace())
        .output()
        .map_err(|error| format!("no C compiler: {}: {error}", compiler.display()))?;
    assert!(
        output.status.success(),
        "{source} does not compile:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let program = directory.join(name);
    std::fs::rename(&fresh, &program).expect("both are in the target directory");
    Ok(program)
}

/// The compiled `peer.c`.
#[derive(Debug)]
pub struct PeerProgram {
    program: PathBuf,
}

impl PeerProgram {
    /// `Err` says what is not installed.
    fn compile() -> Result<Self, String> {
        let program = compile("tests/interop/peer.c", "interop-peer", &[])?;
        Ok(PeerProgram { program })
    }

    /// The names of all scenarios.
    pub fn scenarios(&self) -> Vec<String> {
        let output = Command::new(&self.program)
            .arg("list")
            .output()
            .expect("peer.c was compiled");
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// Starts `peer listen SCENARIO` and waits until it listens: [`Process::address`].
    #[track_caller]
    pub fn listen(&self, scenario: &str) -> Process {
        let name = format!("peer listen {scenario}");
        let mut process = Process::start(name, &self.program, ["listen", scenario]);
        let line = process.wait_for_line("PORT ", PATIENCE);
        let port = line["PORT ".len()..].parse().expect("peer prints its port");
        process.port = Some(port);
        process
    }

    /// Starts `peer connect SCENARIO HOST PORT`.
    #[track_caller]
    pub fn connect(&self, scenario: &str, to: SocketAddr) -> Process {
        let (host, port) = (to.ip().to_string(), to.port().to_string());
        let name = format!("peer connect {scenario} {to}");
        Process::start(name, &self.program, ["connect", scenario, &host, &port])
    }
}

/// Which endpoints `fi_pingpong` has, and what it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PingPongKind {
    /// Connected endpoints, of the provider `tcp`.
    Connected,
    /// Connectionless endpoints, of the provider `net`, as libfabric 1.16 and 1.17 call it.
    Rdm,
    /// The same, and tagged messages.
    RdmTagged,
    /// What `-p tcp -e rdm` is before 1.18: RXM, a protocol of its own on top of `tcp`.
    Rxm,
    /// Datagram endpoints, of the provider `udp`.
    Datagrams,
}

impl PingPongKind {
    fn arguments(self) -> [&'static str; 6] {
        match self {
            PingPongKind::Connected => ["-p", "tcp", "-e", "msg", "-m", "msg"],
            PingPongKind::Rdm => ["-p", "net", "-e", "rdm", "-m", "msg"],
            PingPongKind::Rxm => ["-p", "tcp;ofi_rxm", "-e", "rdm", "-m", "msg"],
            PingPongKind::RdmTagged => ["-p", "net", "-e", "rdm", "-m", "tagged"],
            PingPongKind::Datagrams => ["-p", "udp", "-e", "dgram", "-m", "msg"],
        }
    }
}

/// What `fi_pingpong` is asked to do; both ends must be given the same.
#[derive(Clone, Debug)]
pub struct PingPong {
    /// `-e` and `-m`.
    pub kind: PingPongKind,
    /// `-S`: a size in bytes, or `all`.
    pub size: String,
    /// `-I`: round trips for each size; its own default is 10.
    pub iterations: Option<u32>,
    /// `-c`: fill and check the data.
    pub check: bool,
}

impl Default for PingPong {
    /// All sizes, with checks, over a connection.
    fn default() -> Self {
        PingPong {
            kind: PingPongKind::Connected,
            size: "all".into(),
            iterations: None,
            check: true,
        }
    }
}

impl PingPong {
    /// The options after the program's name, without port and address.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments: Vec<String> = self.kind.arguments().map(String::from).into();
        arguments.extend(["-S".to_owned(), self.size.clone()]);
        if let Some(iterations) = self.iterations {
            arguments.extend(["-I".to_owned(), iterations.to_string()]);
        }
        if self.check {
            arguments.push("-c".into());
        }
        arguments
    }
}

/// libfabric's own ping-pong program.
#[derive(Debug)]
pub struct PingPongProgram {
    program: PathBuf,
}

impl PingPongProgram {
    /// Starts the server form and waits until its side channel listens: [`Process::port`].
    #[track_caller]
    pub fn server(&self, options: &PingPong) -> Process {
        // It takes no port 0, so a free one is looked for; another process may be faster.
        for _ in 0..5 {
            let port = free_port();
            let mut arguments = options.arguments();
            arguments.extend(["-B".to_owned(), port.to_string()]);
            let mut process = Process::start(
                format!("fi_pingpong server {port}"),
                &self.program,
                arguments,
            );
            let deadline = Instant::now() + PATIENCE;
            while process.try_status().is_none() {
                // It serves one connection only, so it must not be found out by connecting.
                if listens(port) {
                    process.port = Some(port);
                    return process;
                }
                assert!(
                    Instant::now() < deadline,
                    "fi_pingpong does not listen\n{process}"
                );
                std::thread::sleep(LOOK_AGAIN);
            }
        }
        panic!("fi_pingpong found no free port");
    }

    /// Starts the client form against the side channel at `to`.
    #[track_caller]
    pub fn client(&self, options: &PingPong, to: SocketAddr) -> Process {
        self.client_with(options, &[], to)
    }

    /// The same, with more options.
    #[track_caller]
    pub fn client_with(&self, options: &PingPong, more: &[&str], to: SocketAddr) -> Process {
        let mut arguments = options.arguments();
        arguments.extend(more.iter().map(|&option| option.to_owned()));
        arguments.extend(["-P".to_owned(), to.port().to_string(), to.ip().to_string()]);
        Process::start(format!("fi_pingpong client {to}"), &self.program, arguments)
    }
}

/// A TCP port that is free now, and that stays free until the process that was given it binds it.
///
/// It lies below the range from which the system serves `bind` to port 0 and `connect`, since tests
/// beside this one do both all the time; and none is given twice in a process.
#[track_caller]
pub fn free_port() -> u16 {
    const FIRST: u16 = 10_000;
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .expect("Linux says which ports it gives away");
    let dynamic: u16 = range
        .split_whitespace()
        .next()
        .and_then(|first| first.parse().ok())
        .expect("the range of ports begins with a number");
    let count = dynamic.saturating_sub(FIRST);
    assert!(
        count > 0,
        "no port between {FIRST} and {dynamic} is left to tests"
    );
    // Programs of tests that run at the same time begin in different places.
    let offset = u64::from(std::process::id()) * 97;
    for _ in 0..count {
        let nth = offset + u64::from(GIVEN.fetch_add(1, Ordering::Relaxed));
        let port = FIRST + u16::try_from(nth % u64::from(count)).expect("it is below a u16");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("127.0.0.1 has no free port between {FIRST} and {dynamic}");
}

/// Whether some socket listens on this TCP port, seen without connecting to it.
pub fn listens(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let table = std::fs::read_to_string(table).unwrap_or_default();
        table.lines().skip(1).any(|line| {
            // Columns: number, local address:port in hex, remote address:port, state (0A listens).
            let mut columns = line.split_whitespace().skip(1);
            let local = columns.next().and_then(|local| local.rsplit_once(':'));
            let local_port = local.and_then(|(_, port)| u16::from_str_radix(port, 16).ok());
            local_port == Some(port) && columns.nth(1) == Some("0A")
        })
    })
}

/// The compiler flags of libfabric.
fn pkg_config() -> Result<String, String> {
    let output = Command::new("pkg-config")
        .args(["--cflags", "--libs", "libfabric"])
        .output()
        .map_err(|error| format!("pkg-config does not run: {error}"))?;
    if !output.status.success() {
        return Err(
            "libfabric (package libfabric-dev) is not installed: pkg-config does not know it"
                .into(),
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn find_in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}

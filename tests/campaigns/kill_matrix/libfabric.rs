//! The same deaths with libfabric's `tcp` provider as the survivor: `survivor.c`.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::death::Death;
use super::death::Protocol;
use super::sockets::Socket;
use super::step::{Stage, Step, Victim};
use super::victim::ORDER;
use crate::common::child::{PeerProcess, signal};

/// The time within which libfabric reports a death; after that it is taken never to.
pub const NEVER: Duration = Duration::from_secs(30);
/// For what has nothing to do with the death.
const PATIENCE: Duration = Duration::from_secs(20);

/// What came of one death.
#[derive(Clone, Debug)]
pub enum SurvivorOutcome {
    /// All operations had ended, and the end of the connection was reported, after this time.
    After(Duration),
    /// Not within [`NEVER`]: so many of so many operations had not ended.
    Never { left: usize, posted: usize },
    /// It died itself.
    Crash,
}

/// The C program, and what it prints, with the time.
struct Survivor {
    child: Child,
    lines: Receiver<(Instant, String)>,
}

impl Survivor {
    fn start(program: &Path, arguments: &[String]) -> Survivor {
        let mut child = Command::new(program)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("survivor.c was compiled");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = sender.send((Instant::now(), line));
            }
        });
        Survivor {
            child,
            lines: receiver,
        }
    }

    /// What follows this word, once it is printed.
    fn word(&self, word: &str) -> String {
        loop {
            let (_, line) = self
                .lines
                .recv_timeout(PATIENCE)
                .expect("the survivor's word");
            assert!(!line.starts_with("FAIL"), "{line}");
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }

    fn go_on(&self) {
        signal(self.child.id() as i32, libc::SIGUSR1);
    }

    /// Until nothing is left and the end is reported, or [`NEVER`].
    fn ends(&self, posted: usize, died: Instant) -> SurvivorOutcome {
        let mut left = posted;
        loop {
            let limit = (died + NEVER).saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(limit) {
                Ok((at, line)) => {
                    let Some(rest) = line.strip_prefix("LEFT ") else {
                        continue;
                    };
                    let (count, saw_end) = rest.split_once(' ').expect("two numbers");
                    left = count.parse().expect("a number");
                    if left == 0 && saw_end == "1" {
                        return SurvivorOutcome::After(at.saturating_duration_since(died));
                    }
                }
                Err(RecvTimeoutError::Timeout) => return SurvivorOutcome::Never { left, posted },
                Err(RecvTimeoutError::Disconnected) => return SurvivorOutcome::Crash,
            }
        }
    }
}

impl Drop for Survivor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One death, with libfabric as the survivor.
pub fn play(program: &Path, step: Step, victim: Victim, death: Death) -> SurvivorOutcome {
    let spawn = |dial: &str| {
        let order = (ORDER, format!("{step} {:?} {dial}", Protocol::Plain));
        PeerProcess::spawn("kill_matrix::the_victim", &[order])
    };
    let (survivor, mut process, listening) = match victim {
        Victim::Dials => {
            let survivor = Survivor::start(program, &["listen".into(), step.to_string()]);
            let port = survivor.word("PORT").parse().expect("a port");
            let listening = SocketAddr::from(([127, 0, 0, 1], port));
            let process = spawn(&listening.to_string());
            (survivor, process, Some(listening))
        }
        Victim::Listens => {
            let mut process = spawn("none");
            let address: SocketAddr = process.line_now().parse().expect("its address");
            let (host, port) = (address.ip().to_string(), address.port().to_string());
            let arguments = ["connect".into(), step.to_string(), host, port];
            (Survivor::start(program, &arguments), process, None)
        }
    };
    let unasked = victim == Victim::Dials && step < Step::BeforeVerdict;
    let posted = match step {
        _ if unasked => 0,
        Step::BeforeVerdict if victim == Victim::Dials => {
            survivor.word("REQUEST");
            0
        }
        _ => survivor.word("POSTED").parse().expect("a number"),
    };
    let theirs: SocketAddr = process.line_now().parse().expect("its address");
    // Time for the survivor to come to the step, too: it does not report that.
    std::thread::sleep(Duration::from_millis(100));
    if step == Step::OurClose {
        survivor.go_on();
    }
    let died = Instant::now();
    match death {
        Death::Killed => signal(process.id(), libc::SIGKILL),
        Death::Stopped => process.stop(),
    }
    if matches!(step, Step::BeforeVerdict | Step::PausedFull) {
        survivor.go_on();
    }
    match listening {
        Some(ours) if unasked => let_go(ours, theirs, died),
        _ => survivor.ends(posted, died),
    }
}

fn let_go(ours: SocketAddr, theirs: SocketAddr, died: Instant) -> SurvivorOutcome {
    while Socket::is_held(ours, theirs) {
        if died.elapsed() > NEVER {
            return SurvivorOutcome::Never { left: 0, posted: 0 };
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    SurvivorOutcome::After(died.elapsed())
}

/// The steps that a peer of libfabric's comes to.
pub fn steps() -> impl Iterator<Item = Step> {
    let plain = |step: &Step| step.is_of(Protocol::Plain);
    Step::ALL.into_iter().filter(plain)
}

/// As Markdown: a row for each step and role.
pub fn markdown(rows: &[(Step, Victim, SurvivorOutcome, SurvivorOutcome)]) -> String {
    let shown = |outcome: &SurvivorOutcome| match outcome {
        SurvivorOutcome::After(time) => format!("{:.0} ms", time.as_secs_f64() * 1000.0),
        SurvivorOutcome::Never { left, posted } => format!("never ({left} of {posted} left)"),
        SurvivorOutcome::Crash => "it crashes".to_owned(),
    };
    let mut table = "| step | the victim | `kill -9` | `SIGSTOP` |\n|---|---|---|---|\n".to_owned();
    for (step, victim, killed, stopped) in rows {
        let (about, killed, stopped) = (step.about(), shown(killed), shown(stopped));
        table += &format!("| {about} | {victim} | {killed} | {stopped} |\n");
    }
    let connected = rows.iter().filter(|row| row.0.stage() == Stage::Connected);
    let never = connected
        .filter(|row| !matches!(row.3, SurvivorOutcome::After(_)))
        .count();
    table + &format!("\n{never} stopped peers were never found.\n")
}

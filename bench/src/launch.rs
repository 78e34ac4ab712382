//! Starts the two ends of one run, and takes the client's report.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::case::Figures;
use crate::job::{Job, Role, Work};
use crate::link::Link;
use crate::pin::Cpus;
use crate::subject::{Kind, Subject};
use crate::sys;

/// Beyond the time of the run itself: connecting ten thousand times on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between the client's word that it is ready and the server's death: it shall be asleep by then.
const BEFORE_DEATH: Duration = Duration::from_millis(20);

/// Makes ends.
#[derive(Debug)]
pub struct Launcher {
    /// The compiled driver of libfabric, if it can be had.
    pub driver: Option<PathBuf>,
    /// UCX's program is there.
    pub has_ucx: bool,
}

impl Launcher {
    /// Whether this subject can be run at all on this machine.
    pub fn has(&self, subject: &Subject) -> bool {
        match subject.kind {
            Kind::Libfabric { .. } => self.driver.is_some(),
            Kind::Ucx { .. } => self.has_ucx,
            _ => true,
        }
    }

    /// One run: both ends, from start to end, over this link.
    pub fn run(
        &self,
        subject: &Subject,
        job: &Job,
        cpus: Cpus,
        link: Option<&Link>,
    ) -> Result<Figures> {
        let until = Instant::now() + PATIENCE + job.warm + job.run;
        let mut words = job.words();
        let mut server = None;
        if !job.work.is_alone() {
            words.push(format!("cpu={}", cpus.server));
            let end = self.start(subject, Role::Server, &words, link)?;
            let port = end.line("PORT", until).context("server")?;
            words.pop();
            words.push(format!("port={port}"));
            words.push(format!("peer={}", end.child.id()));
            server = Some(end);
        }
        words.push(format!("cpu={}", cpus.client));
        words.push(format!("other_cpu={}", cpus.server));
        let client = self.start(subject, Role::Client, &words, link)?;
        let mut facts = Figures::new();
        if job.work == Work::Death {
            client.line("READY", until).context("client")?;
            std::thread::sleep(BEFORE_DEATH);
            facts.insert("killed_ns".into(), sys::monotonic_ns() as f64);
            drop(server);
        }
        let mut mended = None;
        if job.work == Work::LinkDown {
            client.line("READY", until).context("client")?;
            let link = link.context("no link to take down")?;
            facts.insert("cut_ns".into(), sys::monotonic_ns() as f64);
            mended = Some(link.cut()?);
        }
        while let Some(line) = client.next(until).context("client")? {
            match line.split_once(' ') {
                Some(("ERROR", why)) => bail!("client: {why}"),
                Some((name, value)) => {
                    let value = value
                        .parse()
                        .with_context(|| format!("client said: {line}"))?;
                    facts.insert(name.to_owned(), value);
                }
                None => bail!("client said: {line}"),
            }
        }
        if facts.is_empty() {
            bail!("the client ended without a report");
        }
        drop(mended);
        Ok(facts)
    }

    fn start(
        &self,
        subject: &Subject,
        role: Role,
        words: &[String],
        link: Option<&Link>,
    ) -> Result<EndProcess> {
        let start = || EndProcess::start(self.command(subject, role)?, words);
        match link {
            Some(link) => link.namespace(role).within(start),
            None => start(),
        }
    }

    fn command(&self, subject: &Subject, role: Role) -> Result<Command> {
        if let Kind::Libfabric { provider, spin } = subject.kind {
            let driver = self.driver.as_ref().context("libfabric is not there")?;
            let mut command = Command::new(driver);
            command
                .arg(role.to_string())
                .arg(if spin { "spin" } else { "wait" })
                .arg(format!("provider={provider}"));
            return Ok(command);
        }
        // This very program, also when a newer one has taken its place in the file system.
        let mut command = Command::new("/proc/self/exe");
        command.arg("end").arg(role.to_string()).arg(subject.name);
        Ok(command)
    }
}

/// A running end. Dropped, it is killed and waited for.
#[derive(Debug)]
struct EndProcess {
    child: Child,
    lines: Receiver<String>,
}

impl EndProcess {
    fn start(mut command: Command, words: &[String]) -> Result<EndProcess> {
        let mut child = command
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting an end")?;
        let (say, lines) = channel();
        let output = child.stdout.take().context("the end's output is piped")?;
        std::thread::spawn(move || {
            let heard = BufReader::new(output).lines().map_while(|line| line.ok());
            heard
                .take_while(|line| say.send(line.clone()).is_ok())
                .for_each(drop);
        });
        Ok(EndProcess { child, lines })
    }

    /// The next line, `None` at the end.
    fn next(&self, until: Instant) -> Result<Option<String>> {
        match self
            .lines
            .recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => bail!("it hangs"),
        }
    }

    /// The next line, which has to begin with this word; the rest of it.
    fn line(&self, word: &str, until: Instant) -> Result<String> {
        let line = self.next(until)?.context("it ended before it was ready")?;
        match line.strip_prefix(word) {
            Some(rest) => Ok(rest.trim().to_owned()),
            None => bail!("{line}"),
        }
    }
}

impl Drop for EndProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        sys::forget_allocations(self.child.id());
    }
}

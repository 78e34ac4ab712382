//! A link between two network namespaces, which the ends of a run are in as on two hosts: with a
//! rate, and perhaps with a delay and losses. The kernel's token bucket makes the rate, of packets
//! that leave a veth device or, where a [`Relay`] has to delay or drop them, a TUN device.

mod relay;
mod spec;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::job::Role;
use crate::sys::{self, Namespace};
use relay::Relay;

pub use spec::{LinkSpec, MTU_RANGE};

/// The addresses of the two hosts. No other network is in their namespaces.
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// What each host calls its end.
pub const DEVICE: &str = "link0";

/// What the bucket may hold: a packet that is cut later, and what a timer that is late has missed.
const BURST_MIN: u64 = 128 << 10;
const BURST: Duration = Duration::from_micros(250);
/// What waits for the bucket at most. TCP keeps less than this in a device of its own host.
const QUEUE_MIN: u64 = 1 << 20;
const QUEUE: Duration = Duration::from_millis(20);

/// For how long it is measured what a link carries, and how often.
const TRIAL: Duration = Duration::from_millis(200);
const TRIALS: usize = 3;
/// What a relay has to carry in percent of the rate, so that it is not what limits.
const RELAY_PERCENT: u64 = 125;

/// Two namespaces and what connects them. Dropped, they are gone.
#[derive(Debug)]
pub struct Link {
    spec: LinkSpec,
    client: Namespace,
    server: Namespace,
    /// Bits per second that plain TCP got through before the rate was set.
    pub carries: u64,
    _relay: Option<Relay>,
}

impl Link {
    /// Makes a link; packets that are lost are chosen by the seed.
    ///
    /// # Errors
    /// This process may not, `ip` or `tc` is not there, or the relay does not carry so much.
    pub fn new(spec: LinkSpec, seed: u64) -> Result<Link> {
        let making = || -> Result<Link> {
            let mut link = Link {
                spec,
                client: Namespace::new()?,
                server: Namespace::new()?,
                carries: 0,
                _relay: None,
            };
            let relay = link.connect(seed)?;
            link.carries = link.try_out()?;
            if relay.is_some() && link.carries < spec.rate / 100 * RELAY_PERCENT {
                bail!(
                    "the relay that delays and drops packets carries {:.2} Gbit/s here, and \
                     {RELAY_PERCENT} % of the rate are needed",
                    link.carries as f64 / 1e9
                );
            }
            link.set_rate()?;
            if let Some(relay) = &relay {
                relay.set_delay(spec.delay);
            }
            link._relay = relay;
            Ok(link)
        };
        making().with_context(|| format!("making a link of {spec}"))
    }

    pub fn spec(&self) -> LinkSpec {
        self.spec
    }

    /// Where the processes of an end are started.
    pub fn namespace(&self, role: Role) -> &Namespace {
        match role {
            Role::Client => &self.client,
            Role::Server => &self.server,
        }
    }

    /// The devices, with their addresses, without a rate.
    fn connect(&self, seed: u64) -> Result<Option<Relay>> {
        let LinkSpec { mtu, lost, .. } = self.spec;
        let relay = match self.spec.needs_relay() {
            true => {
                // A packet that is cut later would be lost as a whole.
                let open = || sys::open_tun(DEVICE, lost == 0).context("/dev/net/tun");
                let devices = [self.client.within(open)?, self.server.within(open)?];
                Some(Relay::start(devices, lost, seed)?)
            }
            false => {
                let server = self.server.path();
                self.client.within(|| {
                    let peer = format!("type veth peer name {DEVICE} netns {}", server.display());
                    run(&format!("ip link add {DEVICE} {peer}"))
                })?;
                None
            }
        };
        for (namespace, address) in [(&self.client, CLIENT), (&self.server, SERVER)] {
            namespace.within(|| {
                run("ip link set lo up")?;
                run(&format!("ip address add {address}/30 dev {DEVICE}"))?;
                run(&format!(
                    "ip link set {DEVICE} mtu {mtu} txqueuelen 10000 up"
                ))?;
                // What one run has found out about the way must not help the next.
                std::fs::write("/proc/sys/net/ipv4/tcp_no_metrics_save", "1")?;
                Ok(())
            })?;
        }
        Ok(relay)
    }

    fn set_rate(&self) -> Result<()> {
        let rate = self.spec.rate;
        let within = |time: Duration| (rate as f64 / 8.0 * time.as_secs_f64()) as u64;
        let burst = within(BURST).max(BURST_MIN);
        let queue = within(QUEUE).max(QUEUE_MIN);
        for namespace in [&self.client, &self.server] {
            let bucket = format!("tbf rate {rate}bit burst {burst} limit {queue}");
            namespace.within(|| run(&format!("tc qdisc add dev {DEVICE} root {bucket}")))?;
        }
        Ok(())
    }

    /// Bits per second of a TCP connection, the best of a few.
    fn try_out(&self) -> Result<u64> {
        let trials = (0..TRIALS).map(|_| self.trial());
        Ok(trials
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .max()
            .unwrap_or(0))
    }

    fn trial(&self) -> Result<u64> {
        let listener = (self.server).within(|| Ok(TcpListener::bind((SERVER, 0))?))?;
        let to = listener.local_addr()?;
        let mut sends = self.client.within(|| Ok(TcpStream::connect(to)?))?;
        let (mut receives, _) = listener.accept()?;
        let begin = Instant::now();
        let receiving = std::thread::spawn(move || {
            let mut buffer = vec![0; 256 << 10];
            let mut bytes = 0;
            while let Ok(more @ 1..) = receives.read(&mut buffer) {
                bytes += more as u64;
            }
            (bytes, begin.elapsed())
        });
        let message = vec![1; 256 << 10];
        while begin.elapsed() < TRIAL {
            sends.write_all(&message)?;
        }
        drop(sends);
        let (bytes, time) = receiving.join().expect("nothing in it panics");
        Ok((bytes as f64 * 8.0 / time.as_secs_f64()) as u64)
    }

    /// The server's end goes down: neither end hears of the other until what this gives is dropped.
    ///
    /// # Errors
    /// Those of `ip`.
    pub fn cut(&self) -> Result<CutLink<'_>> {
        self.set("down")?;
        Ok(CutLink(self))
    }

    fn set(&self, state: &str) -> Result<()> {
        (self.server).within(|| run(&format!("ip link set {DEVICE} {state}")))
    }
}

/// A link that is down. Dropped, it is up again.
#[derive(Debug)]
pub struct CutLink<'a>(&'a Link);

impl Drop for CutLink<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.set("up") {
            // What is measured after it says so too.
            eprintln!("the link stays down: {error:#}");
        }
    }
}

/// Runs a command whose words have no spaces in them.
fn run(command: &str) -> Result<()> {
    let mut words = command.split_whitespace();
    let program = words.next().context("a command")?;
    let output = Command::new(program).args(words).output();
    let output = match output {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("the program {program} is not there (package iproute2)")
        }
        output => output.context(program.to_owned())?,
    };
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("{command}: {}", why.trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests;

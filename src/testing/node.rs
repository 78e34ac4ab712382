//! The nodes of a network by name, the links between them, and their crashes and partitions.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::{Net, Peer};
use crate::error::Result;
use crate::fabric::Fabric;
use crate::info::Hints;
use crate::random::RandomSource;
use crate::transport::Host;

/// A node of a [`Net`]: a machine with its own address and one process, from the start of the
/// process to its crash.
///
/// You get one from [`Net::node`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
/// use tokio_fabric::ErrorKind;
///
/// let net = Net::new(7);
/// let node = net.node("a");
/// net.crash("a");
/// let gone = node.peer().unwrap_err();
/// assert_eq!(gone.kind(), ErrorKind::DriverGone);
/// net.restart("a");
/// assert!(net.node("a").peer().is_ok()); // Its next life.
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Node {
    net: Net,
    name: String,
    host: Host,
}

impl Node {
    /// The node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The node's address. Listeners that the node opens at the loopback address (`127.0.0.1`) or
    /// at all addresses (`0.0.0.0`) listen at this address.
    pub fn ip(&self) -> IpAddr {
        self.host.ip()
    }

    /// The node's address with a port, for others to connect to.
    pub fn addr(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip(), port)
    }

    /// A fabric on this node.
    ///
    /// # Errors
    /// [`ErrorKind::DriverGone`](crate::ErrorKind::DriverGone) if the node has crashed since
    /// [`Net::node`] returned it; otherwise as for [`Fabric::open`].
    pub fn fabric(&self) -> Result<Fabric> {
        self.fabric_with(Hints::new())
    }

    /// A fabric on this node that matches these hints.
    ///
    /// # Errors
    /// As for [`fabric`](Self::fabric).
    pub fn fabric_with(&self, hints: Hints) -> Result<Fabric> {
        self.host.check_up()?;
        // Each name and each life of a node has a seed of its own, whatever numbers other nodes
        // draw.
        let mut seed = self.net.seed() ^ self.host.generation().wrapping_mul(0x9E37_79B9_7F4A_7C15);
        for byte in self.name.bytes() {
            seed = (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
        let fabrics = self.host.count_fabric();
        let random = RandomSource::seeded(seed.rotate_left(17) ^ fabrics);
        self.net.open(hints, random, Some(self.host.clone()))
    }

    /// A peer on this node: a domain that is bound to an event queue, and its fabric.
    ///
    /// # Errors
    /// As for [`fabric`](Self::fabric), and the errors of opening.
    pub fn peer(&self) -> Result<Peer> {
        Peer::of(self.fabric()?)
    }

    /// Spawns a task of this node's program: it does not run while the node hangs, and is aborted
    /// when the node crashes. Use [`tokio::spawn`] for tasks outside of the network.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.host.spawn(&Handle::current(), future)
    }
}

debug_fields!(Node, self => name: self.name, host: self.host);

/// # Nodes
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> tokio_fabric::Result<()> {
/// use std::time::Duration;
/// use tokio::time::{Instant, sleep};
/// use tokio_fabric::testing::{Net, connect};
///
/// let net = Net::new(42);
/// let (a, b) = (net.node("a").peer()?, net.node("b").peer()?);
/// net.link("a", "b").latency(Duration::from_millis(10));
/// let (to_b, at_b) = connect(&a, &b).await?;
///
/// // What is sent during a partition arrives after it.
/// net.partition("a", "b");
/// let healing = tokio::spawn({
///     let net = net.clone();
///     async move {
///         sleep(Duration::from_secs(1)).await;
///         net.heal("a", "b");
///     }
/// });
/// let start = Instant::now();
/// to_b.send("hello").await?;
/// at_b.recv(vec![0; 16]).await?;
/// assert_eq!(start.elapsed(), Duration::from_millis(1010));
///
/// // A crash resets connections.
/// net.crash("b");
/// assert!(to_b.send("hello?").delivery_complete().await.is_err());
/// net.restart("b");
/// let b = net.node("b").peer()?;
/// connect(&a, &b).await?;
/// # Ok(()) }
/// ```
impl Net {
    /// The node with this name, in its present life; the first call creates it. Only for in-process
    /// networks.
    ///
    /// Each node has an address of its own. Objects that are opened without a node ([`Net::peer`])
    /// belong to one further machine, at 127.0.0.1, which has no name and is not affected by the
    /// methods below.
    ///
    /// # Panics
    /// In a network of sockets, and for an empty name.
    pub fn node(&self, name: impl AsRef<str>) -> Node {
        let name = name.as_ref();
        assert!(self.random.is_seeded(), "nodes are of Net::new(seed)");
        assert!(!name.is_empty(), "a node has a name");
        Node {
            net: self.clone(),
            name: name.to_owned(),
            host: self.loopback.host(name),
        }
    }

    /// Cuts both directions between two nodes. Nothing is lost: data that is on its way, and data
    /// that is sent from now on, waits as if TCP were retransmitting it, until the partition
    /// [heals](Net::heal) or a side gives up (because of [`Liveness`](crate::ep::Liveness) or a
    /// time limit). Datagrams are lost.
    ///
    /// # Panics
    /// If there is no node of that name, like all methods that take names.
    pub fn partition(&self, one: impl AsRef<str>, other: impl AsRef<str>) {
        self.cut(one.as_ref(), other.as_ref(), true);
        self.cut(other.as_ref(), one.as_ref(), true);
    }

    /// Like [`partition`](Self::partition), but the network loses resets: if one side gives up a
    /// connection during the partition, the other side never gets a reset, not even after the
    /// partition, and no answer to anything that it sends on this connection. Routers that forget
    /// connections cause this.
    pub fn partition_losing_resets(&self, one: impl AsRef<str>, other: impl AsRef<str>) {
        let (one, other) = (self.known(one.as_ref()), self.known(other.as_ref()));
        for (from, to) in [(&one, &other), (&other, &one)] {
            self.loopback.change_wire(from, to, |wire| {
                (wire.is_cut, wire.loses_resets) = (true, true);
            });
        }
    }

    /// Cuts one direction: data that `from` sends does not reach `to`.
    pub fn partition_one_way(&self, from: impl AsRef<str>, to: impl AsRef<str>) {
        self.cut(from.as_ref(), to.as_ref(), true);
    }

    /// Cuts this node off from all other nodes.
    pub fn isolate(&self, node: impl AsRef<str>) {
        for other in self.others(node.as_ref()) {
            self.partition(&node, other);
        }
    }

    /// Restores both directions between two nodes; waiting data is delivered.
    pub fn heal(&self, one: impl AsRef<str>, other: impl AsRef<str>) {
        self.cut(one.as_ref(), other.as_ref(), false);
        self.cut(other.as_ref(), one.as_ref(), false);
    }

    /// Restores all directions between all nodes.
    pub fn heal_all(&self) {
        for node in self.loopback.host_names() {
            for other in self.others(&node) {
                self.cut(&node, &other, false);
            }
        }
    }

    /// The process at this node ends: its connections are reset at their peers (when the reset
    /// arrives), its listeners are gone, its [tasks](Node::spawn) are aborted, and its remaining
    /// objects fail with [`ErrorKind::DriverGone`](crate::ErrorKind::DriverGone). None of its
    /// memory survives.
    pub fn crash(&self, node: impl AsRef<str>) {
        self.known(node.as_ref()).crash();
    }

    /// Starts a new process at a node that has crashed, at the same address; a node that is alive
    /// crashes first. [`Net::node`] returns it, and the test runs its program.
    pub fn restart(&self, node: impl AsRef<str>) -> Node {
        let host = self.known(node.as_ref());
        if host.check_up().is_ok() {
            host.crash();
        }
        host.restart();
        self.node(node)
    }

    /// Stops the process at this node, as `SIGSTOP` does: its drivers and [tasks](Node::spawn) do
    /// nothing, its sockets accept as much as they have room for, and its peers'
    /// [`Liveness`](crate::ep::Liveness) detects that it is dead.
    pub fn hang(&self, node: impl AsRef<str>) {
        self.known(node.as_ref()).hang();
    }

    /// Lets a process that hangs continue.
    pub fn resume(&self, node: impl AsRef<str>) {
        self.known(node.as_ref()).resume();
    }

    /// The link between two nodes, which can be changed at any time, for both directions.
    pub fn link(&self, one: impl AsRef<str>, other: impl AsRef<str>) -> Wiring {
        let (one, other) = (self.known(one.as_ref()), self.known(other.as_ref()));
        Wiring {
            net: self.clone(),
            ends: [one, other],
        }
    }

    fn cut(&self, from: &str, to: &str, is_cut: bool) {
        let (from, to) = (self.known(from), self.known(to));
        self.loopback.change_wire(&from, &to, |wire| {
            (wire.is_cut, wire.loses_resets) = (is_cut, false);
        });
    }

    fn others(&self, node: &str) -> Vec<String> {
        let mut names = self.loopback.host_names();
        names.retain(|name| name != node);
        names
    }

    fn known(&self, name: &str) -> Host {
        let names = self.loopback.host_names();
        let is_known = names.iter().any(|known| known == name);
        assert!(is_known, "no node is called {name:?}; there are {names:?}");
        self.loopback.host(name)
    }
}

/// The link between two nodes, which [`Net::link`] returns.
///
/// Data that is already on its way is not affected by changes.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> tokio_fabric::Result<()> {
/// use std::time::Duration;
/// use tokio_fabric::testing::{Net, connect};
///
/// let net = Net::new(7);
/// let (a, b) = (net.node("a").peer()?, net.node("b").peer()?);
/// let (to_b, at_b) = connect(&a, &b).await?;
/// net.link("a", "b").latency(Duration::from_millis(20));
/// let start = tokio::time::Instant::now();
/// to_b.send("later").await?;
/// at_b.recv(vec![0; 8]).await?;
/// assert!(start.elapsed() >= Duration::from_millis(20));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Wiring {
    net: Net,
    ends: [Host; 2],
}

impl Wiring {
    /// The latency of data in each direction. Default: none. The resolution is a millisecond, like
    /// that of Tokio's timers.
    pub fn latency(self, latency: Duration) -> Self {
        self.change(|wire| wire.latency = latency)
    }

    /// Bytes per second in each direction, shared by all connections between the two nodes.
    /// Default: unlimited.
    pub fn bandwidth(self, bytes_per_second: u64) -> Self {
        self.change(|wire| wire.bandwidth = Some(bytes_per_second))
    }

    fn change(self, change: impl Fn(&mut crate::transport::WireState)) -> Self {
        let [one, other] = &self.ends;
        self.net.loopback.change_wire(one, other, &change);
        self.net.loopback.change_wire(other, one, &change);
        self
    }
}

//! The table of what is measured. A line here is a subject; nothing else need know of it.

use std::time::Duration;

use tokio_fabric::Driver;
use tokio_fabric::limits::INJECT_SIZE_MAX;

use crate::case::Placement;
use crate::job::{Job, Work};

/// What is measured: a way to move bytes between two processes.
#[derive(Debug)]
pub struct Subject {
    pub name: &'static str,
    pub kind: Kind,
}

/// How a subject is run.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// The standard library's sockets.
    Tcp(Tcp),
    /// Tokio's `TcpStream` on a `current_thread` runtime.
    Tokio {
        /// All that a window allows in one write, instead of one write per message.
        gather: bool,
    },
    /// tokio-rustls over that.
    TokioTls,
    /// This library.
    Fabric(Fabric),
    /// A library for remote calls.
    Rpc(Rpc),
    /// A provider of libfabric's, through the C driver.
    Libfabric {
        /// `tcp`, or `net`, which has connectionless endpoints only.
        provider: &'static str,
        /// Reads its queue over and over, instead of sleeping in it.
        spin: bool,
    },
    /// UCX, through its own program.
    Ucx {
        /// `tcp`, or `posix`, which is shared memory.
        transport: &'static str,
        spin: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rpc {
    Tonic,
    Tarpc,
    Ruapc,
    /// The layer on this library.
    Layer(Layer),
}

/// How the layer is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// Over TCP, and else as it is by default.
    Plain,
    /// As it is by default: through shared memory.
    Local,
    /// Its drivers spin.
    Spin,
    /// Over TLS.
    Secure,
    /// On the thread that sleeps in its domain's ring.
    InRing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tcp {
    /// Blocking calls, one write per message.
    Blocking,
    /// Blocking calls; all that a window allows in one write.
    Gather,
    /// Calls that do not block, repeated.
    Spin,
}

/// A configuration of this library.
#[derive(Clone, Copy, Debug)]
pub struct Fabric {
    pub backend: &'static str,
    pub driver: Driver,
    /// How long the driver spins before it sleeps.
    pub busy_poll: Duration,
    /// Connections share their receives, buffers for several messages: at both ends where they are
    /// idle, at the server's of calls.
    pub shares_receives: bool,
    /// The application asks for turns over and over, and awaits nothing.
    pub asks_for_turns: bool,
    /// With TLS.
    pub is_secure: bool,
    /// Through shared memory, as it is by default within a host; what is compared with others over
    /// a network is not.
    pub is_local: bool,
}

/// Longer than any pause of a run: it never sleeps.
pub const ALWAYS: Duration = Duration::from_secs(1);

/// Every subject, in the order of the tables' columns.
pub static SUBJECTS: &[Subject] = &[
    Subject {
        name: "tcp",
        kind: Kind::Tcp(Tcp::Blocking),
    },
    Subject {
        name: "tcp:gather",
        kind: Kind::Tcp(Tcp::Gather),
    },
    Subject {
        name: "tcp:spin",
        kind: Kind::Tcp(Tcp::Spin),
    },
    Subject {
        name: "tokio",
        kind: Kind::Tokio { gather: false },
    },
    Subject {
        name: "tokio:gather",
        kind: Kind::Tokio { gather: true },
    },
    Subject {
        name: "tokio:tls",
        kind: Kind::TokioTls,
    },
    Subject {
        name: "tonic",
        kind: Kind::Rpc(Rpc::Tonic),
    },
    Subject {
        name: "tarpc",
        kind: Kind::Rpc(Rpc::Tarpc),
    },
    Subject {
        name: "ruapc",
        kind: Kind::Rpc(Rpc::Ruapc),
    },
    Subject {
        name: "tokio-fabric-rpc",
        kind: Kind::Rpc(Rpc::Layer(Layer::Plain)),
    },
    Subject {
        name: "tokio-fabric-rpc:local",
        kind: Kind::Rpc(Rpc::Layer(Layer::Local)),
    },
    Subject {
        name: "tokio-fabric-rpc:spin",
        kind: Kind::Rpc(Rpc::Layer(Layer::Spin)),
    },
    Subject {
        name: "tokio-fabric-rpc:in-ring",
        kind: Kind::Rpc(Rpc::Layer(Layer::InRing)),
    },
    Subject {
        name: "tokio-fabric-rpc:tls",
        kind: Kind::Rpc(Rpc::Layer(Layer::Secure)),
    },
    Subject {
        name: "libfabric:wait",
        kind: libfabric("tcp", false),
    },
    Subject {
        name: "libfabric:spin",
        kind: libfabric("tcp", true),
    },
    Subject {
        name: "libfabric-net:wait",
        kind: libfabric("net", false),
    },
    Subject {
        name: "libfabric-net:spin",
        kind: libfabric("net", true),
    },
    Subject {
        name: "libfabric-shm:spin",
        kind: libfabric("shm", true),
    },
    Subject {
        name: "ucx:wait",
        kind: ucx("tcp", false),
    },
    Subject {
        name: "ucx:spin",
        kind: ucx("tcp", true),
    },
    Subject {
        name: "ucx-shm:spin",
        kind: ucx("posix", true),
    },
    Subject {
        name: "tokio-fabric:epoll",
        kind: fabric("epoll", Driver::Task, Duration::ZERO),
    },
    Subject {
        name: "tokio-fabric:io-uring",
        kind: fabric("io-uring", Driver::Task, Duration::ZERO),
    },
    Subject {
        name: "tokio-fabric:thread",
        kind: fabric("epoll", Driver::Thread, Duration::ZERO),
    },
    Subject {
        name: "tokio-fabric:io-uring:thread",
        kind: fabric("io-uring", Driver::Thread, Duration::ZERO),
    },
    Subject {
        name: "tokio-fabric:in-ring",
        kind: Kind::Fabric(IN_RING),
    },
    Subject {
        name: "tokio-fabric:in-ring:spin",
        kind: fabric("io-uring", Driver::Local, ALWAYS),
    },
    Subject {
        name: "tokio-fabric:in-epoll",
        kind: fabric("epoll", Driver::Local, Duration::ZERO),
    },
    Subject {
        name: "tokio-fabric:manual",
        kind: fabric("epoll", Driver::Manual, Duration::ZERO),
    },
    Subject {
        name: "tokio-fabric:manual:spin",
        kind: Kind::Fabric(Fabric {
            backend: "epoll",
            driver: Driver::Manual,
            busy_poll: Duration::ZERO,
            shares_receives: false,
            asks_for_turns: true,
            is_secure: false,
            is_local: false,
        }),
    },
    Subject {
        name: "tokio-fabric:epoll:spin",
        kind: fabric("epoll", Driver::Task, ALWAYS),
    },
    Subject {
        name: "tokio-fabric:io-uring:spin",
        kind: fabric("io-uring", Driver::Task, ALWAYS),
    },
    Subject {
        name: "tokio-fabric:epoll:shared",
        kind: Kind::Fabric(Fabric {
            backend: "epoll",
            driver: Driver::Task,
            busy_poll: Duration::ZERO,
            shares_receives: true,
            asks_for_turns: false,
            is_secure: false,
            is_local: false,
        }),
    },
    Subject {
        name: "tokio-fabric:local",
        kind: local("epoll", Duration::ZERO),
    },
    Subject {
        name: "tokio-fabric:local:spin",
        kind: local("epoll", ALWAYS),
    },
    Subject {
        name: "tokio-fabric:local:io-uring",
        kind: local("io-uring", Duration::ZERO),
    },
    Subject {
        name: "tokio-fabric:epoll:tls",
        kind: secure("epoll"),
    },
    Subject {
        name: "tokio-fabric:io-uring:tls",
        kind: secure("io-uring"),
    },
];

const fn secure(backend: &'static str) -> Kind {
    Kind::Fabric(Fabric {
        backend,
        driver: Driver::Task,
        busy_poll: Duration::ZERO,
        shares_receives: false,
        asks_for_turns: false,
        is_secure: true,
        is_local: false,
    })
}

const fn local(backend: &'static str, busy_poll: Duration) -> Kind {
    Kind::Fabric(Fabric {
        backend,
        driver: Driver::Task,
        busy_poll,
        shares_receives: false,
        asks_for_turns: false,
        is_secure: false,
        is_local: true,
    })
}

const fn ucx(transport: &'static str, spin: bool) -> Kind {
    Kind::Ucx { transport, spin }
}

const fn libfabric(provider: &'static str, spin: bool) -> Kind {
    Kind::Libfabric { provider, spin }
}

pub const IN_RING: Fabric = Fabric {
    backend: "io-uring",
    driver: Driver::Local,
    busy_poll: Duration::ZERO,
    shares_receives: false,
    asks_for_turns: false,
    is_secure: false,
    is_local: false,
};

const fn fabric(backend: &'static str, driver: Driver, busy_poll: Duration) -> Kind {
    Kind::Fabric(Fabric {
        backend,
        driver,
        busy_poll,
        shares_receives: false,
        asks_for_turns: false,
        is_secure: false,
        is_local: false,
    })
}

/// The subject of this name.
pub fn named(name: &str) -> Option<&'static Subject> {
    SUBJECTS.iter().find(|subject| subject.name == name)
}

/// Messages above this are large: a gathered write of several would gain nothing.
const GATHER_SIZE_MAX: usize = 4096;

/// More calls under way say no more of what sealing costs.
const SECURE_CALLS_MAX: usize = 64;

/// More connections than this have something to do all the time.
const SPIN_CONNECTIONS_MAX: usize = 256;

/// The time that libfabric takes to make connections grows with the square of their number: 4 s for
/// a thousand, 28 s for four thousand were measured, on a busy machine.
const LIBFABRIC_CONNECTIONS_MAX: usize = 1024;
/// And twenty-four endpoints that all connect to as many did not come to an end within a minute.
const LIBFABRIC_PARTY_MAX: usize = 8;

/// Whether calls are counted, or each of many connections is watched.
fn is_counted(job: &Job) -> bool {
    job.counts_syscalls || job.watches_each
}

impl Subject {
    /// True of this library, whose figures are divided by everybody's.
    pub fn is_ours(&self) -> bool {
        matches!(self.kind, Kind::Fabric(_))
    }

    /// True of the layer too: a failure of it is one of this repository.
    pub fn is_of_this_repository(&self) -> bool {
        self.is_ours() || matches!(self.kind, Kind::Rpc(Rpc::Layer(_)))
    }

    /// True if nothing moves but while something is awaited.
    fn is_driven_by_hand(&self) -> bool {
        matches!(self.kind, Kind::Fabric(how) if how.driver == Driver::Manual)
    }

    /// True if it never sleeps while it waits.
    pub fn spins(&self) -> bool {
        match self.kind {
            Kind::Tcp(how) => how == Tcp::Spin,
            Kind::Rpc(how) => how == Rpc::Layer(Layer::Spin),
            Kind::Tokio { .. } | Kind::TokioTls => false,
            Kind::Fabric(how) => !how.busy_poll.is_zero() || how.asks_for_turns,
            Kind::Libfabric { spin, .. } | Kind::Ucx { spin, .. } => spin,
        }
    }

    /// Whether this subject can do the job at all, or in a way that says something.
    pub fn fits(&self, job: &Job, placement: Placement) -> bool {
        // Two that spin on one processor measure the scheduler; an idle one that spins needs no
        // measuring.
        if self.spins() && (placement == Placement::SameCore || job.work == Work::Idle) {
            return false;
        }
        if matches!(placement, Placement::Link(_)) && !self.crosses_links() {
            return false;
        }
        // What sealing costs shows on one connection, and by the memory of many.
        if self.is_secure() {
            let is_layer = matches!(self.kind, Kind::Rpc(_));
            return match job.work {
                Work::PingPong | Work::Stream | Work::Write | Work::Read => {
                    job.connections == 1 && !is_layer
                }
                Work::Idle => !is_layer,
                Work::Rpc => job.window <= SECURE_CALLS_MAX && self.is_by_default(),
                _ => false,
            };
        }
        // Another way for bytes shows on one connection.
        if self.is_local() {
            let is_layer = matches!(self.kind, Kind::Rpc(_));
            let is_fit = match job.work {
                Work::PingPong | Work::Stream | Work::Write | Work::Read => !is_layer,
                work => work == Work::Rpc,
            };
            return is_fit && job.connections == 1;
        }
        match job.work {
            Work::RpcMixed if matches!(self.kind, Kind::Rpc(Rpc::Layer(Layer::InRing))) => {
                return false;
            }
            Work::RpcMixed => {
                let whole = matches!(self.kind, Kind::Tokio { gather: false } | Kind::Rpc(_));
                return whole && !self.spins();
            }
            Work::RpcCancel | Work::RpcOverload | Work::RpcDrain => {
                return matches!(self.kind, Kind::Rpc(Rpc::Layer(Layer::Plain)));
            }
            // Others wait for as long as the system sends again, a quarter of an hour.
            Work::LinkDown => {
                return matches!(self.kind, Kind::Fabric(how) if !how.asks_for_turns);
            }
            _ => {}
        }
        // Nor do so many connections differ by how their driver waits.
        if self.spins() && job.connections > SPIN_CONNECTIONS_MAX {
            return false;
        }
        // What it does with receives is all that it differs by.
        if let Kind::Fabric(how) = self.kind
            && how.shares_receives
        {
            return matches!(job.work, Work::Rpc | Work::Idle);
        }
        // Its server awaits nothing of the library's.
        if job.work == Work::Idle && self.is_driven_by_hand() {
            return false;
        }
        if job.work.registers() {
            return match self.kind {
                Kind::Fabric(how) => how.driver == Driver::Task,
                // It has no pages to fault in; its own cache is not for host memory over TCP.
                Kind::Libfabric { provider, .. } => {
                    provider == "tcp" && job.work != Work::RegisterFaulted
                }
                Kind::Tcp(_)
                | Kind::Tokio { .. }
                | Kind::TokioTls
                | Kind::Rpc(_)
                | Kind::Ucx { .. } => false,
            };
        }
        if job.work == Work::Contexts {
            return matches!(self.kind, Kind::Fabric(how) if how.driver == Driver::Task)
                && !self.spins();
        }
        if job.work.is_alone() {
            return match self.kind {
                Kind::Fabric(how) => how.driver == Driver::Task && !self.spins(),
                kind => matches!(kind, Kind::Tokio { gather: false }),
            };
        }
        if job.work == Work::Neighbours {
            return match self.kind {
                Kind::Tokio { gather } => !gather,
                Kind::Libfabric { provider, .. } => provider == "tcp",
                Kind::Fabric(how) => !how.asks_for_turns,
                _ => false,
            };
        }
        if job.work == Work::Rpc {
            let whole = matches!(self.kind, Kind::Tokio { gather: false });
            let is_fabric = matches!(self.kind, Kind::Fabric(how) if !how.asks_for_turns);
            return whole || is_fabric || matches!(self.kind, Kind::Rpc(_));
        }
        let gathers = job.work == Work::Stream && job.window > 1 && job.size <= GATHER_SIZE_MAX;
        match self.kind {
            Kind::Tcp(Tcp::Blocking) => job.connections == 1 && job.work != Work::AllToAll,
            Kind::Tcp(Tcp::Gather) => gathers && job.connections == 1,
            Kind::Tcp(Tcp::Spin) => job.work == Work::PingPong,
            Kind::Tokio { gather } => !gather || gathers,
            Kind::Fabric(how) => !how.asks_for_turns || job.work == Work::PingPong,
            // Its other work is that of connections.
            Kind::Libfabric { provider, .. } => {
                let is_message = matches!(job.work, Work::PingPong | Work::Stream);
                // Its messages in streams are injected.
                let is_small = job.size <= INJECT_SIZE_MAX || job.work == Work::PingPong;
                let of_one = is_message && is_small && job.connections == 1;
                let is_tcp = provider == "tcp" && job.connections <= LIBFABRIC_CONNECTIONS_MAX;
                match job.work {
                    Work::AllToAll => provider != "shm" && job.connections <= LIBFABRIC_PARTY_MAX,
                    _ => is_tcp || of_one && !is_counted(job),
                }
            }
            // Its program measures neither calls nor each of many connections.
            Kind::Ucx { spin, .. } => {
                let is_message = matches!(job.work, Work::PingPong | Work::Stream);
                // The target of puts and gets that sleeps does not take part.
                let is_rma = matches!(job.work, Work::Write | Work::Read) && spin;
                (is_message || is_rma) && job.connections == 1 && !is_counted(job)
            }
            Kind::Rpc(_) | Kind::TokioTls => false,
        }
    }

    /// True if what it sends is sealed.
    pub fn is_secure(&self) -> bool {
        match self.kind {
            Kind::Fabric(how) => how.is_secure,
            kind => matches!(kind, Kind::TokioTls | Kind::Rpc(Rpc::Layer(Layer::Secure))),
        }
    }

    /// Whether its name contains this, or, of what begins with `=`, is this.
    pub fn is_named(&self, wanted: &str) -> bool {
        match wanted.strip_prefix('=') {
            Some(name) => self.name == name,
            None => self.name.contains(wanted),
        }
    }

    /// True of what reaches another host, at the address that it is given.
    fn crosses_links(&self) -> bool {
        match self.kind {
            Kind::Libfabric { provider, .. } => provider == "tcp",
            Kind::Ucx { transport, .. } => transport == "tcp",
            _ => !self.is_local(),
        }
    }

    /// True if its bytes go through shared memory.
    fn is_local(&self) -> bool {
        match self.kind {
            Kind::Fabric(how) => how.is_local,
            kind => matches!(kind, Kind::Rpc(Rpc::Layer(Layer::Local))),
        }
    }

    /// True unless it is this library with another backend than users get by default.
    fn is_by_default(&self) -> bool {
        !matches!(self.kind, Kind::Fabric(how) if how.backend != "epoll")
    }
}

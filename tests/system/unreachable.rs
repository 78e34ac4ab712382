//! Machines that cannot be reached any more: a network namespace that is cut off (ruling 13). Needs
//! the right to make one; without it the tests say that they are left out, in CI they fail.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use crate::common::child::PeerProcess;
use crate::common::ticks::Ticks;
use crate::common::{backends, left_out, on};
use futures::future::join_all;
use tokio_fabric::testing::{Net, Peer};
use tokio_fabric::{
    Access, Backend, Endpoint, ErrorKind, Event, RdmEndpoint,
    ep::Liveness,
    op::{Op, Received},
};

/// Another machine, as TCP sees it, with a cable to this one.
pub struct Machine {
    name: String,
    cable: String,
    ours: String,
    pub theirs: String,
}

/// One at a time: they have one address.
pub static MACHINES: Mutex<()> = Mutex::new(());

impl Machine {
    /// `None`: this process may not make one.
    pub fn new() -> Option<Machine> {
        let id = std::process::id();
        let machine = Machine {
            name: format!("tofa-{id}"),
            cable: format!("tofa{id}"),
            // A network for tests of networks (RFC 2544), a different one for each process.
            ours: format!("198.18.{}.{}", id % 256, 4 * (id / 256 % 64) + 1),
            theirs: format!("198.18.{}.{}", id % 256, 4 * (id / 256 % 64) + 2),
        };
        let Machine { name, cable, .. } = &machine;
        let made = ip(&format!("netns add {name}"))
            && ip(&format!(
                "link add {cable} type veth peer name {cable}x netns {name}"
            ))
            && ip(&format!("addr add {}/30 dev {cable}", machine.ours))
            && ip(&format!("link set {cable} up"))
            && ip(&format!(
                "-n {name} addr add {}/30 dev {cable}x",
                machine.theirs
            ))
            && ip(&format!("-n {name} link set {cable}x up"));
        if made {
            // Up is one thing, and that its process finds it up another.
            while !says(&format!("-n {name} link show {cable}x"), "state UP") {
                std::thread::sleep(Duration::from_millis(5));
            }
            return Some(machine);
        }
        left_out("no network namespace can be made");
        None
    }

    /// Runs an ignored test there.
    pub fn run(&self, test: &str, variables: &[(&str, String)]) -> PeerProcess {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]);
        command.arg(std::env::current_exe().unwrap());
        PeerProcess::spawn_by(command, test, variables)
    }

    /// From now on nothing that either side sends finds the other, and no error is returned.
    fn cut_off(&self) {
        let Machine {
            name,
            cable,
            ours,
            theirs,
        } = self;
        let absent = "lladdr 02:00:00:00:00:01 nud permanent";
        assert!(ip(&format!("neigh replace {theirs} {absent} dev {cable}")));
        assert!(ip(&format!(
            "-n {name} neigh replace {ours} {absent} dev {cable}x"
        )));
    }

    fn join(&self) {
        let Machine {
            name,
            cable,
            ours,
            theirs,
        } = self;
        assert!(ip(&format!("neigh del {theirs} dev {cable}")));
        assert!(ip(&format!("-n {name} neigh del {ours} dev {cable}x")));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        ip(&format!("netns del {}", self.name));
        ip(&format!("link del {}", self.cable));
    }
}

fn ip(arguments: &str) -> bool {
    says(arguments, "")
}

/// True if the command succeeds, and prints this.
fn says(arguments: &str, what: &str) -> bool {
    let done = Command::new("ip").args(arguments.split(' ')).output();
    done.is_ok_and(|done| {
        done.status.success() && String::from_utf8_lossy(&done.stdout).contains(what)
    })
}

fn connect_to(machine: &Machine, backend: Backend, plain: bool) -> (PeerProcess, SocketAddr) {
    let variables = [
        ("TOKIO_FABRIC_LISTEN", format!("{}:0", machine.theirs)),
        ("TOKIO_FABRIC_BACKEND", backend.to_string()),
        ("TOKIO_FABRIC_PLAIN", plain.to_string()),
    ];
    let mut process = machine.run("unreachable::the_far_process", &variables);
    let address = process.line_now();
    (process, address.parse().unwrap())
}

/// Runs a side in the other process until that is killed: with its peer, the address to listen at,
/// and whether it speaks libfabric's protocol alone.
fn in_the_far_process(run: impl AsyncFnOnce(Peer, SocketAddr, bool)) {
    crate::common::child::end_with_the_parent();
    let variable = |name: &str| std::env::var(name).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let backend: Backend = variable("TOKIO_FABRIC_BACKEND").parse().unwrap();
        let address = variable("TOKIO_FABRIC_LISTEN").parse().unwrap();
        let plain = variable("TOKIO_FABRIC_PLAIN") == "true";
        run(Net::on(backend).peer().unwrap(), address, plain).await;
    })
}

/// The other process: listens, and does nothing.
#[test]
#[ignore = "the other process of other tests"]
fn the_far_process() {
    in_the_far_process(async |us, address, plain| {
        let registered = us.domain.register(vec![0; 100]).access(Access::all()).await;
        let region = registered.unwrap();
        let requests = us.fabric.event_queue().open().unwrap();
        let builder = us.fabric.passive_endpoint(&requests);
        let listener = builder.listen_at(address).unwrap();
        crate::common::child::say(listener.local_addr());
        let Some(Event::ConnRequest(request)) = requests.next().await else {
            panic!()
        };
        let builder = us
            .domain
            .endpoint()
            .unexpected_bytes(0)
            .liveness(Liveness::OFF);
        let endpoint = builder.extension(!plain).open().unwrap();
        let data = region.remote().to_bytes();
        endpoint.accept(request).data(data).await.unwrap();
        std::future::pending::<()>().await;
    })
}

/// What is outstanding when the other machine is cut off.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outstanding {
    /// Only a receive: nothing of ours is under way.
    Receive,
    /// A message, sent after it was cut off.
    Message,
    /// Far more than there is room for, since before.
    Flood,
}

/// Ruling 13: "C peers are probed by the operating system (keepalive)", and those that use this
/// library by this library: a machine that cannot be reached any more is found dead in time,
/// whatever is outstanding.
#[test]
fn a_machine_that_is_cut_off_ends_in_time() {
    let _one = MACHINES
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let Some(machine) = Machine::new() else {
        return;
    };
    let backends = &backends();
    on(Backend::Epoll, |_| async {
        let mut far = Vec::new();
        for &backend in backends {
            for plain in [false, true] {
                for what in [
                    Outstanding::Receive,
                    Outstanding::Message,
                    Outstanding::Flood,
                ] {
                    if backend != Backend::Loopback {
                        let what = (backend, plain, what);
                        far.push(Far::connect(&machine, watchful(), what).await);
                    }
                }
            }
        }
        // Only now, since probes for room come ever less often as long as they are answered, and
        // the one that is not answered is the later, the longer the others take to connect.
        far.iter_mut().for_each(Far::flood);
        tokio::time::sleep(Duration::from_millis(300)).await;
        let ticks = Ticks::start();
        machine.cut_off();
        join_all(far.into_iter().map(|far| far.ends_in_time(&ticks))).await;
    });
}

/// The probe interval of a side that only waits for a message.
const IDLE: Duration = Duration::from_secs(1);

fn watchful() -> Liveness {
    Liveness::default().idle_interval(IDLE)
}

/// A connection to the other machine.
struct Far {
    _process: PeerProcess,
    what: (Backend, bool, Outstanding),
    endpoint: Endpoint,
    receive: Op<Vec<u8>, Received>,
    flood: Option<Op<Vec<u8>>>,
}

impl Far {
    async fn connect(
        machine: &Machine,
        liveness: Liveness,
        (backend, plain, what): (Backend, bool, Outstanding),
    ) -> Far {
        let (process, address) = connect_to(machine, backend, plain);
        let us = Net::on(backend).peer().unwrap();
        let endpoint = us.domain.endpoint().liveness(liveness).open().unwrap();
        endpoint.connect(address).await.unwrap();
        assert_eq!(endpoint.peer_incarnation().is_none(), plain);
        let receive = endpoint.recv(vec![0; 100]).post().unwrap();
        Far {
            _process: process,
            what: (backend, plain, what),
            receive,
            flood: None,
            endpoint,
        }
    }

    fn flood(&mut self) {
        let (_, _, what) = self.what;
        let flood = self.endpoint.send(vec![1; 32 << 20]);
        self.flood = (what == Outstanding::Flood).then(|| flood.post().unwrap());
    }

    async fn ends_in_time(self, ticks: &Ticks) {
        let (_, plain, what) = self.what;
        let begun = ticks.elapsed();
        let message = self.endpoint.send("hello").delivery_complete();
        let message = (what == Outstanding::Message).then(|| message.post().unwrap());
        // The probe for room that is not answered may be seconds away.
        let in_time = watchful().found_within().unwrap() + IDLE + Duration::from_secs(3);
        let limit = match what {
            Outstanding::Flood if plain => Duration::from_secs(30),
            _ => in_time,
        };
        let kind = self.receive.await.unwrap_err().kind();
        let took = ticks.elapsed() - begun;
        assert_eq!(kind, ErrorKind::TimedOut, "{:?}", self.what);
        println!("{:?}: {took:?}", self.what);
        assert!(took < limit, "{:?} after {took:?}", self.what);
        if let Some(flood) = self.flood {
            assert_eq!(flood.await.unwrap_err().kind(), ErrorKind::TimedOut);
        }
        if let Some(message) = message {
            assert_eq!(message.await.unwrap_err().kind(), ErrorKind::TimedOut);
        }
    }
}

/// How long nothing is sent around the moment in which the cable is cut.
const QUIET: Duration = Duration::from_secs(2);

/// The other process: a connectionless endpoint that sends to ours again and again, and says when
/// it is connected, when it has given the connection up, and when it is connected again.
#[test]
#[ignore = "the other process of another test"]
fn the_far_sender() {
    in_the_far_process(async |us, address, plain| {
        let builder = us.domain.rdm_endpoint().extension(!plain);
        let endpoint = builder.listen_at(address).open().unwrap();
        let to = std::env::var("TOKIO_FABRIC_PEER").unwrap();
        let to = to.parse().unwrap();
        let to = endpoint.insert(to).unwrap();
        for (news, waits_for_success) in [("up", true), ("given up", false), ("up again", true)] {
            while endpoint.send("hello", to).delivery_complete().await.is_ok() != waits_for_success
            {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            crate::common::child::say(news);
            // The cable is cut meanwhile, once all that was sent has been confirmed: what was not
            // is sent again, and would show that the connection is no more.
            if news == "up" {
                tokio::time::sleep(QUIET).await;
            }
        }
        std::future::pending::<()>().await;
    })
}

/// A peer that has given a connection up comes back while it is still up here, where nothing was
/// sent that could have shown it: the peer's request has the old connection looked at, with a probe
/// of this library, or of the system where the peer speaks libfabric's protocol alone.
#[test]
fn a_peer_that_has_given_a_connection_up_over_a_cut_cable_is_soon_connected_again() {
    let _one = MACHINES
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let Some(machine) = Machine::new() else {
        return;
    };
    let backends = &backends();
    on(Backend::Epoll, |_| async {
        // So long that it finds nothing by itself.
        let liveness = Liveness::default().idle_interval(Duration::from_secs(300));
        let mut far = Vec::new();
        for &backend in backends {
            for plain in [false, true] {
                if backend == Backend::Loopback {
                    continue;
                }
                let us = Net::on(backend).peer().unwrap();
                let builder = us.domain.rdm_endpoint().liveness(liveness);
                let address = format!("{}:0", machine.ours).parse().unwrap();
                let endpoint = builder.listen_at(address).open().unwrap();
                let receiving = endpoint.clone();
                tokio::spawn(async move { while receiving.recv(vec![0; 100]).await.is_ok() {} });
                let process = machine.run(
                    "unreachable::the_far_sender",
                    &[
                        ("TOKIO_FABRIC_LISTEN", format!("{}:0", machine.theirs)),
                        ("TOKIO_FABRIC_BACKEND", backend.to_string()),
                        ("TOKIO_FABRIC_PLAIN", plain.to_string()),
                        ("TOKIO_FABRIC_PEER", endpoint.local_addr().to_string()),
                    ],
                );
                far.push((process, (backend, plain), endpoint, us));
            }
        }
        async fn all_say(
            far: &mut [(PeerProcess, (Backend, bool), RdmEndpoint, Peer)],
            news: &str,
        ) {
            for (process, what, ..) in far {
                assert_eq!(process.line().await, news, "{what:?}");
            }
        }
        all_say(&mut far, "up").await;
        tokio::time::sleep(QUIET / 2).await;
        machine.cut_off();
        all_say(&mut far, "given up").await;
        machine.join();
        // Some attempts are rejected first, and paused for.
        let up_again = all_say(&mut far, "up again");
        let up_again = tokio::time::timeout(Duration::from_secs(30), up_again);
        up_again.await.expect("they are connected again");
    });
}

/// A cable that is out for less than the limit ends no connection.
#[test]
fn a_machine_that_comes_back_in_time_lives() {
    let _one = MACHINES
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let Some(machine) = Machine::new() else {
        return;
    };
    on(Backend::Epoll, |_| async {
        // On a busy machine it takes seconds to put the cable back.
        let patient = watchful().rounds(20);
        let mut far = Vec::new();
        for plain in [false, true] {
            let what = (Backend::Epoll, plain, Outstanding::Receive);
            far.push(Far::connect(&machine, patient, what).await);
        }
        for _ in 0..2 {
            machine.cut_off();
            // TCP sends again ever less often, so it takes up to twice as long to notice.
            tokio::time::sleep(Duration::from_secs(1)).await;
            machine.join();
            tokio::time::sleep(Duration::from_secs(3)).await;
            for far in &far {
                assert!(far.endpoint.is_connected(), "{:?}", far.what);
            }
        }
    });
}

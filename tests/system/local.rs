//! Connections of one host move to shared memory, and nothing else about them changes
//! (`LocalPath`).

use std::future::IntoFuture;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::PoisonError;
use std::time::Duration;

use crate::common::alone::alone_with;
use crate::common::child::{PeerProcess, say};
use crate::common::gone::is_loss;
use crate::common::{backends, run};
use crate::unreachable::{MACHINES, Machine};
use crate::uring::filter::refuse;
use tokio_fabric::testing::{Net, connect, connect_endpoints};
use tokio_fabric::{
    Access, Backend, Driver, Endpoint, Error, ErrorKind, Event, Hints, LocalPath, NotLocal, Path,
    limits,
};

fn net(path: LocalPath) -> Net {
    Net::on(Backend::Epoll).local_path(path).local_after(64)
}

/// Runs the test on each backend with sockets, with each driver, where shared memory is allowed.
fn on_every_way<F, T>(test: F)
where
    F: Fn(Net) -> T,
    T: Future<Output = ()>,
{
    let sockets = backends().into_iter().filter(|it| *it != Backend::Loopback);
    for backend in sockets {
        for driver in [Driver::Task, Driver::Thread] {
            let net = Net::on(backend).driver(driver);
            run(0, net.local_after(64), &test);
        }
    }
}

/// Sends so many small messages one way and the other.
async fn talk(a: &Endpoint, b: &Endpoint, times: usize) -> Result<(), Error> {
    for at in 0..times {
        let sent = (at as u64).to_le_bytes();
        let (posted, back) = (b.recv(vec![0; 8]).post()?, a.recv(vec![0; 8]).post()?);
        a.send(sent.to_vec()).await?;
        assert_eq!(posted.await?.1, sent);
        b.send(sent.to_vec()).await?;
        assert_eq!(back.await?.1, sent);
    }
    Ok(())
}

/// Talks until both sides say that their bytes go through shared memory.
async fn moved(a: &Endpoint, b: &Endpoint) {
    let moved = async {
        while !a.path().is_local() || !b.path().is_local() {
            talk(a, b, 10).await.expect("they talk");
        }
    };
    if tokio::time::timeout(Duration::from_secs(30), moved)
        .await
        .is_err()
    {
        panic!("{} and {}", a.path(), b.path());
    }
}

#[test]
fn a_busy_connection_of_one_host_moves_to_shared_memory() {
    on_every_way(|net| async move {
        let (a, b) = net.pair().await.unwrap();
        assert!(matches!(a.path(), Path::Network(NotLocal::NotYet)));
        moved(&a, &b).await;
        talk(&a, &b, 100).await.unwrap();
        assert_eq!(a.path().to_string(), "local");
    });
}

#[tokio::test]
async fn an_idle_connection_stays_on_the_network() {
    let (a, b) = net(LocalPath::Auto).pair().await.unwrap();
    talk(&a, &b, 5).await.unwrap();
    assert!(matches!(a.path(), Path::Network(NotLocal::NotYet)));
    assert!(matches!(b.path(), Path::Network(NotLocal::NotYet)));
}

#[tokio::test]
async fn who_does_not_want_it_stays_on_the_network_and_says_why() {
    let off = net(LocalPath::Off);
    let (a, b) = off.pair().await.unwrap();
    talk(&a, &b, 100).await.unwrap();
    assert!(matches!(a.path(), Path::Network(NotLocal::Off)));
    assert_eq!(b.path().to_string(), "network (shared memory is off)");
    // One side's will is enough.
    let auto = net(LocalPath::Auto);
    let (a, b) = connect(&auto.peer().unwrap(), &off.peer().unwrap())
        .await
        .unwrap();
    talk(&a, &b, 100).await.unwrap();
    assert!(matches!(a.path(), Path::Network(NotLocal::NotOffered)));
    assert!(matches!(b.path(), Path::Network(NotLocal::Off)));
    // The hints of a fabric say so too.
    let fabric = auto
        .fabric_with(Hints::new().local_path(LocalPath::Off))
        .unwrap();
    let endpoint = fabric.domain().open().unwrap().endpoint().open().unwrap();
    assert!(matches!(
        endpoint.path(),
        Path::Network(NotLocal::NotConnected)
    ));
}

/// What is under way while the connection moves, and what is larger than the rings, arrives whole
/// and in order.
#[test]
fn large_messages_and_rma_go_through_shared_memory() {
    on_every_way(|net| async move {
        let (a, b) = net.pair().await.unwrap();
        let pattern = |salt: usize| -> Vec<u8> {
            (0..5 << 20)
                .map(|at: usize| (at.wrapping_mul(31) ^ (at >> 9) ^ salt) as u8)
                .collect()
        };
        let mut salt = 0;
        for round in 0..2 {
            let sends = async {
                for salt in salt..salt + 6 {
                    a.send(pattern(salt)).await.unwrap();
                }
            };
            let receives = async {
                for salt in salt..salt + 6 {
                    let (received, bytes) = b.recv(vec![0; 5 << 20]).await.unwrap();
                    assert_eq!(received.len, 5 << 20);
                    assert!(bytes == pattern(salt), "message {salt}");
                }
            };
            tokio::join!(sends, receives);
            salt += 6;
            let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
            let region = b
                .domain()
                .register(pattern(salt))
                .access(access)
                .await
                .unwrap();
            let written = a.write(pattern(salt + 1), region.remote());
            written.delivery_complete().await.unwrap();
            let (_, bytes) = a.read(vec![0; 5 << 20], region.remote()).await.unwrap();
            assert!(bytes == pattern(salt + 1), "round {round}");
            if round == 0 {
                moved(&a, &b).await;
            }
        }
        assert!(a.path().is_local() && b.path().is_local());
    });
}

/// The agreed end takes along all that was sent before it.
#[test]
fn a_connection_in_shared_memory_ends_in_order() {
    on_every_way(|net| async move {
        let (a, b) = net.pair().await.unwrap();
        moved(&a, &b).await;
        for at in 0..100u64 {
            a.send(at.to_le_bytes().to_vec()).detach().unwrap();
        }
        drop(a);
        for at in 0..100u64 {
            let (_, bytes) = b.recv(vec![0; 8]).await.unwrap();
            assert_eq!(bytes, at.to_le_bytes());
        }
        let failed = b.recv(vec![0; 8]).await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::PeerClosed);
    });
}

/// The peers of a connectionless endpoint: each has its own way.
#[test]
fn peers_of_a_connectionless_endpoint_move_too() {
    on_every_way(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let (to_b, to_a) = (a.other, b.other);
        let (a, b) = (a.endpoint, b.endpoint);
        let is_local = || a.path(to_b).unwrap().is_local() && b.path(to_a).unwrap().is_local();
        let moved = async {
            while !is_local() {
                let receive = b.recv(vec![0; 8]).post().unwrap();
                a.send(vec![7; 8], to_b).await.unwrap();
                assert_eq!(receive.await.unwrap().1, [7; 8]);
            }
        };
        let moved = tokio::time::timeout(Duration::from_secs(30), moved).await;
        assert!(moved.is_ok(), "{}", a.path(to_b).unwrap());
        assert_eq!(a.stats().connections_local, 1);
        assert_eq!((b.stats().connections, b.stats().connections_local), (1, 1));
    });
}

/// The handlers of an application's signals run on whichever thread the system chooses, also on one
/// that sets up shared memory.
#[test]
fn signals_keep_no_connection_from_shared_memory() {
    alone_with("local::while_signals_come", &[]);
}

#[test]
#[ignore = "the other process of another test"]
fn while_signals_come() {
    extern "C" fn ignore(_signal: libc::c_int) {}
    let handler = ignore as extern "C" fn(libc::c_int);
    // SAFETY: all zeros is an action without flags (no SA_RESTART), and the handler does nothing.
    let set = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut())
    };
    assert_eq!(set, 0);
    std::thread::spawn(|| {
        loop {
            for thread in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
                let thread: i32 = thread.file_name().to_str().unwrap().parse().unwrap();
                // SAFETY: it passes numbers only; a thread that has ended is an error.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR1) };
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    });
    on_every_way(|net| async move {
        for _ in 0..5 {
            let (a, b) = net.pair().await.unwrap();
            moved(&a, &b).await;
        }
    });
}

/// A process that gets no memory to share, or no doorbell, stays on the network and says why.
#[test]
fn a_connection_without_memory_or_doorbells_stays_on_the_network() {
    for (call, lacking) in [
        (libc::SYS_memfd_create, "making shared memory"),
        (libc::SYS_eventfd2, "making a doorbell"),
    ] {
        let call = call.to_string();
        let environment = [("CALL", &*call), ("LACKING", lacking)];
        alone_with("local::a_call_is_refused", &environment);
    }
}

#[test]
#[ignore = "the other process of another test"]
fn a_call_is_refused() {
    let call = std::env::var("CALL").unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let (a, b) = net(LocalPath::Auto).pair().await.unwrap();
        // The threads that meet are started after this.
        refuse(&[call], libc::EPERM).expect("a filter");
        // One end finds it out, and says so; the other one is left.
        let lacking = std::env::var("LACKING").unwrap();
        let says_why = |end: &Endpoint| match end.path() {
            Path::Network(NotLocal::Failed(error)) => error.to_string().contains(&lacking),
            _ => false,
        };
        let given_up = async {
            while !says_why(&a) && !says_why(&b) {
                talk(&a, &b, 10).await.unwrap();
            }
        };
        let given_up = tokio::time::timeout(Duration::from_secs(20), given_up).await;
        assert!(given_up.is_ok(), "{} and {}", a.path(), b.path());
        talk(&a, &b, 100).await.unwrap();
        assert!(!a.path().is_local() && !b.path().is_local());
    });
}

/// Neither end calls the system for a message in shared memory. It would fail here: no call that
/// moves bytes of a socket is allowed any more. Doorbells, which are written to, are used only
/// where an end has slept.
#[test]
fn a_stream_of_messages_in_shared_memory_makes_no_system_call_per_message() {
    for backend in backends() {
        let name = backend.to_string();
        alone_with("local::a_stream_without_calls", &[("BACKEND", &name)]);
    }
}

#[test]
#[ignore = "the other process of another test"]
fn a_stream_without_calls() {
    const MESSAGES: usize = 10_000;
    const WINDOW: usize = 64;
    let backend: Backend = std::env::var("BACKEND").unwrap().parse().unwrap();
    if backend == Backend::Loopback {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let (a, b) = Net::on(backend).local_after(0).pair().await.unwrap();
        moved(&a, &b).await;
        let before = reads_and_writes();
        refuse(
            &[
                libc::SYS_sendto,
                libc::SYS_sendmsg,
                libc::SYS_recvfrom,
                libc::SYS_recvmsg,
            ],
            libc::EPERM,
        )
        .expect("a filter");
        for _ in 0..MESSAGES / WINDOW {
            let receives: Vec<_> = (0..WINDOW)
                .map(|_| b.recv(vec![0; 64]).post().unwrap())
                .collect();
            for _ in 0..WINDOW {
                a.send(vec![5; 64]).detach().unwrap();
            }
            for receive in receives {
                assert_eq!(receive.await.unwrap().1, [5; 64]);
            }
        }
        let calls = reads_and_writes() - before;
        assert!(calls <= MESSAGES / WINDOW * 8, "{calls} calls");
    });
}

/// Two ends in shared memory, each of a domain whose driver spins for this long.
async fn spinning_pair(net: &Net, busy: Duration) -> (Endpoint, Endpoint) {
    let fabric = net.fabric().unwrap();
    let open = || {
        let domain = fabric.domain().busy_poll(busy).open().unwrap();
        domain.endpoint().open().unwrap()
    };
    let (a, b) = (open(), open());
    connect_endpoints(&a, &b, &fabric).await.unwrap();
    moved(&a, &b).await;
    (a, b)
}

/// A driver that spins polls its port, so the peer rings no doorbell.
#[test]
fn ends_that_spin_ring_no_doorbells() {
    for backend in backends() {
        let name = backend.to_string();
        alone_with("local::spinning_without_doorbells", &[("BACKEND", &name)]);
    }
}

#[test]
#[ignore = "the other process of another test"]
fn spinning_without_doorbells() {
    const ROUND_TRIPS: usize = 2_000;
    let backend: Backend = std::env::var("BACKEND").unwrap().parse().unwrap();
    if backend == Backend::Loopback {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let net = Net::on(backend).local_after(0);
        let (a, b) = spinning_pair(&net, Duration::from_secs(3600)).await;
        talk(&a, &b, 100).await.unwrap();
        let before = reads_and_writes();
        talk(&a, &b, ROUND_TRIPS).await.unwrap();
        let calls = reads_and_writes() - before;
        assert!(calls < ROUND_TRIPS / 10, "{calls} calls");
    });
}

/// A driver that has stopped spinning sleeps, and its peer wakes it.
#[test]
fn ends_that_have_stopped_spinning_are_rung_again() {
    for backend in backends() {
        if backend == Backend::Loopback {
            continue;
        }
        run(0, Net::on(backend).local_after(0), &|net: Net| async move {
            let (a, b) = spinning_pair(&net, Duration::from_micros(200)).await;
            for _ in 0..50 {
                talk(&a, &b, 5).await.unwrap();
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
    }
}

/// Calls of this process that read or write a file, as the system counts them.
fn reads_and_writes() -> usize {
    let counts = std::fs::read_to_string("/proc/self/io").unwrap();
    let count = |name: &str| -> usize {
        let line = counts.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().parse().unwrap()
    };
    count("syscr:") + count("syscw:")
}

/// Talks to the other process until this side says why it stays on the network, and then some more.
async fn stays_on_the_network(net: &Net, mut process: PeerProcess) -> Error {
    let us = net.peer().unwrap();
    let address = process.line().await.parse().unwrap();
    let endpoint = us.domain.endpoint().open().unwrap();
    endpoint.connect(address).await.unwrap();
    let echo = async || {
        endpoint.send(vec![1; 8]).await.unwrap();
        endpoint.recv(vec![0; 8]).await.unwrap();
    };
    let why_not = async {
        loop {
            if let Path::Network(NotLocal::Failed(error)) = endpoint.path() {
                return error;
            }
            echo().await;
        }
    };
    let why_not = tokio::time::timeout(Duration::from_secs(20), why_not).await;
    let why_not = why_not.unwrap_or_else(|_| panic!("{}", endpoint.path()));
    for _ in 0..100 {
        echo().await;
    }
    assert!(!endpoint.path().is_local());
    why_not
}

/// Memory is shared by processes of one user: others are recognized by what the system says of the
/// socket, and both talk over the network as before.
#[test]
fn a_process_of_another_user_stays_on_the_network() {
    const OTHER: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        crate::common::left_out("this process may not become another user");
        return;
    }
    on_every_way(|net| async move {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.uid(OTHER);
        let variables = [("BACKEND", net.backend().to_string())];
        let process = PeerProcess::spawn_by(command, "local::the_other_process", &variables);
        let error = stays_on_the_network(&net, process).await;
        assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
        assert!(error.to_string().contains("of another user"), "{error}");
    });
}

/// A process of this host in another network namespace, as one in a container: what it offers is of
/// this host, and its socket is not to be found.
#[test]
fn a_process_of_another_network_namespace_stays_on_the_network() {
    let _one = MACHINES.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(machine) = Machine::new() else {
        return;
    };
    let machine = &machine;
    on_every_way(|net| async move {
        let variables = [
            ("BACKEND", net.backend().to_string()),
            ("LISTEN", format!("{}:0", machine.theirs)),
        ];
        let process = machine.run("local::the_other_process", &variables);
        let error = stays_on_the_network(&net, process).await;
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
    });
}

/// As many connections of a domain as may share memory do; the next one says why not, at both ends.
#[tokio::test]
async fn more_connections_than_the_limit_stay_on_the_network() {
    let net = net(LocalPath::Auto);
    let (ours, theirs) = (net.peer().unwrap(), net.peer().unwrap());
    let mut pairs = Vec::new();
    for _ in 0..limits::LOCAL_CONNECTIONS_MAX {
        let (a, b) = connect(&ours, &theirs).await.unwrap();
        moved(&a, &b).await;
        pairs.push((a, b));
    }
    let refused = |endpoint: &Endpoint| match endpoint.path() {
        Path::Network(NotLocal::Limit) => true,
        Path::Network(NotLocal::Failed(error)) => error.kind() == ErrorKind::LimitReached,
        _ => false,
    };
    // Their own domain has room, and learns that the other has none.
    let others = net.peer().unwrap();
    for (from, to) in [(&ours, &others), (&others, &ours)] {
        let (a, b) = connect(from, to).await.unwrap();
        let mut rounds = 0;
        while rounds < 50 || !(refused(&a) || refused(&b)) {
            talk(&a, &b, 10).await.unwrap();
            rounds += 1;
            assert!(rounds < 5_000, "{} and {}", a.path(), b.path());
        }
        assert!(!a.path().is_local() && !b.path().is_local());
        assert!(refused(&a), "{}", a.path());
    }
    // What one gives back another takes.
    drop(pairs.pop());
    let (a, b) = connect(&ours, &theirs).await.unwrap();
    moved(&a, &b).await;
}

/// Answers each message until it has had the last of them; then sends 100 more and says so.
#[tokio::test]
#[ignore = "the other process of another test"]
async fn the_other_process() {
    crate::common::child::end_with_the_parent();
    let backend = std::env::var("BACKEND").unwrap().parse().unwrap();
    let net = Net::on(backend).local_path(LocalPath::Auto);
    let us = net.peer().unwrap();
    let requests = us.fabric.event_queue().open().unwrap();
    let listener = us.fabric.passive_endpoint(&requests);
    let address = std::env::var("LISTEN").unwrap_or("127.0.0.1:0".to_owned());
    let listener = listener.listen_at(address.parse().unwrap()).unwrap();
    let endpoint = us.domain.endpoint().open().unwrap();
    say(listener.local_addr());
    let request = loop {
        if let Some(Event::ConnRequest(request)) = requests.next().await {
            break request;
        }
    };
    endpoint.accept(request).await.unwrap();
    loop {
        let (_, bytes) = endpoint.recv(vec![0; 8]).await.unwrap();
        if bytes == LAST {
            break;
        }
        endpoint.send(bytes).await.unwrap();
    }
    assert!(endpoint.path().is_local());
    for at in 0..100u64 {
        endpoint.send(at.to_le_bytes().to_vec()).await.unwrap();
    }
    say("sent");
    std::future::pending::<()>().await;
}

/// The last message that the other process answers.
const LAST: [u8; 8] = [0xff; 8];

/// What a process wrote before it was killed arrives, and then its death is reported.
#[test]
fn a_killed_peer_in_shared_memory_is_reported_after_its_last_bytes() {
    on_every_way(|net| async move {
        let us = net.peer().unwrap();
        let mut process = PeerProcess::spawn(
            "local::the_other_process",
            &[("BACKEND", net.backend().to_string())],
        );
        let address = process.line().await.parse().unwrap();
        let endpoint = us.domain.endpoint().open().unwrap();
        endpoint.connect(address).await.unwrap();
        while !endpoint.path().is_local() {
            endpoint.send(vec![1; 8]).await.unwrap();
            endpoint.recv(vec![0; 8]).await.unwrap();
        }
        endpoint.send(LAST.to_vec()).await.unwrap();
        // The runtime stands still: nothing is received before the process has ended.
        assert_eq!(process.line_now(), "sent");
        drop(process); // By SIGKILL.
        for at in 0..100u64 {
            let (_, bytes) = endpoint.recv(vec![0; 8]).await.unwrap();
            assert_eq!(bytes, at.to_le_bytes());
        }
        let lost = endpoint.recv(vec![0; 8]);
        let lost = tokio::time::timeout(Duration::from_secs(20), lost.into_future()).await;
        let lost = lost.expect("its death is reported").unwrap_err();
        assert!(is_loss(lost.kind()), "{lost}");
    });
}

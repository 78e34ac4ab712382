//! The main job, run as its users run it: the example's program as a process of its own, on real
//! files, over real sockets, with everything that may go wrong around it.

mod process;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use process::{
    LIMIT, Server, assert_moved, assert_refused, await_resident, file, finish, object, peak_memory,
    program, run, text,
};
use tokio_fabric::{
    Endpoint, EndpointType, Event, EventQueue, Fabric, Hints, PassiveEndpoint, op::Received,
};

/// What moves the bytes of a domain driven by a task, where none is named.
const DEFAULT_BACKEND: &str = "epoll";

/// "alone, [it] starts server and client in one process over TCP, moves a real file": with `--json`
/// it prints one object with exactly the fields promised.
#[test]
fn alone_it_moves_a_file_and_reports_in_json() {
    let (file, bytes) = file(3_000_001);
    let output = run(&["--json", "--file", file.path().to_str().unwrap()]);
    let object = object(&output);
    assert_moved(&object, &bytes);
    let mut fields: Vec<&str> = object
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    fields.sort_unstable();
    let promised = [
        "backend",
        "bytes",
        "digest",
        "gb_per_s",
        "rpc_p50_us",
        "rpc_p99_us",
        "verified",
    ];
    assert_eq!(fields, promised);
    assert_eq!(object["backend"], DEFAULT_BACKEND);
    let number = |field: &str| object[field].as_f64().unwrap();
    assert!(number("gb_per_s") > 0.0);
    assert!(
        number("rpc_p50_us") >= 1.0,
        "no call is that fast: {object}"
    );
    assert!(number("rpc_p99_us") >= number("rpc_p50_us"));
}

/// "moves a real file (its own executable by default ..) .. and ends with the verified digest,
/// throughput, RPC latency percentiles"; the progress bar shows "only on a terminal".
#[test]
fn without_options_it_moves_its_own_executable() {
    let mut command = program();
    let own = std::fs::read(command.get_program()).expect("the program can be read");
    let output = finish(command.spawn().expect("the program starts"));
    assert!(output.status.success());
    assert_eq!(text(&output.stderr), "", "no terminal, no bar");
    let out = text(&output.stdout);
    for words in [
        blake3::hash(&own).to_hex().as_str(),
        "verified",
        "GB/s",
        "p50",
        "p99",
        DEFAULT_BACKEND,
    ] {
        assert!(out.contains(words), "{words:?} is not in {out}");
    }
}

/// "or the client pushes by RMA write: `--push`".
#[test]
fn pushed_by_rma_write() {
    let (file, bytes) = file(20_000_003);
    let output = run(&["--json", "--push", "--file", file.path().to_str().unwrap()]);
    assert_moved(&object(&output), &bytes);
}

/// Sizes at which chunks and windows just fill, or just do not, and nothing at all.
#[test]
fn every_edge_of_chunks_and_windows() {
    const CHUNK: usize = 8 << 20;
    for len in [0, 1, CHUNK, CHUNK + 1, 4 * CHUNK - 1, 4 * CHUNK] {
        let (file, bytes) = file(len);
        let path = file.path().to_str().unwrap();
        for direction in [&[][..], &["--push"]] {
            let args = [&["--json", "--calls", "2", "--file", path], direction].concat();
            assert_moved(&object(&run(&args)), &bytes);
        }
    }
}

/// "`serve ADDRESS` / `call ADDRESS` run it as two processes": the server outlives its clients and
/// serves several at once.
#[test]
fn as_two_processes_and_many_clients() {
    let server = Server::start();
    let (file, bytes) = file(9_000_000);
    let path = file.path().to_str().unwrap();
    let pull = ["--json", "--calls", "200", "--file", path];
    let push = ["--json", "--calls", "200", "--push", "--file", path];
    let clients = [&pull, &push[..], &pull, &push].map(|args| server.client(args));
    for client in clients {
        assert_moved(&object(&finish(client)), &bytes);
    }
    let said = server.kill();
    assert_eq!(said.matches("9000000 bytes verified").count(), 4, "{said}");
}

/// "`--backend NAME`": the job runs over the backend that is named, and says so.
#[test]
fn over_the_backend_that_is_named() {
    for backend in crate::common::backends() {
        let backend = backend.name();
        for direction in [&[][..], &["--push"]] {
            let args = [
                &["--json", "--size", "20M", "--backend", backend],
                direction,
            ]
            .concat();
            let object = object(&run(&args));
            assert_eq!(object["backend"], backend);
            assert_eq!(object["verified"], true);
        }
    }
}

/// "`--size 64G` of generated data in bounded memory": what is moved is several times what the
/// process ever holds.
#[test]
fn generated_data_moves_in_bounded_memory() {
    const BOUND: u64 = 160 << 20;
    for direction in [&[][..], &["--push"]] {
        let args = [&["--json", "--size", "512M"], direction].concat();
        let mut child = program().args(args).spawn().expect("the program starts");
        let mut peak = 0;
        while child.try_wait().expect("it can be waited for").is_none() {
            peak = peak_memory(child.id()).unwrap_or(0).max(peak);
            std::thread::sleep(Duration::from_millis(2));
        }
        let object = object(&finish(child));
        assert_eq!(object["bytes"], 512 << 20);
        assert_eq!(object["verified"], true);
        assert!(peak > 32 << 20, "{peak} bytes: the peak was not seen");
        assert!(peak < BOUND, "{peak} bytes at most, for 512 MiB moved");
    }
}

/// "Bad input (no such file ..) is one clear line on stderr and a non-zero exit"; so are a
/// directory, a bad size, a bad backend and a bad address.
#[test]
fn bad_input_is_one_clear_line() {
    assert_refused(
        &run(&["--file", "/no/such/file"]),
        &["/no/such/file", "No such file"],
    );
    assert_refused(&run(&["--file", "/"]), &["/", "directory"]);
    assert_refused(&run(&["--size", "12Q"]), &["12Q", "--size"]);
    assert_refused(&run(&["--size", "99999999999999G"]), &["--size"]);
    assert_refused(&run(&["--size", "-1"]), &["-1"]);
    assert_refused(&run(&["--size", "1", "--file", "x"]), &["--size", "--file"]);
    assert_refused(
        &run(&["--backend", "carrier-pigeon"]),
        &["carrier-pigeon", "epoll"],
    );
    assert_refused(&run(&["call"]), &["ADDRESS"]);
    assert_refused(&run(&["call", "nowhere"]), &["nowhere"]);
    assert_refused(&run(&["serve", "nowhere"]), &["nowhere"]);
    assert_refused(&run(&["serve", "127.0.0.1:0", "--push"]), &["--push"]);
    assert_refused(&run(&["--no-such-option"]), &["--no-such-option"]);
}

/// "Bad input (.. refused connection ..) is one clear line on stderr and a non-zero exit".
#[test]
fn a_refused_connection_is_one_clear_line() {
    // Bound and not listening: no other process has the port, and it refuses.
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = socket.local_addr().expect("bound").to_string();
    assert_refused(&run(&["call", &address]), &["refused", &address]);
    let server = Server::start();
    let taken = server.address.to_string();
    assert_refused(&run(&["serve", &taken]), &["in use", &taken]);
}

/// "Bad input (.. killed server) is one clear line on stderr and a non-zero exit": in mid-transfer,
/// both ways, within seconds.
#[test]
fn a_server_killed_in_mid_transfer_is_one_clear_line() {
    for direction in [&[][..], &["--push"]] {
        let server = Server::start();
        let client = server.client(&[&["--size", "1T"], direction].concat());
        // All four pieces of its memory are in use.
        server.await_resident(36 << 20);
        drop(server.kill());
        let killed = Instant::now();
        let output = finish(client);
        assert!(
            killed.elapsed() < Duration::from_secs(10),
            "{:?}",
            killed.elapsed()
        );
        assert_refused(&output, &["server"]);
    }
}

/// A client that dies in mid-transfer costs the server nothing but a line.
#[test]
fn a_client_killed_in_mid_transfer_leaves_the_server_serving() {
    let server = Server::start();
    for direction in [&[][..], &["--push"]] {
        let mut client = server.client(&[&["--size", "1T"], direction].concat());
        await_resident(&client, 70 << 20);
        client.kill().expect("it runs");
        client.wait().expect("it is a child");
    }
    let (file, bytes) = file(1_000_000);
    let output = server.call(&["--json", "--file", file.path().to_str().unwrap()]);
    assert_moved(&object(&output), &bytes);
    let said = server.kill();
    assert!(said.contains("1000000 bytes verified"), "{said}");
    assert!(!said.contains("panicked"), "{said}");
}

/// A request that is not one is refused with a reason, and the connection lives; requests that make
/// no sense likewise.
#[test]
fn requests_of_garbage_are_refused() {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let client = connect(server.address).await;
        let mut frame = [0; 56];
        frame[..6].copy_from_slice(b"RPCB\x01\x01");
        assert_eq!(ask(&client, &frame).await, (0x80, 0), "a ping is answered");
        assert_eq!(ask(&client, b"").await, (0x81, 1));
        assert_eq!(ask(&client, &[0xff; 56]).await, (0x81, 1));
        assert_eq!(ask(&client, &[0; 10_000]).await, (0x81, 1));
        for (kind, refusal) in [(0x80, 2), (2, 3), (4, 3), (9, 1)] {
            frame[5] = kind;
            assert_eq!(ask(&client, &frame).await, (0x81, refusal), "kind {kind}");
        }
        // A finish that claims bytes which never came.
        frame[5] = 5;
        frame[16] = 1;
        assert_eq!(ask(&client, &frame).await, (0x81, 5));
        // Memory to write into, as often as one likes to ask.
        frame[5] = 3;
        for _ in 0..4 {
            assert_eq!(ask(&client, &frame).await.0, 0x80);
        }
        assert_eq!(ask(&client, &frame).await, (0x81, 4));
    });
    let output = server.call(&["--json", "--size", "1M"]);
    assert_eq!(object(&output)["verified"], true);
    assert!(!server.kill().contains("panicked"));
}

/// The exit code is 0 only if the digests agree: a server that answers everything and reads nothing
/// is found out, and one that speaks another protocol is reported as such.
#[test]
fn a_wrong_digest_is_not_verified() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for (version, words) in [
        (1, "digest is another"),
        (2, "does not speak this protocol"),
    ] {
        let fabric = Fabric::open(Hints::new()).unwrap();
        let (address, lying) = runtime.block_on(async {
            let events = fabric.event_queue().open().unwrap();
            let listener = fabric.passive_endpoint(&events);
            let listener = listener.listen_at(([127, 0, 0, 1], 0).into()).unwrap();
            let address = listener.local_addr().to_string();
            (
                address,
                tokio::spawn(lie(fabric.clone(), listener, events, version)),
            )
        });
        let output = run(&["call", &address, "--size", "1M", "--calls", "2", "--json"]);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(1), "{out}{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
        assert!(err.contains(words), "{err}");
        assert!(!out.contains("\"verified\":true"), "{out}");
        lying.abort();
    }
}

/// Answers every request of one client by Done, with a body of zeros.
async fn lie(fabric: Fabric, _listener: PassiveEndpoint, events: EventQueue, version: u8) {
    let Some(Event::ConnRequest(request)) = events.next().await else {
        panic!("nothing else is bound")
    };
    let client = request
        .accept(&fabric.domain().open().unwrap())
        .await
        .unwrap();
    while let Ok((_, mut frame)) = client.recv(vec![0; 56]).await {
        frame[4] = version;
        frame[5] = 0x80;
        frame[24..].fill(0);
        if client.send(frame).await.is_err() {
            break;
        }
    }
}

async fn connect(address: SocketAddr) -> Endpoint {
    let fabric = Fabric::open(Hints::new().endpoint(EndpointType::Msg)).unwrap();
    let endpoint = fabric.domain().open().unwrap().endpoint().open().unwrap();
    endpoint.connect(address).await.unwrap();
    endpoint
}

/// Sends a message; kind and value of the answer.
async fn ask(endpoint: &Endpoint, message: &[u8]) -> (u8, u64) {
    let answer = endpoint.recv(vec![0; 56]).post().unwrap();
    endpoint.send(message.to_vec()).await.unwrap();
    let (Received { len, .. }, answer) = tokio::time::timeout(LIMIT, answer)
        .await
        .expect("an answer in time")
        .unwrap();
    assert_eq!(len, 56);
    assert_eq!(answer[..4], *b"RPCB");
    (
        answer[5],
        u64::from_le_bytes(answer[16..24].try_into().unwrap()),
    )
}

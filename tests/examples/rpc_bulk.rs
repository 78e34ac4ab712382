//! The main job, run as its users run it: the example's program as a process of its own, on real
//! files, over real sockets, with everything that may go wrong around it.

mod process;

use std::time::{Duration, Instant};

use process::{
    Server, assert_moved, assert_refused, await_resident, file, finish, object, peak_memory,
    program, run, text,
};
use tokio_fabric::{EndpointType, Fabric, Hints};
use tokio_fabric_rpc::{Code, Cx, Lend, Pull, Push, Result, Server as RpcServer, Started, service};

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

/// `--push`: the server writes back by RMA what it has read, and the client compares.
#[test]
fn written_back_by_rma_write() {
    let (file, bytes) = file(20_000_003);
    let path = file.path().to_str().unwrap();
    let output = run(&["--json", "--calls", "2", "--push", "--file", path]);
    assert_moved(&object(&output), &bytes);
}

/// Sizes at which chunks and windows just fill, or just do not, and nothing at all.
#[test]
fn every_edge_of_chunks_and_windows() {
    const CHUNK: usize = 512 << 10;
    const WINDOW: usize = 16 << 20;
    for len in [0, 1, CHUNK, CHUNK + 1, WINDOW - 1, WINDOW, WINDOW + 1] {
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
            let job = ["--json", "--calls", "2", "--size", "20M"];
            let args = [&job[..], &["--backend", backend], direction].concat();
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
        let args = [&["--json", "--calls", "2", "--size", "512M"], direction].concat();
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
        let client = server.client(&[&["--calls", "2", "--size", "1T"], direction].concat());
        // Both windows are filled: it has begun to lend them.
        await_resident(&client, 32 << 20);
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
        let mut client = server.client(&[&["--calls", "2", "--size", "1T"], direction].concat());
        await_resident(&client, 32 << 20);
        client.kill().expect("it runs");
        client.wait().expect("it is a child");
    }
    let (file, bytes) = file(1_000_000);
    let path = file.path().to_str().unwrap();
    let output = server.call(&["--json", "--calls", "2", "--file", path]);
    assert_moved(&object(&output), &bytes);
    let said = server.kill();
    assert!(said.contains("1000000 bytes verified"), "{said}");
    assert!(!said.contains("panicked"), "{said}");
}

/// The example's service, for callers and servers of other kinds.
#[service]
pub trait Bulk {
    async fn ping(&self, cx: &Cx) -> Result<()>;
    async fn put(&self, cx: &Cx, at: u64, data: Pull, back: Push) -> Result<()>;
    async fn finish(&self, cx: &Cx, bytes: u64, digest: [u8; 32]) -> Result<[u8; 32]>;
}

/// Methods that the example's server does not have, or with other arguments.
#[service(name = "Bulk")]
pub trait Other {
    async fn none(&self, cx: &Cx) -> Result<()>;
    async fn put(&self, cx: &Cx, at: u64) -> Result<()>;
}

/// A call that makes no sense is refused with a reason, and the connection lives; what does not
/// speak the protocol gets no connection.
#[test]
fn calls_that_make_no_sense_are_refused() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = BulkClient::connect(server.address).await.unwrap();
        let other = OtherClient::over(client.channel().clone());
        client.ping().await.expect("a ping is answered");
        let refused = other.none().await.unwrap_err();
        assert_eq!(refused.code(), Code::Unimplemented);
        assert_eq!(refused.started(), Started::NotStarted);
        let refused = other.put(0).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unimplemented, "it lends nothing");
        assert!(refused.to_string().contains("other arguments"), "{refused}");
        // What does not follow what has come, and the end of bytes that never came.
        let lent = (Lend::read(vec![1; 9]), Lend::write(Vec::new()));
        let refused = client.put(5, lent.0, lent.1).await.unwrap_err();
        assert_eq!(refused.error().code(), Code::BadRequest);
        let (_, buffers) = refused.into_parts();
        assert_eq!(buffers, Some((vec![1; 9], Vec::new())), "it is back");
        let refused = client.finish(1, [0; 32]).await.unwrap_err();
        assert_eq!(refused.code(), Code::BadRequest);
        // Less room for what comes back than was lent.
        let lent = (Lend::read(vec![1; 9]), Lend::write(vec![0; 8]));
        let refused = client.put(0, lent.0, lent.1).await.unwrap_err();
        assert_eq!(refused.error().code(), Code::TooLarge);
        client.ping().await.expect("the connection lives");

        let fabric = Fabric::open(Hints::new().endpoint(EndpointType::Msg)).unwrap();
        let stranger = fabric.domain().open().unwrap().endpoint().open().unwrap();
        let refused = stranger.connect(server.address).await.unwrap_err();
        assert!(!refused.data().is_empty(), "the reason: {refused}");
    });
    let output = server.call(&["--json", "--calls", "2", "--size", "1M"]);
    assert_eq!(object(&output)["verified"], true);
    assert!(!server.kill().contains("panicked"));
}

/// Answers everything, reads nothing.
struct Liar;

impl Bulk for Liar {
    async fn ping(&self, _: &Cx) -> Result<()> {
        Ok(())
    }

    async fn put(&self, _: &Cx, _: u64, _: Pull, _: Push) -> Result<()> {
        Ok(())
    }

    async fn finish(&self, _: &Cx, _: u64, _: [u8; 32]) -> Result<[u8; 32]> {
        Ok([0; 32])
    }
}

/// Methods of the same names, and another service's otherwise.
struct Stranger;

impl Other for Stranger {
    async fn none(&self, _: &Cx) -> Result<()> {
        Ok(())
    }

    async fn put(&self, _: &Cx, _: u64) -> Result<()> {
        Ok(())
    }
}

/// The exit code is 0 only if the digests agree: a server that answers everything and reads nothing
/// is found out, and one of another service is reported as such.
#[test]
fn a_wrong_digest_is_not_verified() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let servers = [
        (
            RpcServer::new().add(BulkServer::new(Liar)),
            &[][..],
            "digest is another",
        ),
        (
            RpcServer::new().add(BulkServer::new(Liar)),
            &["--push"],
            "other bytes",
        ),
        (
            RpcServer::new().add(OtherServer::new(Stranger)),
            &[],
            "no such method",
        ),
    ];
    for (server, options, words) in servers {
        let server = runtime.block_on(server.bind("127.0.0.1:0")).unwrap();
        let address = server.local_addr().to_string();
        let job = ["call", &address, "--size", "1M", "--calls", "2", "--json"];
        let output = run(&[&job, options].concat());
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(1), "{out}{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
        assert!(err.contains(words), "{err}");
        assert!(!out.contains("\"verified\":true"), "{out}");
    }
}

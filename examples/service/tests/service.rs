//! The example `service`, run as its users run it: two processes, and requests by HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// A process of the example, which is killed if its test ends before it.
struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
    http: SocketAddr,
}

impl Process {
    fn start(words: &[&str]) -> Process {
        let test = std::env::current_exe().expect("this test has a path");
        let built = test.ancestors().nth(2).expect("deps, and its profile");
        let mut command = Command::new(built.join("examples").join("service"));
        let command = command.args(words).stdout(Stdio::piped());
        let mut child = command.spawn().expect("cargo test makes it");
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let http = line.trim_end().strip_prefix("serving ").expect("it serves");
        Process {
            child,
            output,
            http: http.parse().unwrap(),
        }
    }

    fn terminate(&self) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status();
        assert!(sent.unwrap().success());
    }

    /// Waits until it has ended well; returns the rest of what it has printed.
    fn end(mut self) -> String {
        let mut printed = String::new();
        self.output.read_to_string(&mut printed).unwrap();
        assert!(self.child.wait().unwrap().success(), "{printed}");
        printed
    }

    /// Sends a request; returns the status and the body of the answer.
    fn ask(&self, method: &str, path: &str, more: &str, body: &str) -> (u16, String) {
        let stream = TcpStream::connect(self.http).unwrap();
        begin(&stream, method, path, more, body.len());
        finish(stream, body)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn begin(mut stream: &TcpStream, method: &str, path: &str, more: &str, len: usize) {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len}\r\n{more}\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
}

fn finish(mut stream: TcpStream, body: &str) -> (u16, String) {
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

/// A port that is free, as nothing else here asks for one in between.
fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn a_front_and_its_back_end_are_traced_counted_and_end_gracefully() {
    let at = free_address();
    // The front is there first.
    let front = Process::start(&["front", "127.0.0.1:0", &at]);
    let (code, why) = front.ask("PUT", "/items/a", "", "hello");
    assert_eq!(code, 503, "{why}");
    assert!(why.contains("Items/write"), "{why}");
    let back = Process::start(&["back", &at, "127.0.0.1:0"]);
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let header = format!("traceparent: 00-{trace}-b7ad6b7169203331-01\r\n");
    assert_eq!(front.ask("GET", "/items/a", &header, "").0, 404);
    assert_eq!(front.ask("PUT", "/items/a", "", "hello").0, 204);
    let read = front.ask("GET", "/items/a", "", "");
    assert_eq!(read, (200, "hello".to_owned()));
    let (_, page) = front.ask("GET", "/metrics", "", "");
    for line in [
        "rpc_client_connections_established 1",
        "rpc_client_connections_lost 0",
        "rpc_client_calls{outcome=\"not_started\"} 1",
        "rpc_client_calls{outcome=\"succeeded\"} 3",
    ] {
        assert!(page.lines().any(|it| it == line), "{line}: {page}");
    }
    assert!(page.contains("fabric_driver_wakes "), "{page}");
    let (_, page) = back.ask("GET", "/metrics", "", "");
    let counted = "rpc_server_calls{rpc_method=\"Items/read\",outcome=\"succeeded\"} 2";
    assert!(page.lines().any(|it| it == counted), "{page}");
    assert!(page.contains("rpc_server_connections 1"), "{page}");

    // A request that has begun is answered, by a process that takes no others.
    let stream = TcpStream::connect(front.http).unwrap();
    begin(&stream, "PUT", "/items/b", "expect: 100-continue\r\n", 5);
    let mut asked = [0; 25];
    (&stream).read_exact(&mut asked).unwrap();
    assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
    front.terminate();
    let begun = Instant::now();
    while TcpStream::connect(front.http).is_ok() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "it still listens"
        );
    }
    assert_eq!(finish(stream, "there").0, 204);
    let of_front = front.end();
    back.terminate();
    let of_back = back.end();

    // The trace of the request: its span, that of the call, and the server's.
    let spans = |printed: &str| -> Vec<Vec<String>> {
        let lines = printed.lines().filter(|it| it.contains(trace));
        let words = lines.map(|it| it.split(' ').map(str::to_owned).collect());
        words.collect()
    };
    let (here, there) = (spans(&of_front), spans(&of_back));
    let of_kind = |kind: &str| here.iter().find(|it| it[4] == kind).expect("a span");
    let (request, call) = (of_kind("Server"), of_kind("Client"));
    assert_eq!(request[2], "b7ad6b7169203331");
    assert_eq!(request[5..].join(" "), "GET /items/{name}");
    assert_eq!((&call[2], &*call[5]), (&request[3], "Items/read"));
    let [served] = &there[..] else {
        panic!("{of_back}")
    };
    assert_eq!((&served[2], &*served[5]), (&call[3], "Items/read"));
}

//! `top`: what it shows of `rdm_all_to_all`, a peer of which is killed meanwhile.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::rdm_all_to_all::process::{self, Running, assert_well, text};

/// The example's program is built beside this one.
fn top(arguments: &[&str]) -> Command {
    let own = std::env::current_exe().expect("this program");
    let built = own.parent().and_then(|deps| deps.parent()).expect("target");
    let mut command = Command::new(built.join("examples/top"));
    command.args(arguments).stdout(Stdio::piped());
    command
}

fn page(at: &str) -> String {
    let output = top(&[at, "--once", "--interval", "200"]).output();
    let output = output.expect("`cargo test` builds it");
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

/// The columns of the line of the page that begins so.
fn line<'a>(page: &'a str, begin: &str) -> Vec<&'a str> {
    let mut lines = page.lines().map(|line| line.trim_matches(['│', ' ']));
    let found = lines.rfind(|line| line.starts_with(begin));
    let found = found.unwrap_or_else(|| panic!("no {begin:?} in {page}"));
    found.split_whitespace().collect()
}

/// The pages, until one is as it is to be.
#[track_caller]
fn until(at: &str, what: &str, is: impl Fn(&str) -> bool) -> String {
    let start = Instant::now();
    loop {
        let page = page(at);
        if is(&page) {
            return page;
        }
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "never: {what}: {page}"
        );
    }
}

/// Ends with the test.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A path that names a file by mistake: its bytes stay.
#[test]
fn statistics_are_not_served_in_place_of_a_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "precious").unwrap();
    let at = file.path().to_str().unwrap();
    let output = process::run(&["--seconds", "1", "--stats", at]);
    assert!(!output.status.success());
    assert_eq!(std::fs::read(file.path()).unwrap(), b"precious");
}

/// `rdm_all_to_all --stats PATH`, `top PATH`, `top PATH --prometheus PORT`.
#[test]
fn rates_and_a_killed_peer_are_seen() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("stats");
    let at = at.to_str().unwrap();
    let first = Running::start(&["--seconds", "0", "--endpoints", "2", "--stats", at]);
    let join = first.address.clone();
    let second = Running::start(&["--seconds", "0", "--endpoints", "1", "--join", &join]);
    let other = second.address.clone();

    let shown = until(at, "both send", |page| {
        page.contains(&other) && line(page, &other)[3] != "0"
    });
    assert!(shown.starts_with("rdm_all_to_all "), "{shown}");
    assert_eq!(line(&shown, &other)[1], "living");
    for kind in ["sends", "receives"] {
        let columns = line(&shown, kind);
        assert!(
            columns[1] != "0" && columns[2] != "0" && columns[3] != "0",
            "{shown}"
        );
        assert_eq!(columns[5], "0", "{shown}");
    }
    let links = line(&shown, "connections");
    assert_eq!((links[1], links[links.len() - 1]), ("4", "0"), "{shown}");
    assert_ne!(line(&shown, "0 ")[1], "0", "the driver wakes: {shown}");

    second.kill();
    let shown = until(at, "it is gone", |page| line(page, &other)[1] == "gone");
    let links = line(&shown, "connections");
    assert_eq!(links[1], "2", "{shown}");
    assert_ne!(links[links.len() - 1], "0", "losses: {shown}");
    assert_ne!(line(&shown, "sends")[5], "0", "failed sends: {shown}");
    let of_others: Vec<&str> = line(&shown, "127.0.0.1:");
    assert_eq!(
        of_others[1], "living",
        "who is in trouble comes first: {shown}"
    );

    // The same for Prometheus, and as a picture.
    let mut serving = Serving(top(&[at, "--prometheus", "0"]).spawn().unwrap());
    let mut said = String::new();
    let out = serving.0.stdout.take().unwrap();
    BufReader::new(out).read_line(&mut said).unwrap();
    let host = said.trim().strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(host.strip_suffix("/metrics").unwrap()).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let value = |name: &str| -> f64 {
        let found = answer.lines().find(|line| line.starts_with(name));
        let found = found.unwrap_or_else(|| panic!("no {name} in {answer}"));
        found.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert!(value("fabric_endpoint_operations_sends_succeeded_total{") > 0.0);
    assert!(value("fabric_endpoint_losses_total{") > 0.0);
    assert!(value("fabric_domain_driver_turn_time_seconds_total ") > 0.0);
    assert!(
        answer.contains("# TYPE fabric_endpoint_in_flight gauge\n"),
        "{answer}"
    );
    assert!(
        answer.contains(&format!("peer=\"{other}\",is=\"gone\"")),
        "{answer}"
    );
    let picture = folder.path().join("top.svg");
    let drawn = top(&[at, "--svg", picture.to_str().unwrap()]).status();
    assert!(drawn.unwrap().success());
    let picture = std::fs::read_to_string(picture).unwrap();
    assert!(
        picture.starts_with("<svg ") && picture.contains("#ff6b6b"),
        "{picture}"
    );

    assert_well(&first.interrupt());
    assert!(!std::path::Path::new(at).exists(), "the path is removed");
}

/// Statistics are not served to other machines; a program that is not there is said.
#[test]
fn only_this_machine_is_asked() {
    let output = top(&["192.0.2.1:9", "--once"])
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("127.0.0.0/8"), "{output:?}");
    let output = top(&["/nowhere/stats", "--once"])
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(
        text(&output.stderr).contains("no statistics at /nowhere/stats"),
        "{output:?}"
    );
}

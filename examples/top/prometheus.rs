//! The readings as a page for Prometheus: all numbers of the domain, the drivers and the endpoints,
//! named by their places in the statistics; times in seconds.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::reading::{Reading, Source, StatsAddress, number};

/// Values that may decrease, which Prometheus distinguishes from counts; and maxima of times.
const GAUGES: [&str; 18] = [
    "longest_turn_seconds",
    "in_flight",
    "waiting",
    "posted",
    "unexpected_messages",
    "unexpected_bytes",
    "credit_bytes",
    "connections",
    "connections_local",
    "ports",
    "endpoints",
    "completion_queues",
    "counters",
    "regions",
    "half_open",
    "capacity",
    "len",
    "reserved",
];

/// Answers each request with a new reading, until the program ends.
pub fn serve(place: &StatsAddress, port: u16) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let listener = listener.with_context(|| format!("cannot serve at port {port}"))?;
    println!("http://{}/metrics", listener.local_addr()?);
    let mut source = Source::open(place)?;
    for stream in listener.incoming() {
        let mut stream = BufReader::new(stream?);
        let mut line = String::new();
        // Reads to the empty line that ends the head.
        while matches!(stream.read_line(&mut line), Ok(3..)) {
            line.clear();
        }
        let page = page(&source.read()?);
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            page.len()
        );
        // A client that has gone away meanwhile can ask again.
        let _ = stream
            .get_mut()
            .write_all(format!("{head}{page}").as_bytes());
    }
    Ok(())
}

/// Samples grouped by name.
#[derive(Default)]
struct Page(BTreeMap<String, Vec<String>>);

pub fn page(reading: &Reading) -> String {
    let mut page = Page::default();
    if let Some(domain) = reading.value("/domain") {
        page.add("fabric_domain", "", domain);
    }
    for (at, shard) in reading.list("/shards").iter().enumerate() {
        page.add("fabric_driver", &format!("shard=\"{at}\""), shard);
    }
    for endpoint in reading.list("/endpoints") {
        let label = format!("endpoint={}", endpoint["local"]);
        page.add("fabric_endpoint", &label, &endpoint["stats"]);
        page.add("fabric_listener", &label, &endpoint["listener"]);
        page.add("fabric_queue", &label, &endpoint["queue"]);
    }
    for peer in reading.list("/peers") {
        let label = format!("peer={},is={}", peer["peer"], peer["is"]);
        page.sample("fabric_peer_done", &label, number(peer.get("done")));
    }
    let mut text = String::new();
    for (name, samples) in page.0 {
        let is_gauge = GAUGES.iter().any(|gauge| name.ends_with(gauge));
        let kind = if is_gauge { "gauge" } else { "counter" };
        let suffix = if is_gauge { "" } else { "_total" };
        text += &format!("# TYPE {name}{suffix} {kind}\n");
        for sample in samples {
            text += &format!("{name}{suffix}{sample}\n");
        }
    }
    text
}

impl Page {
    /// All numbers within this value.
    fn add(&mut self, name: &str, labels: &str, value: &Value) {
        match value {
            Value::Object(time) if time.contains_key("nanos") => {
                self.sample(&format!("{name}_seconds"), labels, number(Some(value)));
            }
            Value::Object(fields) => {
                for (field, value) in fields {
                    self.add(&format!("{name}_{field}"), labels, value);
                }
            }
            value => self.sample(name, labels, number(Some(value))),
        }
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let labels = match labels {
            "" => String::new(),
            labels => format!("{{{labels}}}"),
        };
        let samples = self.0.entry(name.to_owned()).or_default();
        samples.push(format!("{labels} {value}"));
    }
}

//! Asks a server how it is, or what it serves: `fabric-rpc ADDRESS check|describe [--json]`.
//!
//! ```text
//! $ cargo run -p tokio-fabric-rpc -- 127.0.0.1:7471 describe
//! serving: 1 of 4096 calls, 1 of 10240 connections
//! so far: 18 calls started, 0 refused, 0 connections closed for what they sent, 0 lost
//! codec postcard, 256 calls open per connection, frames of 65536 bytes
//! ```
//!
//! and a row for each method: its number, what has become of its calls, and its signature.

use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

use tokio_fabric_rpc::{Channel, MethodStats, Result, ServerDescription, ServerHealth};

const USAGE: &str = "fabric-rpc ADDRESS check|describe [--json]

  check     how the server is; the exit code is 0 if it serves
  describe  its methods with their numbers, its limits, and what has become of calls
  --json    for programs";

/// How long a server that is there may take.
const WITHIN: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let (flags, words): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|it| it.starts_with('-'));
    let is_json = match &flags[..] {
        [] => false,
        [flag] if flag == "--json" => true,
        _ => return usage(),
    };
    let asks = |what: &str| matches!(&words[..], [_, word] if word == what);
    if !asks("check") && !asks("describe") {
        return usage();
    }
    let answer = ask(&words[0], asks("check"), is_json);
    match answer {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(status) => {
            eprintln!("{}: {status}", words[0]);
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn ask(address: &str, is_check: bool, is_json: bool) -> Result<String> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build();
    let runtime = runtime.expect("a runtime needs a few descriptors");
    runtime.block_on(async {
        let channel = Channel::builder().deadline(WITHIN).connect(address).await?;
        let text = if is_check {
            let health = channel.check().await?;
            match is_json {
                true => json_of_health(&health) + "\n",
                false => text_of_health(&health),
            }
        } else {
            let description = channel.describe().await?;
            match is_json {
                true => json_of(&description) + "\n",
                false => text_of(&description),
            }
        };
        channel.close().await;
        Ok(text)
    })
}

/// By the names of JSON.
type Numbers<const N: usize> = [(&'static str, u64); N];

fn numbers_of(health: &ServerHealth) -> Numbers<10> {
    let stats = health.stats;
    [
        ("running", stats.running as u64),
        ("calls_max", health.calls_max),
        ("connections", stats.connections as u64),
        ("connections_max", health.connections_max),
        ("started", stats.started),
        ("refused", stats.refused),
        ("violations", stats.violations),
        ("unauthorized_calls", stats.unauthorized_calls),
        ("unauthorized_connections", stats.unauthorized_connections),
        ("connections_lost", stats.connections_lost),
    ]
}

fn counts_of(stats: &MethodStats) -> Numbers<6> {
    [
        ("started", stats.started),
        ("succeeded", stats.succeeded),
        ("failed", stats.failed),
        ("cancelled", stats.cancelled),
        ("refused", stats.refused),
        ("slow_polls", stats.slow_polls),
    ]
}

fn json_of_numbers(numbers: &[(&str, u64)]) -> String {
    let all = numbers.iter().map(|(name, it)| format!("\"{name}\":{it}"));
    all.collect::<Vec<_>>().join(",")
}

fn text_of_health(health: &ServerHealth) -> String {
    let [
        running,
        calls_max,
        connections,
        connections_max,
        started,
        refused,
        violations,
        unauthorized_calls,
        unauthorized_connections,
        connections_lost,
    ] = numbers_of(health).map(|(_, number)| number);
    format!(
        "serving: {running} of {calls_max} calls, {connections} of {connections_max} connections\n\
         so far: {started} calls started, {refused} refused, {violations} connections closed for \
         what they sent, {connections_lost} lost\n\
         not authorized: {unauthorized_calls} calls, {unauthorized_connections} connections\n"
    )
}

fn text_of(server: &ServerDescription) -> String {
    let mut text = text_of_health(&server.health);
    let codec = match server.codec.as_str() {
        "" => "none",
        codec => codec,
    };
    let _ = writeln!(
        text,
        "codec {codec}, {} calls open per connection, frames of {} bytes\n",
        server.window, server.frame_max
    );
    let widest = server.methods.iter().map(|it| it.name.len()).max();
    let width = widest.unwrap_or(0).max("method".len());
    let _ = write!(text, "{:width$}  number    ", "method");
    for (name, _) in counts_of(&MethodStats::default()) {
        let _ = write!(text, " {name:>10}");
    }
    text.push_str("    mean us  signature\n");
    for method in &server.methods {
        let stats = method.stats;
        let ended = stats.succeeded + stats.failed + stats.cancelled;
        let mean = stats.time.as_micros() / u128::from(ended.max(1));
        let _ = write!(text, "{:width$}  {:#010x}", method.name, method.id);
        for (_, count) in counts_of(&stats) {
            let _ = write!(text, " {count:>10}");
        }
        let _ = write!(text, " {mean:>10}");
        let _ = write!(text, "  {}", method.signature);
        for (is_set, word) in [(method.idempotent, "idempotent"), (method.to_end, "to_end")] {
            if is_set {
                let _ = write!(text, "  {word}");
            }
        }
        text.push('\n');
    }
    text
}

fn json_of_health(health: &ServerHealth) -> String {
    format!("{{{}}}", json_of_numbers(&numbers_of(health)))
}

fn json_of(server: &ServerDescription) -> String {
    let methods = server.methods.iter().map(|method| {
        format!(
            "{{\"name\":{},\"id\":{},\"signature\":{},\"idempotent\":{},\"to_end\":{},{},\"time_us\":{}}}",
            quoted(&method.name),
            method.id,
            quoted(&method.signature),
            method.idempotent,
            method.to_end,
            json_of_numbers(&counts_of(&method.stats)),
            method.stats.time.as_micros(),
        )
    });
    format!(
        "{{\"codec\":{},\"window\":{},\"frame_max\":{},\"health\":{},\"methods\":[{}]}}",
        quoted(&server.codec),
        server.window,
        server.frame_max,
        json_of_health(&server.health),
        methods.collect::<Vec<_>>().join(",")
    )
}

/// A string of JSON: names are the server's, and may be anything.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            it if it.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(it));
            }
            it => quoted.push(it),
        }
    }
    quoted.push('"');
    quoted
}

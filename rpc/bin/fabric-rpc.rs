//! Asks a server how it is, or what it serves: `fabric-rpc ADDRESS check|describe [OPTION..]`.
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

use tokio_fabric_rpc::{
    AuthKey, Channel, ChannelBuilder, MethodStats, ServerDescription, ServerHealth,
};

const USAGE: &str = "fabric-rpc ADDRESS check|describe [OPTION..]

  check                 how the server is; the exit code is 0 if it serves
  describe              its methods with their numbers, its limits, and what has become of calls
  --json                for programs
  --auth-key FILE       the file's bytes are the authorization key
  --auth-key-name NAME  the name by which the server finds the key
  --ca FILE             use TLS; the server's certificate is of one of these authorities (PEM)
  --server-name NAME    the name in the server's certificate, if it is not the address
  --cert FILE           this side's certificates (PEM), if the server asks for some
  --key FILE            the key of the first of them (PEM)";

/// How long a server that is there may take.
const WITHIN: Duration = Duration::from_secs(5);

/// What went wrong, in words.
type Result<T> = std::result::Result<T, String>;

/// What the arguments say.
#[derive(Default)]
struct Options {
    words: Vec<String>,
    is_json: bool,
    auth_key: Option<String>,
    auth_key_name: Option<String>,
    ca: Option<String>,
    server_name: Option<String>,
    cert: Option<String>,
    key: Option<String>,
}

impl Options {
    /// `None`: they are not as the usage says.
    fn parse(arguments: impl Iterator<Item = String>) -> Option<Options> {
        let (mut options, mut arguments) = (Options::default(), arguments);
        while let Some(argument) = arguments.next() {
            let value = match argument.as_str() {
                "--json" => {
                    options.is_json = true;
                    continue;
                }
                "--auth-key" => &mut options.auth_key,
                "--auth-key-name" => &mut options.auth_key_name,
                "--ca" => &mut options.ca,
                "--server-name" => &mut options.server_name,
                "--cert" => &mut options.cert,
                "--key" => &mut options.key,
                flag if flag.starts_with('-') => return None,
                _ => {
                    options.words.push(argument);
                    continue;
                }
            };
            *value = Some(arguments.next()?);
        }
        let needs = |it: &Option<String>, other: &Option<String>| it.is_none() || other.is_some();
        let is_whole = needs(&options.auth_key_name, &options.auth_key)
            && needs(&options.server_name, &options.ca)
            && needs(&options.cert, &options.ca)
            && options.cert.is_some() == options.key.is_some();
        is_whole.then_some(options)
    }

    /// Returns what connects as they say.
    fn builder(&self) -> Result<ChannelBuilder> {
        let mut builder = Channel::builder().deadline(WITHIN).connect_timeout(WITHIN);
        if let Some(file) = &self.auth_key {
            let bytes = std::fs::read(file).map_err(|error| format!("{file}: {error}"))?;
            let key = AuthKey::new(bytes);
            builder = match &self.auth_key_name {
                Some(name) => builder.named_auth_key(name.as_str(), key),
                None => builder.auth_key(key),
            };
        }
        match &self.ca {
            Some(ca) => with_tls(builder, self, ca),
            None => Ok(builder),
        }
    }
}

#[cfg(not(feature = "tls"))]
fn with_tls(_: ChannelBuilder, _: &Options, _: &str) -> Result<ChannelBuilder> {
    Err("this build is without the feature `tls`".to_owned())
}

#[cfg(feature = "tls")]
fn with_tls(builder: ChannelBuilder, options: &Options, ca: &str) -> Result<ChannelBuilder> {
    use std::sync::Arc;

    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use tokio_fabric::tls::TlsConfig;
    use tokio_fabric::{Fabric, Hints};

    fn of<E: std::fmt::Display>(file: &str) -> impl Fn(E) -> String {
        move |error| format!("{file}: {error}")
    }
    let certificates = |file: &str| -> Result<Vec<CertificateDer<'static>>> {
        let all = CertificateDer::pem_file_iter(file).map_err(of(file))?;
        all.collect::<std::result::Result<_, _>>().map_err(of(file))
    };
    let mut roots = rustls::RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(of(ca))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions();
    let config = config.map_err(of("TLS"))?.with_root_certificates(roots);
    let config = match (&options.cert, &options.key) {
        (Some(cert), Some(key)) => {
            let secret = PrivateKeyDer::from_pem_file(key).map_err(of(key))?;
            let config = config.with_client_auth_cert(certificates(cert)?, secret);
            config.map_err(of(cert))?
        }
        _ => config.with_no_client_auth(),
    };
    let mut tls = TlsConfig::new().client(Arc::new(config));
    if let Some(name) = &options.server_name {
        tls = tls.server_name(ServerName::try_from(name.clone()).map_err(of(name))?);
    }
    let fabric = Fabric::open(Hints::new().tls(tls)).map_err(of("TLS"))?;
    Ok(builder.fabric(&fabric))
}

fn main() -> ExitCode {
    let Some(options) = Options::parse(std::env::args().skip(1)) else {
        return usage();
    };
    let is_check = match &options.words[..] {
        [_, word] if word == "check" => true,
        [_, word] if word == "describe" => false,
        _ => return usage(),
    };
    match ask(&options, is_check) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{}: {why}", options.words[0]);
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn ask(options: &Options, is_check: bool) -> Result<String> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build();
    let runtime = runtime.expect("a runtime needs a few descriptors");
    runtime.block_on(async {
        let connecting = options.builder()?.connect(options.words[0].as_str());
        let channel = connecting.await.map_err(|status| status.to_string())?;
        let is_json = options.is_json;
        let text = if is_check {
            let health = channel.check().await;
            let health = health.map_err(|status| status.to_string())?;
            match is_json {
                true => json_of_health(&health) + "\n",
                false => text_of_health(&health),
            }
        } else {
            let description = channel.describe().await;
            let description = description.map_err(|status| status.to_string())?;
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

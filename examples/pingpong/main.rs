//! libfabric's `fi_pingpong(1)`, with its options and its side channel, so that either end can be
//! the C program:
//!
//! ```text
//! cargo run --release --example pingpong                    # the server
//! cargo run --release --example pingpong -- 127.0.0.1       # the client
//! fi_pingpong -p tcp -e msg 127.0.0.1                       # or a client in C
//! cargo run --release --example pingpong -- -e dgram         # the same over UDP, beside
//! fi_pingpong -p udp -e dgram 127.0.0.1
//! ```
//!
//! With `-e rdm`, libfabric 1.16 and 1.17 need `-p net` in the C program, and later versions `-p
//! tcp`: the `tcp` of these earlier versions speaks another protocol.

mod link;
mod run;
mod side_channel;
mod table;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use tokio_fabric::{
    Endpoint, EndpointType, Event, EventQueue, Fabric, Hints, PassiveEndpoint, RdmEndpoint,
    info::AddressFormat,
};
use tracing::{debug, level_filters::LevelFilter};

use link::Link;
use run::{Role, Test};
use side_channel::SideChannel;

/// The sizes tested when `-S` is absent, in bytes.
const DEFAULT_SIZES: [usize; 6] = [64, 256, 1024, 4096, 65_536, 1_048_576];
/// The largest power of two among the sizes of `-S all`; the largest size is 1.5 times this.
const ALL_SIZES_MAX_POWER: u32 = 22;

/// Ping-pong between two processes, with fi_pingpong(1)'s options: without an address this is the
/// server, with one the client.
#[derive(Debug, Parser)]
#[command(name = "pingpong", disable_version_flag = true)]
struct Options {
    /// Control port of this side [server: 47592, client: the system's choice]
    #[arg(short = 'B', value_name = "SRC_PORT")]
    source_port: Option<u16>,
    /// Control port of the server, for the client
    #[arg(short = 'P', value_name = "DEST_PORT", default_value_t = side_channel::PORT)]
    dest_port: u16,
    /// Domain: the name of a network interface
    #[arg(short, value_name = "DOMAIN")]
    domain: Option<String>,
    /// Provider, as libfabric names it: net is what tcp was called for rdm before 1.18 [default:
    /// tcp, with -e dgram udp]
    #[arg(short, value_name = "PROVIDER")]
    provider: Option<String>,
    /// Endpoint type
    #[arg(short, value_name = "ENDPOINT", value_enum, default_value = "msg")]
    endpoint: EndpointKind,
    /// Round trips for each size
    #[arg(short = 'I', value_name = "ITER", default_value = "10")]
    iterations: NonZeroU32,
    /// Message size in bytes, or `all` [default: 64, 256, 1024, 4096, 65536, 1048576]
    #[arg(short = 'S', value_name = "MSG_SIZE")]
    size: Option<Size>,
    /// Check the data at the receiver
    #[arg(short)]
    check: bool,
    /// Kind of messages; tagged ones need rdm endpoints
    #[arg(short, value_name = "MODE", value_enum, default_value = "msg")]
    mode: TransmitMode,
    /// Log every step on stderr
    #[arg(short)]
    verbose: bool,
    /// Control channel over IPv6
    #[arg(short = '6')]
    ipv6: bool,
    /// What moves the bytes, epoll or io-uring [default: epoll]
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// The server's address; absent, this is the server
    #[arg(value_name = "SERVER")]
    server: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum EndpointKind {
    Msg,
    Rdm,
    Dgram,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum TransmitMode {
    Msg,
    Tagged,
}

#[derive(Clone, Copy, Debug)]
enum Size {
    All,
    One(usize),
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Size::All);
        }
        // The C program holds sizes in an int.
        let bytes = text
            .parse()
            .ok()
            .filter(|&bytes: &u32| i32::try_from(bytes).is_ok());
        bytes
            .map(|bytes| Size::One(bytes as usize))
            .ok_or("neither `all` nor a number of bytes".into())
    }
}

impl Options {
    /// Returns the sizes that the link can transfer.
    fn sizes(&self, link: &Link) -> Vec<usize> {
        let mut sizes = match self.size {
            None => DEFAULT_SIZES.to_vec(),
            Some(Size::One(size)) => vec![size],
            Some(Size::All) => {
                let rest =
                    (1..=ALL_SIZES_MAX_POWER).flat_map(|power| [1 << power, 3 << (power - 1)]);
                [0, 1].into_iter().chain(rest).collect()
            }
        };
        sizes.retain(|size| *size <= link.message_max());
        sizes
    }

    fn fabric(&self) -> Result<Fabric> {
        Ok(Fabric::open(self.hints()?)?)
    }

    /// Opens an endpoint at this address. All addresses of a domain have its address format.
    fn rdm_endpoint(&self, at: SocketAddr) -> Result<RdmEndpoint> {
        let format = match at {
            SocketAddr::V4(_) => AddressFormat::SockaddrIn,
            SocketAddr::V6(_) => AddressFormat::SockaddrIn6,
        };
        let fabric = Fabric::open(self.hints()?.address_format(format))?;
        let endpoint = fabric.domain().open()?.rdm_endpoint();
        Ok(endpoint.listen_at(at).open()?)
    }

    fn hints(&self) -> Result<Hints> {
        let (kind, provider) = match (self.endpoint, self.mode) {
            (EndpointKind::Msg, TransmitMode::Msg) => (EndpointType::Msg, "tcp"),
            (EndpointKind::Rdm, _) => (EndpointType::Rdm, "tcp"),
            (EndpointKind::Dgram, TransmitMode::Msg) => (EndpointType::Dgram, "udp"),
            (_, TransmitMode::Tagged) => bail!("tagged messages (-m tagged) need rdm endpoints"),
        };
        let provider = match self.provider.as_deref() {
            Some("net") => "tcp",
            Some(name) => name,
            None => provider,
        };
        let mut hints = Hints::new().endpoint(kind).provider(provider);
        if let Some(domain) = &self.domain {
            hints = hints.domain(|attr| attr.name(domain));
        }
        if let Some(backend) = &self.backend {
            hints = hints.backend(backend);
        }
        Ok(hints)
    }
}

fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) if !error.use_stderr() => error.exit(), // --help
        Err(error) => {
            // Only the error, without the usage advice that follows it.
            let text = error.to_string();
            let said = text.split("\n\n").next().unwrap_or(&text);
            return fail(said.strip_prefix("error: ").unwrap_or(said));
        }
    };
    let level = if options.verbose {
        LevelFilter::DEBUG
    } else {
        LevelFilter::OFF
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .init();
    match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&format!("{error:#}")),
    }
}

fn fail(reason: &str) -> ExitCode {
    let words: Vec<&str> = reason.split_whitespace().collect(); // one line, whatever it was
    eprintln!("pingpong: {}", words.join(" "));
    ExitCode::FAILURE
}

/// Uses one thread for the application and for progress, which gives small messages the lowest
/// latency. The task is spawned, since the runtime polls for I/O before it polls a woken `main`,
/// but not before it polls a woken task; this saves a system call for each message.
#[tokio::main(flavor = "current_thread")]
async fn run(options: Options) -> Result<()> {
    tokio::spawn(async move {
        let fabric = options.fabric()?;
        match (&options.server, options.endpoint) {
            (None, EndpointKind::Dgram) => serve_datagrams(&options, &fabric).await,
            (Some(server), EndpointKind::Dgram) => call_datagrams(&options, &fabric, server).await,
            (None, _) => serve(&options, &fabric).await,
            (Some(server), _) => call(&options, &fabric, server).await,
        }
    })
    .await?
}

async fn serve(options: &Options, fabric: &Fabric) -> Result<()> {
    let port = options.source_port.unwrap_or(side_channel::PORT);
    let mut side = SideChannel::accept((any_address(options.ipv6).ip(), port).into()).await?;
    // The address at which the client has found this server is one that the client can reach.
    let here = SocketAddr::new(side.local_addr()?.ip().to_canonical(), 0);
    if options.endpoint == EndpointKind::Rdm {
        let endpoint = options.rdm_endpoint(here)?;
        side.send_name(endpoint.local_addr()).await?;
        let client = side.learn_name().await?;
        let link = Link::to_peer(endpoint, client, options.mode)?;
        return Test::new(link, Role::Server, options)?.run(side).await;
    }
    let events = fabric.event_queue().open()?;
    let listener = fabric.passive_endpoint(&events).listen_at(here)?;
    side.send_name(listener.local_addr()).await?;
    let endpoint = fabric.domain().open()?.endpoint().open()?;
    let link = Link::Connection(endpoint.clone());
    let test = Test::new(link, Role::Server, options)?;
    tokio::select! {
        accepted = accept(&listener, &events, &endpoint) => accepted?,
        gone = side.closed() => return Err(gone).context("before the client has connected"),
    }
    test.run(side).await
}

async fn accept(
    listener: &PassiveEndpoint,
    events: &EventQueue,
    endpoint: &Endpoint,
) -> Result<()> {
    loop {
        match events.next().await {
            Some(Event::ConnRequest(request)) => {
                debug!(peer = %request.peer_addr(), "connection request");
                endpoint.accept(request).await?;
                return Ok(());
            }
            Some(Event::Error(error)) => return Err(error.into()),
            Some(_) => {}
            None => bail!(
                "no connection can come to {} any more",
                listener.local_addr()
            ),
        }
    }
}

async fn call(options: &Options, fabric: &Fabric, server: &str) -> Result<()> {
    let from = any_address(options.ipv6);
    let from = SocketAddr::new(from.ip(), options.source_port.unwrap_or(0));
    let mut side = SideChannel::connect(server, options.dest_port, from).await?;
    let name = side.learn_name().await?;
    if options.endpoint == EndpointKind::Rdm {
        let endpoint = options.rdm_endpoint(link::local_toward(name)?)?;
        side.send_name(endpoint.local_addr()).await?;
        let link = Link::to_peer(endpoint, name, options.mode)?;
        // The first message connects.
        return Test::new(link, Role::Client, options)?.run(side).await;
    }
    let endpoint = fabric.domain().open()?.endpoint().open()?;
    let test = Test::new(Link::Connection(endpoint.clone()), Role::Client, options)?;
    debug!(%name, "connect");
    endpoint.connect(name).await?;
    test.run(side).await
}

/// Serves datagrams: both ends send their address, the server first, and nothing is connected.
async fn serve_datagrams(options: &Options, fabric: &Fabric) -> Result<()> {
    let port = options.source_port.unwrap_or(side_channel::PORT);
    let mut side = SideChannel::accept((any_address(options.ipv6).ip(), port).into()).await?;
    let (mut test, here) = datagram_test(options, fabric, Role::Server, &side)?;
    side.send_name(here).await?;
    let name = side.learn_name().await?;
    test.meet(name)?;
    test.run(side).await
}

async fn call_datagrams(options: &Options, fabric: &Fabric, server: &str) -> Result<()> {
    let from = any_address(options.ipv6);
    let from = SocketAddr::new(from.ip(), options.source_port.unwrap_or(0));
    let mut side = SideChannel::connect(server, options.dest_port, from).await?;
    let (mut test, here) = datagram_test(options, fabric, Role::Client, &side)?;
    let name = side.learn_name().await?;
    side.send_name(here).await?;
    test.meet(name)?;
    test.run(side).await
}

/// Returns the test, and this side's address for the other end's datagrams: the side channel's
/// local IP address, and the port of the datagrams.
fn datagram_test(
    options: &Options,
    fabric: &Fabric,
    role: Role,
    side: &SideChannel,
) -> Result<(Test, SocketAddr)> {
    let here = side.local_addr()?.ip().to_canonical();
    let any = any_address(here.is_ipv6());
    let link = Link::datagrams(&fabric.domain().open()?, any)?;
    let port = link.port().context("datagrams have a port")?;
    Ok((Test::new(link, role, options)?, (here, port).into()))
}

fn any_address(ipv6: bool) -> SocketAddr {
    if ipv6 {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    }
}

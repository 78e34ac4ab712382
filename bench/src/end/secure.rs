//! TLS: one certificate, which both ends have; and tokio-rustls over Tokio's `TcpStream`.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::Result;
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_fabric::tls::TlsConfig;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use super::connection_stats::StatsBaseline;
use super::idle::Memory;
use super::streams::{call_over, serve_one};
use super::{say, server_of};
use crate::job::{EndConfig, Job};
use crate::link;

/// An Ed25519 key in PKCS #8, which proves nothing: the ends are two processes of a bench.
const KEY: [u8; 48] = {
    let mut key = [7; 48];
    let head = [48, 46, 2, 1, 0, 48, 5, 6, 3, 43, 101, 112, 4, 34, 4, 32];
    let mut at = 0;
    while at < head.len() {
        key[at] = head[at];
        at += 1;
    }
    key
};

fn configs() -> Result<(Arc<ClientConfig>, Arc<ServerConfig>)> {
    let key = PrivatePkcs8KeyDer::from(KEY.to_vec());
    let pair = KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ED25519)?;
    let hosts = [Ipv4Addr::LOCALHOST, link::SERVER].map(|host| host.to_string());
    let certificate = CertificateParams::new(hosts)?.self_signed(&pair)?;
    let certificate = certificate.der().clone();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone())?;
    let client = ClientConfig::builder().with_root_certificates(roots);
    let server = ServerConfig::builder().with_no_client_auth();
    let server = server.with_single_cert(vec![certificate], key.into())?;
    Ok((Arc::new(client.with_no_client_auth()), Arc::new(server)))
}

/// How this library's ends are opened.
pub fn config() -> Result<TlsConfig> {
    let (client, server) = configs()?;
    Ok(TlsConfig::new().client(client).server(server))
}

/// Of tokio-rustls: accepts connections, and says of each when it is there.
pub struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl TlsListener {
    /// Listens, and says where.
    pub async fn open(job: &Job) -> Result<TlsListener> {
        let listener = TcpListener::bind(job.any_port()).await?;
        say("PORT", listener.local_addr()?.port());
        Ok(TlsListener {
            listener,
            acceptor: TlsAcceptor::from(configs()?.1),
        })
    }

    pub async fn accept(&self) -> Result<server::TlsStream<TcpStream>> {
        let (stream, _) = self.listener.accept().await?;
        stream.set_nodelay(true)?;
        let mut stream = self.acceptor.accept(stream).await?;
        stream.write_all(&[0]).await?;
        stream.flush().await?;
        Ok(stream)
    }
}

/// The other end of a [`TlsListener`]'s connection.
pub async fn connect(
    connector: &TlsConnector,
    to: SocketAddr,
) -> Result<client::TlsStream<TcpStream>> {
    let stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    let mut stream = connector.connect(to.ip().into(), stream).await?;
    stream.read_exact(&mut [0]).await?;
    Ok(stream)
}

pub fn connector() -> Result<TlsConnector> {
    Ok(TlsConnector::from(configs()?.0))
}

pub async fn serve(config: EndConfig) -> Result<()> {
    let listener = TlsListener::open(&config.job).await?;
    loop {
        let stream = listener.accept().await?;
        let job = config.job.clone();
        tokio::spawn(async move { serve_one(stream, job).await.ok() });
    }
}

pub async fn call(config: EndConfig) -> Result<()> {
    let connector = connector()?;
    let before = (Memory::now(&config), StatsBaseline::now(&config)?);
    let mut streams = Vec::new();
    for _ in 0..config.job.connections {
        streams.push(connect(&connector, server_of(&config)).await?);
    }
    call_over(config, streams, false, before).await
}

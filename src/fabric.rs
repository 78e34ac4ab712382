//! A fabric, from which domains, event queues and listeners are opened (`fi_fabric(3)`).

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use crate::domain::{DomainBuilder, check_opened, name_opened};
use crate::endpoint::PassiveEndpointBuilder;
use crate::eq::{EventQueue, EventQueueBuilder};
use crate::error::{Error, ErrorKind, Result};
use crate::info::{self, Hints, Info, Interface};
use crate::stats::FabricStats;
use crate::sync::Dependents;
use crate::transport::{self, Backend, PortRange, TransportOptions};

/// Everything on this machine that matches the hints, best first (`fi_getinfo(3)`).
///
/// The system's resolver looks up names in the hints, which may block for any length of time;
/// numeric addresses never block.
///
/// ```
/// use tokio_fabric::{EndpointType, Hints, discover};
///
/// # fn main() -> tokio_fabric::Result<()> {
/// let infos = discover(&Hints::new().endpoint(EndpointType::Rdm))?;
/// assert!(infos.iter().all(|info| info.endpoint.endpoint_type == EndpointType::Rdm));
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`ErrorKind::NoMatch`] names the hint that is not met, and the available values.
#[doc(alias = "fi_getinfo")]
pub fn discover(hints: &Hints) -> Result<Vec<Info>> {
    let only = check_opened(hints)?;
    let mut infos = resolve(hints, &offered_interfaces(hints)?)?;
    name_opened(&mut infos, only.as_ref())?;
    Ok(infos)
}

fn resolve(hints: &Hints, interfaces: &[Interface]) -> Result<Vec<Info>> {
    match hints.unresolved()? {
        None => info::resolve(hints, interfaces),
        Some((node, service)) => {
            let addresses = look_up(node, service)?;
            let mut answer = Err(Error::new(ErrorKind::NoMatch, "the name has no address"));
            for address in addresses {
                answer = info::resolve(&hints.clone().resolved_to(address), interfaces);
                if answer.is_ok() {
                    break;
                }
            }
            answer
        }
    }
}

/// Asks the system's resolver for the addresses of a node.
fn look_up(node: Option<&str>, service: Option<&str>) -> Result<Vec<SocketAddr>> {
    let port = match service.map(str::parse::<u16>) {
        None => 0,
        Some(Ok(port)) => port,
        Some(Err(_)) => {
            let service = service.unwrap_or_default();
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("service {service:?} is not a port number"),
            ));
        }
    };
    info::look_up(node.unwrap_or("localhost"), port)
}

fn offered_interfaces(hints: &Hints) -> Result<Vec<Interface>> {
    let only = std::env::var("FI_TCP_IFACE")
        .ok()
        .filter(|name| !name.is_empty());
    let mut offered: Vec<Interface> = transport::interfaces()?
        .into_iter()
        .filter(|found| found.running)
        .map(|found| Interface {
            name: found.name,
            address: found.ip,
            prefix_len: found.prefix,
            scope_id: found.index.filter(|_| is_link_local(found.ip)).unwrap_or(0),
            speed_mbps: found.speed.map(|bits| bits / 1_000_000),
            loopback: found.loopback,
            mtu: found.mtu,
        })
        .collect();
    // A builder call takes precedence over the variable.
    if let (Some(only), None) = (only, &hints.interface) {
        let all: BTreeSet<String> = offered.iter().map(|offer| offer.name.clone()).collect();
        let all: Vec<String> = all.into_iter().collect();
        offered.retain(|offer| offer.name == only);
        if offered.is_empty() {
            return Err(Error::new(
                ErrorKind::NoMatch,
                format!(
                    "FI_TCP_IFACE asks for interface {only}, there are {}",
                    all.join(", ")
                ),
            ));
        }
    }
    Ok(offered)
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// An opened fabric (`struct fid_fabric`).
///
/// Clones are handles to the same fabric; every object opened from it keeps it alive.
///
/// ```
/// use tokio_fabric::{Backend, Fabric, Hints};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let fabric = Fabric::open(Hints::new())?; // The best of what fits the hints.
/// assert_eq!(fabric.domain().open()?.backend(), Backend::Epoll);
/// # Ok(()) }
/// ```
#[doc(alias = "fid_fabric")]
#[derive(Clone)]
pub struct Fabric {
    inner: Arc<Inner>,
}

struct Inner {
    infos: Vec<Info>,
    /// True if the hints chose the local address. Connections are then made from the Info's source.
    source_chosen: bool,
    transport: TransportOptions,
    dependents: Dependents,
}

impl Fabric {
    /// Opens the fabric that matches the hints best (`fi_getinfo`, then `fi_fabric`).
    ///
    /// # Errors
    /// As for [`discover`]; [`ErrorKind::InvalidArgument`] for the name of a backend that does not
    /// exist.
    #[doc(alias = "fi_fabric")]
    pub fn open(hints: Hints) -> Result<Fabric> {
        let infos = discover(&hints)?;
        let backend = hints
            .backend
            .as_deref()
            .map(Backend::from_str)
            .transpose()?;
        let ports = PortRange::from_environment()?;
        let transport = TransportOptions {
            backend,
            ports,
            #[cfg(feature = "tls")]
            tls: hints.tls.clone(),
            local_path: hints.chosen_local_path(),
            ..TransportOptions::default()
        };
        Ok(Fabric::with_transport(&hints, infos, transport))
    }

    pub(crate) fn with_transport(
        hints: &Hints,
        mut infos: Vec<Info>,
        transport: TransportOptions,
    ) -> Fabric {
        if transport.backend == Some(Backend::Loopback) {
            infos.iter_mut().for_each(Info::reaches_this_process_only);
        }
        let only = std::env::var_os("FI_TCP_IFACE").is_some_and(|name| !name.is_empty());
        Fabric {
            inner: Arc::new(Inner {
                source_chosen: only || hints.choose_source(),
                infos,
                transport,
                dependents: Dependents::new(),
            }),
        }
    }

    /// The ways to communicate that match the hints, best first; never empty.
    pub fn infos(&self) -> &[Info] {
        &self.inner.infos
    }

    fn first(&self) -> &Info {
        self.inner
            .infos
            .first()
            .expect("discovery answers with at least one or an error")
    }

    /// Starts building a domain (`fi_domain`, `fi_domain(3)`).
    #[doc(alias = "fi_domain")]
    pub fn domain(&self) -> DomainBuilder {
        DomainBuilder::new(
            self.first().clone(),
            self.inner.source_chosen,
            self.inner.transport.clone(),
            Box::new(self.clone()),
            self.inner.dependents.depend("domain"),
        )
    }

    /// Statistics: open objects.
    pub fn stats(&self) -> FabricStats {
        let open = |name| self.inner.dependents.count(name);
        FabricStats {
            domains: open("domain"),
            passive_endpoints: open("passive endpoint"),
        }
    }

    /// Starts building an event queue (`fi_eq_open`, `fi_eq(3)`).
    #[doc(alias = "fi_eq_open")]
    pub fn event_queue(&self) -> EventQueueBuilder {
        EventQueue::builder(Some(Box::new(self.clone())))
    }

    /// Starts building a listener (`fi_passive_ep`, `fi_endpoint(3)`), which reports its connection
    /// requests to `events`.
    #[doc(alias("fi_passive_ep", "fi_pep_bind"))]
    pub fn passive_endpoint(&self, events: &EventQueue) -> PassiveEndpointBuilder {
        PassiveEndpointBuilder::new(
            self.first().clone(),
            self.inner.transport.clone(),
            events.clone(),
            Box::new(self.clone()),
            self.inner.dependents.depend("passive endpoint"),
        )
    }

    /// Closes the fabric (`fi_close`). Remaining handles cannot open anything.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while domains or passive endpoints are open; the message names them. A
    /// domain is open until it is closed, or until its last handle and the handles of all objects
    /// that were opened in it are dropped. [`closed`](Self::closed) waits for all of them.
    pub fn close(&self) -> Result<()> {
        self.inner.dependents.close().map_err(|names| {
            Error::new(
                ErrorKind::Busy,
                format!("still open in the fabric: {names}"),
            )
        })
    }
}

impl Fabric {
    /// Waits until all domains and passive endpoints of the fabric are closed or dropped, then
    /// closes it.
    ///
    /// # Cancel safety
    /// If the future is dropped before it completes, the fabric stays open.
    pub async fn closed(&self) {
        let released = self.inner.dependents.released();
        loop {
            let notified = released.notified();
            if self.inner.dependents.close().is_ok() {
                return;
            }
            notified.await;
        }
    }
}

debug_fields!(Fabric, self =>
    name: self.first().fabric.name, backend: self.inner.transport.backend
);

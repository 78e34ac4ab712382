//! The server: a listener, and one session per client in a domain of its own, so that whatever a
//! client does or however it ends concerns no other.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_fabric::{
    Domain, Endpoint, Event, EventQueue, Fabric, Hints, PassiveEndpoint, RemoteRegion,
    domain::DomainBind, eq::ConnRequest,
};

use crate::frame::{Frame, Inbox, Kind, Refusal};
use crate::intake::{Digested, Intake};

/// Clients at the same time. Each may hold up to 32 MiB of registered memory and one thread that
/// digests; a client beyond them is rejected, and may try again.
const CLIENTS_MAX: usize = 64;
/// A client that says nothing for so long is let go.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// A server that listens.
pub struct Server {
    fabric: Fabric,
    events: EventQueue,
    listener: PassiveEndpoint,
    /// Log clients on standard error.
    logs: bool,
}

impl Server {
    pub fn listen(hints: Hints, address: SocketAddr, logs: bool) -> Result<Server> {
        let fabric = Fabric::open(hints)?;
        // Two places per client, and some for requests.
        let events = fabric.event_queue().size(4 * CLIENTS_MAX).open()?;
        let listener = fabric
            .passive_endpoint(&events)
            .listen_at(address)
            .with_context(|| format!("cannot listen at {address}"))?;
        Ok(Server {
            fabric,
            events,
            listener,
            logs,
        })
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Serves clients until the future is dropped.
    pub async fn run(self) -> Result<()> {
        let places = Arc::new(Semaphore::new(CLIENTS_MAX));
        while let Some(event) = self.events.next().await {
            // A session notices the end of its connection by its operations.
            let Event::ConnRequest(request) = event else {
                continue;
            };
            match Arc::clone(&places).try_acquire_owned() {
                Ok(place) => self.start(request, place),
                // The client may have gone by now; that is its own business.
                Err(_) => drop(
                    request
                        .reject()
                        .data("the server is full, come again")
                        .send(),
                ),
            }
        }
        bail!("the server's event queue has closed")
    }

    fn start(&self, request: ConnRequest, place: OwnedSemaphorePermit) {
        let (fabric, events, logs) = (self.fabric.clone(), self.events.clone(), self.logs);
        tokio::spawn(async move {
            let _place = place;
            let client = request.peer_addr();
            let ended = match Session::open(&fabric, &events, request).await {
                Ok(session) => session.run(client, logs).await,
                Err(error) => Err(error),
            };
            if let (Err(error), true) = (ended, logs) {
                eprintln!("{client}: {error:#}");
            }
        });
    }
}

/// One client.
struct Session {
    domain: Domain,
    endpoint: Endpoint,
    inbox: Inbox,
    /// The transfer under way.
    intake: Option<Intake>,
    bytes: u64,
}

/// What a session acts upon.
enum Step {
    Request(Frame),
    NoRequest,
    Digested(Digested),
    End,
}

impl Session {
    async fn open(fabric: &Fabric, events: &EventQueue, request: ConnRequest) -> Result<Session> {
        let domain = fabric.domain().open()?;
        domain.bind(events, DomainBind::REG_MR)?;
        let endpoint = domain.endpoint().open()?;
        // Receives first, so that there is room for the client's first word.
        let inbox = Inbox::open(&endpoint);
        endpoint.accept(request).await?;
        Ok(Session {
            domain,
            endpoint,
            inbox,
            intake: None,
            bytes: 0,
        })
    }

    async fn run(mut self, client: SocketAddr, logs: bool) -> Result<()> {
        loop {
            let step = tokio::time::timeout(SILENCE_MAX, self.step());
            match step.await.context("the client has fallen silent")?? {
                Step::End => return Ok(()),
                Step::NoRequest => self.answer(Frame::refused(0, Refusal::BadFrame))?,
                Step::Digested(digested) => self.digested(digested)?,
                Step::Request(frame) if frame.kind == Kind::Finish => {
                    let bytes = self.bytes;
                    let answer = self.finish(frame).await?;
                    let verified = answer.kind == Kind::Done && answer.body == frame.body;
                    if logs {
                        let how = if verified { "verified" } else { "NOT verified" };
                        eprintln!("{client}: {bytes} bytes {how}");
                    }
                    self.answer(answer)?;
                }
                Step::Request(frame) => {
                    if let Some(answer) = self.request(frame).await? {
                        self.answer(answer)?;
                    }
                }
            }
            if let Some(intake) = &mut self.intake {
                intake.post_reads(&self.endpoint)?;
            }
        }
    }

    /// Waits for something to do.
    async fn step(&mut self) -> Result<Step> {
        let message = match &mut self.intake {
            None => self.inbox.next().await,
            Some(intake) => tokio::select! {
                message = self.inbox.next() => message,
                digested = intake.next() => return Ok(Step::Digested(digested?)),
            },
        };
        match message {
            Some(Ok(Ok(frame))) => Ok(Step::Request(frame)),
            Some(Ok(Err(_))) => Ok(Step::NoRequest),
            None if self.intake.is_none() => Ok(Step::End),
            None => bail!("the client has gone in mid-transfer"),
            Some(Err(error)) if error.is_connection_lost() && self.intake.is_none() => {
                Ok(Step::End)
            }
            Some(Err(error)) => Err(error).context("the client has gone in mid-transfer"),
        }
    }

    /// Carries a request out as far as it goes now; the answer, if it is known already.
    async fn request(&mut self, frame: Frame) -> Result<Option<Frame>> {
        let id = frame.id;
        let region = RemoteRegion::from_bytes(&frame.body)?;
        let refusal = match frame.kind {
            Kind::Ping => return Ok(Some(Frame::new(Kind::Done, id))),
            Kind::Done | Kind::Refused | Kind::Finish => Some(Refusal::NotARequest),
            Kind::Pull => self.intake().pull(region, id).await?,
            Kind::Landed => self.intake().landed(region, frame.value, id),
            Kind::Offer => match self.intake().offer().await? {
                None => Some(Refusal::TooMany),
                Some(offered) => {
                    let body = offered.to_bytes();
                    return Ok(Some(Frame {
                        body,
                        ..Frame::new(Kind::Done, id)
                    }));
                }
            },
        };
        Ok(refusal.map(|why| Frame::refused(id, why)))
    }

    fn intake(&mut self) -> &mut Intake {
        self.intake
            .get_or_insert_with(|| Intake::start(&self.domain))
    }

    fn digested(&mut self, digested: Digested) -> Result<()> {
        self.bytes += digested.len as u64;
        if let Some(id) = digested.request {
            self.answer(Frame::new(Kind::Done, id))?;
        }
        self.intake().recycle(digested);
        Ok(())
    }

    async fn finish(&mut self, frame: Frame) -> Result<Frame> {
        let idle = self.intake.as_ref().is_none_or(Intake::is_idle);
        if !idle || frame.value != self.bytes {
            return Ok(Frame::refused(frame.id, Refusal::NotAllThere));
        }
        let digest = match self.intake.take() {
            Some(intake) => intake.finish().await?,
            None => blake3::Hasher::new().finalize(),
        };
        self.bytes = 0;
        Ok(Frame {
            body: *digest.as_bytes(),
            ..Frame::new(Kind::Done, frame.id)
        })
    }

    /// Answers are small and copied. A client that does not read them fills the transmit context in
    /// the end, and is cut off.
    fn answer(&self, frame: Frame) -> Result<()> {
        self.endpoint
            .inject(&frame.encode())
            .context("cannot answer")
    }
}

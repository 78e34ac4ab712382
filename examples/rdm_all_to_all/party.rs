//! All endpoints of this process, and all members that they know.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use futures::future::join_all;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_fabric::{
    Access, Backend, Domain, Driver, EndpointType, Error, ErrorKind, Fabric, Hints, MemoryRegion,
    RdmEndpoint, av::FabricAddr,
};

use crate::board::Board;
use crate::control::{Announced, CONTROL, Control};
use crate::inbox::{self, Inbox};
use crate::message;
use crate::options::Options;
use crate::send_task::SendTask;
use crate::status::Status;

/// At the end, waits for other members as long as something arrives within this time.
const END_LIMIT: Duration = Duration::from_secs(15);

/// The state of this process.
pub struct Party {
    pub options: Options,
    pub board: Board,
    domain: Domain,
    pub locals: Vec<Arc<Local>>,
    members: Mutex<Vec<Arc<Member>>>,
    sending: Mutex<JoinSet<()>>,
    stop: watch::Sender<bool>,
    changed: Notify,
}

pub struct Local {
    pub index: usize,
    pub endpoint: RdmEndpoint,
    pub announced: Announced,
    pub inbox: Inbox,
    /// The memory that peers read.
    _region: MemoryRegion<Vec<u8>>,
}

/// An endpoint of this process or another.
pub struct Member {
    pub index: usize,
    pub peer: FabricAddr,
    pub is_ours: bool,
    now: Mutex<(Announced, Status)>,
}

impl Party {
    /// Opens the endpoints, which then listen and are not connected yet.
    pub async fn open(options: Options) -> Result<Arc<Party>> {
        let hints = Hints::new().endpoint(EndpointType::Rdm);
        let hints = match &options.backend {
            Some(name) => hints.backend(name),
            None => hints,
        };
        // This program fills and checks every byte; another thread serves peers meanwhile.
        let domain = Fabric::open(hints)?
            .domain()
            .driver(Driver::Thread)
            .open()?;
        // One vector for all endpoints, so that a peer has one name in this process.
        let vector = domain.address_vector().open()?;
        let mut locals = Vec::new();
        for index in 0..options.endpoints {
            let address = options.listen_at(index)?;
            let endpoint = domain
                .rdm_endpoint()
                .address_vector(&vector)
                .listen_at(address)
                .transmit_size(options.window() + 1)
                .receive_size(inbox::receives(&options))
                .connect_deadline(Duration::from_secs(options.give_up.into()))
                .open()
                .with_context(|| format!("cannot listen at {address}"))?;
            let incarnation = nanoseconds_of_the_world();
            let mut memory = vec![0; options.size()];
            message::fill(&mut memory, incarnation);
            let region = domain.register(memory).access(Access::REMOTE_READ);
            let region = region.await.map_err(|failed| failed.into_error())?;
            let announced = Announced {
                address: endpoint.local_addr(),
                incarnation,
                region: region.remote().to_bytes(),
            };
            locals.push(Arc::new(Local {
                index: index.into(),
                endpoint,
                announced,
                inbox: Inbox::default(),
                _region: region,
            }));
        }
        Ok(Arc::new(Party {
            options,
            board: Board::default(),
            domain,
            locals,
            members: Mutex::default(),
            sending: Mutex::default(),
            stop: watch::Sender::new(false),
            changed: Notify::new(),
        }))
    }

    /// Receives at all endpoints, and sends between them.
    pub fn start(self: &Arc<Self>) {
        for local in &self.locals {
            for tagged in [false, true] {
                tokio::spawn(inbox::receive(self.clone(), local.clone(), tagged));
            }
            tokio::spawn(inbox::listen(self.clone(), local.clone()));
        }
        let ours = self.locals.iter().map(|local| local.announced);
        self.learn(ours.collect());
    }

    /// Sends the known members to the `--join` addresses, which answer with their own.
    ///
    /// Fails if no address can be reached.
    pub async fn join(&self) -> Result<()> {
        let endpoint = &self.locals[0].endpoint;
        let known = self.known().to_bytes();
        let greetings = self.options.join.iter().map(|seed| {
            let known = known.clone();
            async move {
                let peer = endpoint.resolve(seed).await?;
                let sent = endpoint.send_tagged(known, peer, CONTROL);
                let sent = sent.delivery_complete().await;
                sent.map(drop).map_err(|failed| failed.into_error())
            }
        });
        let mut failures = Vec::new();
        for (seed, greeted) in self.options.join.iter().zip(join_all(greetings).await) {
            if let Err(error) = greeted {
                self.board.note(format!("{seed} cannot be joined: {error}"));
                failures.push(anyhow::Error::from(error).context(format!("cannot join {seed}")));
            }
        }
        match failures.pop() {
            Some(last) if failures.len() + 1 == self.options.join.len() => Err(last),
            _ => Ok(()),
        }
    }

    /// Returns the members known here, as a control message.
    pub fn known(&self) -> Control {
        let members = self.members();
        let announced = members.iter().map(|member| member.now().0);
        Control::Members(announced.collect())
    }

    /// Handles members that a peer announces. All endpoints of this process send to each new
    /// member.
    pub fn learn(self: &Arc<Self>, announced: Vec<Announced>) {
        if self.is_stopping() {
            return;
        }
        for announced in announced {
            let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
            let address = announced.address;
            let found = members.iter().find(|it| it.now().0.address == address);
            let member = match found {
                Some(member) => match member.renew(announced) {
                    true => Arc::clone(member),
                    false => continue,
                },
                // A peer's address that the vector refuses is skipped.
                None => match self.locals[0].endpoint.insert(address) {
                    Err(_) => continue,
                    Ok(peer) => {
                        let is_ours = members.len() < self.locals.len();
                        let status = if is_ours { Status::Living } else { Status::New };
                        let member = Arc::new(Member {
                            index: members.len(),
                            peer,
                            is_ours,
                            now: Mutex::new((announced, status)),
                        });
                        members.push(Arc::clone(&member));
                        member
                    }
                },
            };
            drop(members);
            if !member.is_ours {
                self.board
                    .note(format!("{} is {address}, which has joined", member.index));
            }
            self.send_to(&member);
        }
    }

    fn send_to(self: &Arc<Self>, member: &Arc<Member>) {
        let mut sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        for local in &self.locals {
            if member.is_ours && member.index == local.index {
                continue;
            }
            let task = SendTask {
                party: Arc::clone(self),
                from: Arc::clone(local),
                to: Arc::clone(member),
                count: self.board.pair(local.index, member.index),
                number: 0,
                sent: 0,
            };
            sending.spawn(task.run());
        }
    }

    pub fn members(&self) -> Vec<Arc<Member>> {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.clone()
    }

    /// Records an error of an operation to this member.
    pub fn has_failed(&self, member: &Member, error: &Error) {
        let status = match error.kind() {
            ErrorKind::Unreachable => Status::Gone,
            _ => Status::Lost,
        };
        if member.becomes(status) {
            let (index, address) = (member.index, member.now().0.address);
            let what = if status == Status::Gone {
                "gone"
            } else {
                "lost"
            };
            self.board
                .note(format!("{index} {address} is {what}: {error}"));
        }
        self.has_changed();
    }

    /// Records that this member answers.
    pub fn is_living(&self, member: &Member) {
        let before = member.status();
        if member.becomes(Status::Living) && before != Status::New {
            let (index, address) = (member.index, member.now().0.address);
            self.board.note(format!("{index} {address} is back"));
        }
    }

    /// Records that this member has announced its end.
    pub fn is_leaving(&self, peer: FabricAddr) {
        let members = self.members();
        let Some(member) = members.iter().find(|member| member.peer == peer) else {
            return;
        };
        if member.becomes(Status::Left) && !member.is_ours && !self.is_stopping() {
            let (index, address) = (member.index, member.now().0.address);
            self.board.note(format!("{index} {address} leaves"));
        }
    }

    pub fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }

    pub async fn has_stopped(&self) {
        let mut stopped = self.stop.subscribe();
        // The sender lives as long as `self`.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    }

    /// Notifies `finish` of a change that it may wait for.
    pub fn has_changed(&self) {
        self.changed.notify_waiters();
    }

    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    pub fn backend(&self) -> Backend {
        self.domain.backend()
    }

    /// Ends in order: stops sending, waits until operations in flight have arrived and all members
    /// have announced their end to each other, then closes the endpoints.
    pub async fn finish(&self) {
        self.stop.send_replace(true);
        let sending = {
            let mut sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *sending)
        };
        let ending = async {
            sending.join_all().await;
            loop {
                let changed = self.changed.notified();
                if self.missing() == Some(0) {
                    break;
                }
                changed.await;
            }
        };
        tokio::select! {
            () = ending => {}
            () = self.stands_still() => {}
        }
        join_all(self.locals.iter().map(|local| local.endpoint.shutdown())).await;
    }

    /// Returns when nothing has arrived for `END_LIMIT`.
    async fn stands_still(&self) {
        let mut before = None;
        loop {
            let now = self.board.arrived();
            if before.replace(now) == Some(now) {
                break;
            }
            tokio::time::sleep(END_LIMIT).await;
        }
    }

    /// Returns how many messages sent to this process have not arrived; `None` while living members
    /// have not announced how many they have sent.
    pub fn missing(&self) -> Option<u64> {
        let members = self.members();
        let living = members
            .iter()
            .filter(|member| matches!(member.status(), Status::Living | Status::Left));
        let pairs = living.flat_map(|member| {
            let locals = self.locals.iter();
            let others = locals.filter(|local| !member.is_ours || member.index != local.index);
            others.map(|local| local.inbox.missing(member.peer))
        });
        pairs.sum()
    }
}

impl Member {
    fn now(&self) -> std::sync::MutexGuard<'_, (Announced, Status)> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn announced(&self) -> Announced {
        self.now().0
    }

    pub fn status(&self) -> Status {
        self.now().1
    }

    /// Sets the status; returns true if it has changed.
    fn becomes(&self, seen: Status) -> bool {
        let status = &mut self.now().1;
        let after = status.after(seen);
        std::mem::replace(status, after) != after
    }

    /// Updates a member that may have been restarted at its address. True if no task sends to it.
    fn renew(&self, announced: Announced) -> bool {
        let mut now = self.now();
        // Other members may still announce the earlier incarnation.
        let is_later = announced.incarnation > now.0.incarnation;
        if is_later {
            now.0 = announced;
        }
        let is_again = is_later && now.1 == Status::Left;
        if is_again {
            now.1 = Status::New;
        }
        is_again
    }
}

fn nanoseconds_of_the_world() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

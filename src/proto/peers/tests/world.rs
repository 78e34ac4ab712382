//! Endpoints that talk over streams, as a model: each has its machine and a port per peer that does
//! what `progress/rdm` does. What happens next is somebody else's choice.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::super::*;

/// Says which of several things happens next.
pub(super) trait Choice {
    fn choose(&mut self, of: usize) -> usize;
}

/// One message: who sent it, in which life, and its number among all messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Message {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) number: u64,
}

#[derive(Clone, Copy, Debug)]
enum Segment {
    Request {
        from: usize,
        incarnation: u32,
    },
    Response {
        incarnation: u32,
    },
    /// The rejecter's incarnation, if it says that.
    Reject(Option<u32>),
    Hello,
    Data(Message),
    Close,
    /// The end of the stream, or its loss.
    End,
}

/// A stream between the node that dialled and the one that was dialled.
#[derive(Debug)]
struct Stream {
    nodes: [usize; 2],
    /// What is on the way to either side.
    to: [VecDeque<Segment>; 2],
    /// Who holds either side.
    owner: [Owner; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Listener,
    Port(u64),
    /// The accepted side of a connection to oneself.
    Aside,
    Nobody,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Dialling,
    Accepting,
    Up,
    Ended,
}

#[derive(Debug)]
struct Port {
    peer: SocketAddr,
    stream: Option<(usize, usize)>,
    phase: Phase,
    attempt: Option<AttemptId>,
    /// What the peer said of itself, on the accepting side.
    incarnation: u32,
    kept: VecDeque<Message>,
    /// It was dialled on the side, and nobody posts to it.
    is_check: bool,
    close_sent: bool,
    close_came: bool,
}

impl Port {
    fn has_moved(&self) -> bool {
        self.close_sent || self.close_came || self.phase == Phase::Ended
    }
}

pub(super) struct Node {
    address: SocketAddr,
    incarnation: u32,
    peers: Peers,
    ports: BTreeMap<u64, Port>,
    current: HashMap<SocketAddr, u64>,
}

/// What may happen besides messages on their way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Plan {
    pub(super) nodes: usize,
    /// The acceptor is connected once its response is out, as C peers are.
    pub(super) plain: bool,
    /// Requests are claims: nobody has proven a key.
    pub(super) claims: bool,
    pub(super) posts: usize,
    pub(super) restarts: usize,
    /// A restarted node may say the same of itself as before (a C process of a container).
    pub(super) same_incarnation: bool,
    /// Streams that break.
    pub(super) losses: usize,
    /// Connections that are closed by agreement.
    pub(super) closes: usize,
}

pub(super) struct World {
    plan: Plan,
    now: Instant,
    pub(super) nodes: Vec<Node>,
    streams: Vec<Stream>,
    next_port: u64,
    next_number: u64,
    next_incarnation: u32,
    /// What has come in, in order.
    pub(super) delivered: Vec<Message>,
    /// Messages that may be lost: their connection broke, or one of the two sides restarted.
    pub(super) excused: Vec<Message>,
    pub(super) posted: Vec<Message>,
    /// Who posts to whom, at any time and in any order, besides the plan's posts.
    pub(super) script: Vec<(usize, usize)>,
    pub(super) given_up: usize,
}

/// Something that can happen.
enum Happening {
    Deliver(usize, usize),
    Post,
    Script(usize),
    Restart,
    Lose,
    Close,
}

impl World {
    pub(super) fn new(plan: Plan, seed: u64) -> Self {
        let mut world = World {
            plan,
            now: Instant::now(),
            nodes: Vec::new(),
            streams: Vec::new(),
            next_port: 0,
            next_number: 0,
            next_incarnation: 0,
            delivered: Vec::new(),
            excused: Vec::new(),
            posted: Vec::new(),
            script: Vec::new(),
            given_up: 0,
        };
        for at in 0..plan.nodes {
            let address = SocketAddr::from(([10, 0, 0, 1 + at as u8], 7000));
            let incarnation = world.new_incarnation();
            world
                .nodes
                .push(Node::new(address, incarnation, seed + at as u64));
        }
        world
    }

    fn new_incarnation(&mut self) -> u32 {
        self.next_incarnation += 1;
        self.next_incarnation
    }

    /// Lets things happen until nothing does.
    pub(super) fn run(&mut self, choice: &mut dyn Choice) {
        for _ in 0..20_000 {
            let mut happenings = Vec::new();
            for (at, stream) in self.streams.iter().enumerate() {
                for side in 0..2 {
                    if !stream.to[side].is_empty() && stream.owner[side] != Owner::Nobody {
                        happenings.push(Happening::Deliver(at, side));
                    }
                }
            }
            if self.plan.posts > 0 {
                happenings.push(Happening::Post);
            }
            happenings.extend((0..self.script.len()).map(Happening::Script));
            for (left, happening) in [
                (self.plan.restarts, Happening::Restart),
                (self.plan.losses, Happening::Lose),
                (self.plan.closes, Happening::Close),
            ] {
                // Rare among the rest, so that they find everything in every state.
                if left > 0 && !self.streams.is_empty() && choice.choose(4) == 0 {
                    happenings.push(happening);
                }
            }
            let due = self
                .nodes
                .iter()
                .filter_map(|node| node.peers.next_deadline())
                .min();
            // Time passes when nothing else happens, and sometimes before.
            let idle = happenings.is_empty();
            match due {
                None if idle => return,
                Some(due) if idle || self.plan.losses > 0 && choice.choose(8) == 0 => {
                    self.now = due.max(self.now);
                    for at in 0..self.nodes.len() {
                        let now = self.now;
                        self.nodes[at].peers.tick(now);
                        self.carry_out(at);
                    }
                    continue;
                }
                _ => {}
            }
            let at = choice.choose(happenings.len());
            match happenings.swap_remove(at) {
                Happening::Deliver(stream, side) => self.deliver(stream, side),
                Happening::Post => {
                    self.plan.posts -= 1;
                    let from = choice.choose(self.nodes.len());
                    let to = choice.choose(self.nodes.len());
                    self.post(from, to);
                }
                Happening::Script(at) => {
                    let (from, to) = self.script.swap_remove(at);
                    self.post(from, to);
                }
                Happening::Restart => {
                    self.plan.restarts -= 1;
                    let node = choice.choose(self.nodes.len());
                    self.restart(node);
                }
                Happening::Lose => {
                    self.plan.losses -= 1;
                    let stream = choice.choose(self.streams.len());
                    self.lose(stream);
                }
                Happening::Close => {
                    self.plan.closes -= 1;
                    let node = choice.choose(self.nodes.len());
                    self.close_one(node, choice);
                }
            }
            for node in &self.nodes {
                node.peers.check();
            }
        }
        panic!("it goes on for ever");
    }

    pub(super) fn post(&mut self, from: usize, to: usize) {
        self.next_number += 1;
        let message = Message {
            from,
            to,
            number: self.next_number,
        };
        self.posted.push(message);
        let (id, is_new) = self.port_to(from, self.nodes[to].address);
        if is_new {
            let (now, peer) = (self.now, self.nodes[to].address);
            self.nodes[from].peers.want(peer, now);
            self.carry_out(from);
        }
        let port = self.nodes[from].ports.get_mut(&id).unwrap();
        port.kept.push_back(message);
        self.flush(from, id);
    }

    /// The port that is posted to, and whether it was made for that.
    fn port_to(&mut self, node: usize, peer: SocketAddr) -> (u64, bool) {
        let owner = &self.nodes[node];
        if let Some(id) = owner.current.get(&peer)
            && !owner.ports[id].has_moved()
        {
            return (*id, false);
        }
        let id = self.new_port(node, peer, false);
        self.nodes[node].current.insert(peer, id);
        (id, true)
    }

    fn new_port(&mut self, node: usize, peer: SocketAddr, is_check: bool) -> u64 {
        self.next_port += 1;
        let id = self.next_port;
        let port = Port {
            peer,
            stream: None,
            phase: Phase::Idle,
            attempt: None,
            incarnation: 0,
            kept: VecDeque::new(),
            is_check,
            close_sent: false,
            close_came: false,
        };
        self.nodes[node].ports.insert(id, port);
        id
    }

    fn flush(&mut self, node: usize, id: u64) {
        let port = self.nodes[node].ports.get_mut(&id).unwrap();
        if port.phase != Phase::Up {
            return;
        }
        let (stream, side) = port.stream.unwrap();
        let kept: Vec<_> = port.kept.drain(..).collect();
        for message in kept {
            self.send(stream, side, Segment::Data(message));
        }
    }

    fn send(&mut self, stream: usize, from: usize, segment: Segment) {
        if self.streams[stream].owner[1 - from] == Owner::Nobody {
            return self.excuse([segment]);
        }
        self.streams[stream].to[1 - from].push_back(segment);
    }

    /// One side lets go of its stream. What it has not read is lost.
    fn leave(&mut self, stream: usize, side: usize) {
        if self.streams[stream].owner[side] == Owner::Nobody {
            return;
        }
        self.streams[stream].owner[side] = Owner::Nobody;
        let unread = std::mem::take(&mut self.streams[stream].to[side]);
        self.excuse(unread);
        self.send(stream, side, Segment::End);
    }

    fn excuse(&mut self, segments: impl IntoIterator<Item = Segment>) {
        for segment in segments {
            if let Segment::Data(message) = segment {
                self.excused.push(message);
            }
        }
    }

    fn carry_out(&mut self, node: usize) {
        while let Some(command) = self.nodes[node].peers.poll() {
            match command {
                Command::Dial { peer, attempt } => {
                    let (id, _) = self.port_to(node, peer);
                    self.dial(node, id, attempt);
                }
                Command::Check { peer, attempt } => {
                    let id = self.new_port(node, peer, true);
                    self.dial(node, id, attempt);
                }
                Command::EndCheck { attempt } => {
                    let is_it = |port: &Port| port.is_check && port.attempt == Some(attempt);
                    let id = (self.nodes[node].ports.iter())
                        .find(|(_, port)| is_it(port) && port.phase == Phase::Dialling)
                        .map(|(id, _)| *id);
                    if let Some(id) = id {
                        self.end_port(node, id);
                    }
                }
                Command::Retract { peer, attempt } => {
                    let id = self.port_of(node, peer, attempt);
                    let Some(id) =
                        id.filter(|id| self.nodes[node].ports[id].phase == Phase::Accepting)
                    else {
                        continue;
                    };
                    self.failed(node, id, Failure::Passing);
                }
                Command::LookAt { .. } => {}
                Command::Close { peer, attempt, .. } => {
                    let id = self.port_of(node, peer, attempt).expect("it is there");
                    self.end_port(node, id);
                    let now = self.now;
                    self.nodes[node].peers.closed(peer, attempt, false, now);
                }
                Command::GiveUp { peer, .. } => {
                    self.given_up += 1;
                    let id = self.nodes[node].current[&peer];
                    self.end_port(node, id);
                }
            }
        }
    }

    fn dial(&mut self, node: usize, id: u64, attempt: AttemptId) {
        let peer = self.nodes[node].ports[&id].peer;
        let to = (self.nodes.iter())
            .position(|other| other.address == peer)
            .unwrap();
        let incarnation = self.nodes[node].incarnation;
        let request = Segment::Request {
            from: node,
            incarnation,
        };
        self.streams.push(Stream {
            nodes: [node, to],
            to: [VecDeque::new(), VecDeque::from([request])],
            owner: [Owner::Port(id), Owner::Listener],
        });
        let stream = self.streams.len() - 1;
        let port = self.nodes[node].ports.get_mut(&id).unwrap();
        assert_eq!(port.phase, Phase::Idle, "one attempt at a time");
        port.phase = Phase::Dialling;
        port.stream = Some((stream, 0));
        port.attempt = Some(attempt);
    }

    /// An attempt of a port has come to nothing.
    fn failed(&mut self, node: usize, id: u64, failure: Failure) {
        let now = self.now;
        let owner = &mut self.nodes[node];
        let port = owner.ports.get_mut(&id).unwrap();
        let (peer, attempt) = (port.peer, port.attempt.unwrap());
        port.phase = Phase::Idle;
        let stream = port.stream.take();
        if !port.kept.is_empty() {
            // Maybe posted while the peer's own request was being accepted.
            owner.peers.want(peer, now);
        } else if !owner.peers.is_wanted(peer) {
            port.phase = Phase::Ended;
        }
        owner.peers.failed(peer, attempt, failure, now);
        if let Some((stream, side)) = stream {
            self.leave(stream, side);
        }
    }

    fn port_of(&self, node: usize, peer: SocketAddr, attempt: AttemptId) -> Option<u64> {
        let ports = &self.nodes[node].ports;
        let is_it = |port: &&Port| port.peer == peer && port.attempt == Some(attempt);
        ports
            .iter()
            .find(|(_, port)| is_it(port))
            .map(|(id, _)| *id)
    }

    /// A port fails, with what was posted to it.
    fn end_port(&mut self, node: usize, id: u64) {
        let port = self.nodes[node].ports.get_mut(&id).unwrap();
        port.phase = Phase::Ended;
        let kept: Vec<_> = port.kept.drain(..).collect();
        let stream = port.stream.take();
        self.excused.extend(kept);
        if let Some((stream, side)) = stream {
            self.leave(stream, side);
        }
    }

    fn deliver(&mut self, stream: usize, side: usize) {
        let segment = self.streams[stream].to[side].pop_front().unwrap();
        let node = self.streams[stream].nodes[side];
        match self.streams[stream].owner[side] {
            Owner::Nobody => unreachable!("nobody reads there"),
            Owner::Listener => match segment {
                Segment::Request { from, incarnation } => {
                    self.asked(stream, node, from, incarnation);
                }
                Segment::End => self.leave(stream, side),
                other => panic!("{other:?} in a request"),
            },
            Owner::Aside => match segment {
                Segment::Data(message) => self.delivered.push(message),
                Segment::End => self.leave(stream, side),
                Segment::Close => self.send(stream, side, Segment::Close),
                _ => {}
            },
            Owner::Port(id) => self.deliver_to_port(stream, side, node, id, segment),
        }
        self.carry_out(node);
    }

    fn asked(&mut self, stream: usize, node: usize, from: usize, incarnation: u32) {
        let request = Request {
            from: self.nodes[from].address,
            to: self.nodes[node].address,
            incarnation,
            undialable: false,
            is_proven: !self.plan.claims,
            is_known: false,
        };
        let now = self.now;
        let answer = self.nodes[node].peers.request(&request, now);
        self.carry_out(node);
        let ours = self.nodes[node].incarnation;
        match answer {
            Answer::Reject => {
                let said = (!self.plan.plain).then_some(ours);
                self.send(stream, 1, Segment::Reject(said));
                self.leave(stream, 1);
            }
            Answer::AcceptAside => {
                self.streams[stream].owner[1] = Owner::Aside;
                self.send(stream, 1, Segment::Response { incarnation: ours });
                if !self.plan.plain {
                    self.send(stream, 1, Segment::Hello);
                }
            }
            Answer::Accept(attempt) => {
                let (id, _) = self.port_to(node, request.from);
                let port = self.nodes[node].ports.get_mut(&id).unwrap();
                let given_up = port.stream.replace((stream, 1));
                port.phase = Phase::Accepting;
                port.attempt = Some(attempt);
                port.incarnation = incarnation;
                if let Some((stream, side)) = given_up {
                    self.leave(stream, side);
                }
                self.streams[stream].owner[1] = Owner::Port(id);
                self.send(stream, 1, Segment::Response { incarnation: ours });
                if self.plan.plain {
                    self.up(node, id, incarnation);
                } else {
                    self.send(stream, 1, Segment::Hello);
                }
            }
        }
    }

    fn up(&mut self, node: usize, id: u64, incarnation: u32) {
        let now = self.now;
        let owner = &mut self.nodes[node];
        let port = owner.ports.get_mut(&id).unwrap();
        port.phase = Phase::Up;
        let (peer, attempt) = (port.peer, port.attempt.unwrap());
        if port.is_check {
            let (stream, side) = port.stream.unwrap();
            match owner.peers.check_connected(peer, attempt, incarnation, now) {
                CheckEnd::Promote => {
                    let old = owner.current.insert(peer, id);
                    old.into_iter().for_each(|old| self.end_port(node, old));
                }
                CheckEnd::Drop => {
                    port.close_sent = true;
                    self.send(stream, side, Segment::Close);
                }
            }
            return;
        }
        owner.peers.connected(peer, attempt, incarnation, now);
        self.flush(node, id);
    }

    fn deliver_to_port(
        &mut self,
        stream: usize,
        side: usize,
        node: usize,
        id: u64,
        segment: Segment,
    ) {
        let now = self.now;
        let plain = self.plan.plain;
        let owner = &mut self.nodes[node];
        let port = owner.ports.get_mut(&id).unwrap();
        assert_eq!(port.stream, Some((stream, side)), "nobody else's stream");
        let (peer, attempt) = (port.peer, port.attempt.unwrap());
        match (segment, port.phase) {
            (Segment::Response { incarnation }, Phase::Dialling) => {
                port.incarnation = incarnation;
                if plain {
                    self.up(node, id, incarnation);
                } else {
                    self.send(stream, side, Segment::Hello);
                }
            }
            (Segment::Hello, Phase::Dialling | Phase::Accepting) => {
                let incarnation = port.incarnation;
                self.up(node, id, incarnation);
            }
            (Segment::Reject(said), Phase::Dialling) if port.is_check => {
                owner.peers.check_failed(peer, attempt, said, now);
                self.end_port(node, id);
            }
            (Segment::End, Phase::Dialling) if port.is_check => {
                owner.peers.check_failed(peer, attempt, None, now);
                self.end_port(node, id);
            }
            (Segment::Reject(_), Phase::Dialling | Phase::Accepting) => {
                self.failed(node, id, Failure::Rejected);
            }
            (Segment::End, Phase::Dialling | Phase::Accepting) => {
                self.failed(node, id, Failure::Passing);
            }
            (Segment::Data(message), Phase::Up) => self.delivered.push(message),
            (Segment::Close, Phase::Up) => {
                port.close_came = true;
                owner.peers.ending(peer, attempt, now);
                if !std::mem::replace(&mut port.close_sent, true) {
                    self.send(stream, side, Segment::Close);
                }
                // Both have said it: our stream ends, and we read on to the end of theirs.
                self.send(stream, side, Segment::End);
            }
            (Segment::End, Phase::Up) => {
                let in_order = port.close_came && port.close_sent;
                owner.peers.closed(peer, attempt, in_order, now);
                self.end_port(node, id);
            }
            (other, phase) => panic!("{other:?} at a port that is {phase:?}"),
        }
    }

    fn restart(&mut self, node: usize) {
        for at in 0..self.streams.len() {
            for side in 0..2 {
                if self.streams[at].nodes[side] == node {
                    self.leave(at, side);
                }
            }
        }
        let kept: Vec<_> = (self.nodes[node].ports.values_mut())
            .flat_map(|port| port.kept.drain(..))
            .collect();
        self.excused.extend(kept);
        let incarnation = match self.plan.same_incarnation {
            true => self.nodes[node].incarnation,
            false => self.new_incarnation(),
        };
        let address = self.nodes[node].address;
        self.nodes[node] = Node::new(address, incarnation, u64::from(incarnation));
    }

    /// What is on its way over a stream is lost, and both sides hear of that.
    fn lose(&mut self, stream: usize) {
        for side in 0..2 {
            if self.streams[stream].owner[side] != Owner::Nobody {
                let lost = std::mem::take(&mut self.streams[stream].to[side]);
                self.excuse(lost);
                self.streams[stream].to[side].push_back(Segment::End);
            }
        }
    }

    fn close_one(&mut self, node: usize, choice: &mut dyn Choice) {
        let can_be_closed = |port: &Port| port.phase == Phase::Up && !port.has_moved();
        let ports: Vec<u64> = (self.nodes[node].ports.iter())
            .filter(|(_, port)| can_be_closed(port))
            .map(|(id, _)| *id)
            .collect();
        if ports.is_empty() {
            return;
        }
        let id = ports[choice.choose(ports.len())];
        let now = self.now;
        let owner = &mut self.nodes[node];
        let port = owner.ports.get_mut(&id).unwrap();
        port.close_sent = true;
        let (stream, side) = port.stream.unwrap();
        owner.peers.ending(port.peer, port.attempt.unwrap(), now);
        self.send(stream, side, Segment::Close);
    }

    /// The stream over which one node's port to another is up.
    pub(super) fn connection(&self, node: usize, to: usize) -> Option<(usize, usize)> {
        let id = self.nodes[node].current.get(&self.nodes[to].address)?;
        let port = &self.nodes[node].ports[id];
        port.stream.filter(|_| port.phase == Phase::Up)
    }

    /// Connections that this node holds to the other, the accepted side of its own not counted.
    pub(super) fn held(&self, node: usize, to: usize) -> usize {
        let address = self.nodes[to].address;
        let is_held = |port: &&Port| port.peer == address && port.stream.is_some();
        self.nodes[node].ports.values().filter(is_held).count()
    }

    /// Nothing breaks any more.
    pub(super) fn calm(&mut self) {
        self.plan.posts = 0;
        self.plan.restarts = 0;
        self.plan.losses = 0;
        self.plan.closes = 0;
    }

    pub(super) fn let_time_pass(&mut self, time: Duration) {
        self.now += time;
        for node in &mut self.nodes {
            node.peers.tick(self.now);
        }
    }
}

impl Node {
    fn new(address: SocketAddr, incarnation: u32, seed: u64) -> Self {
        let settings = PeerSettings {
            incarnation,
            connect_deadline: Duration::from_secs(30),
            idle: None,
        };
        Node {
            address,
            incarnation,
            peers: Peers::new(settings, seed),
            ports: BTreeMap::new(),
            current: HashMap::new(),
        }
    }
}

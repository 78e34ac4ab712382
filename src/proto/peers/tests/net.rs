//! Endpoints that talk over streams, as a model: each has its machine and a port per peer that does
//! what `progress/rdm` does. A [`Choice`] decides what happens next.

mod delivery;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::super::*;

/// Says which of several things happens next.
pub(super) trait Choice {
    fn choose(&mut self, of: usize) -> usize;
}

/// One message: its sender, the sender's life, and its number among all messages.
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
    /// The rejecter's incarnation, if the reject carries it.
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
    /// The segments on the way to either side.
    to: [VecDeque<Segment>; 2],
    /// The owner of either side.
    owner: [Owner; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Listener,
    Port(u64),
    /// The accepted side of a connection to oneself.
    Aside,
    Closed,
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
    peer: PeerAddr,
    stream: Option<(usize, usize)>,
    phase: Phase,
    attempt: Option<AttemptId>,
    /// The incarnation that the peer reported, on the accepting side.
    incarnation: u32,
    kept: VecDeque<Message>,
    /// A connection that was dialled on the side, and is not posted to.
    is_verification: bool,
    close_sent: bool,
    close_came: bool,
}

impl Port {
    fn is_superseded(&self) -> bool {
        self.close_sent || self.close_came || self.phase == Phase::Ended
    }
}

pub(super) struct Node {
    address: PeerAddr,
    incarnation: u32,
    peers: Peers,
    ports: BTreeMap<u64, Port>,
    current: HashMap<PeerAddr, u64>,
}

/// The events that may happen besides messages on their way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Plan {
    pub(super) nodes: usize,
    /// The acceptor is connected once its response is out, as C peers are.
    pub(super) plain: bool,
    /// Requests are unproven.
    pub(super) unproven: bool,
    pub(super) posts: usize,
    pub(super) restarts: usize,
    /// A restarted node may say the same of itself as before (a C process of a container).
    pub(super) same_incarnation: bool,
    /// Streams that break.
    pub(super) losses: usize,
    /// Connections that are closed by agreement.
    pub(super) closes: usize,
    /// How often all nodes stand still for [`LATE`], whatever is on its way.
    pub(super) late: usize,
}

/// How long nodes stand still.
const LATE: Duration = Duration::from_secs(2);

pub(super) struct PeerNet {
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
    /// Posts from one node to another, at any time and in any order, besides the plan's posts.
    pub(super) script: Vec<(usize, usize)>,
    pub(super) given_up: usize,
}

/// Something that can happen.
enum NetStep {
    Deliver(usize, usize),
    Post,
    Script(usize),
    Restart,
    Lose,
    Close,
}

impl PeerNet {
    pub(super) fn new(plan: Plan, seed: u64) -> Self {
        let mut net = PeerNet {
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
            let address = SocketAddr::from(([10, 0, 0, 1 + at as u8], 7000)).into();
            let incarnation = net.new_incarnation();
            net.nodes
                .push(Node::new(address, incarnation, seed + at as u64));
        }
        net
    }

    fn new_incarnation(&mut self) -> u32 {
        self.next_incarnation += 1;
        self.next_incarnation
    }

    /// Runs steps until none is left.
    pub(super) fn run(&mut self, choice: &mut dyn Choice) {
        for _ in 0..20_000 {
            let mut steps = Vec::new();
            for (at, stream) in self.streams.iter().enumerate() {
                for side in 0..2 {
                    if !stream.to[side].is_empty() && stream.owner[side] != Owner::Closed {
                        steps.push(NetStep::Deliver(at, side));
                    }
                }
            }
            if self.plan.posts > 0 {
                steps.push(NetStep::Post);
            }
            steps.extend((0..self.script.len()).map(NetStep::Script));
            for (left, step) in [
                (self.plan.restarts, NetStep::Restart),
                (self.plan.losses, NetStep::Lose),
                (self.plan.closes, NetStep::Close),
            ] {
                // Rare among the other steps, so that they find everything in every state.
                if left > 0 && !self.streams.is_empty() && choice.choose(4) == 0 {
                    steps.push(step);
                }
            }
            let due = self
                .nodes
                .iter()
                .filter_map(|node| node.peers.next_deadline())
                .min();
            // Time passes when nothing else happens, and sometimes before.
            let idle = steps.is_empty();
            match due {
                None if idle => return,
                Some(_) if self.plan.late > 0 && choice.choose(8) == 0 => {
                    self.plan.late -= 1;
                    self.time_out(self.now + LATE);
                    continue;
                }
                Some(due) if idle || self.plan.losses > 0 && choice.choose(8) == 0 => {
                    self.time_out(due);
                    continue;
                }
                _ => {}
            }
            let at = choice.choose(steps.len());
            match steps.swap_remove(at) {
                NetStep::Deliver(stream, side) => self.deliver(stream, side),
                NetStep::Post => {
                    self.plan.posts -= 1;
                    let from = choice.choose(self.nodes.len());
                    let to = choice.choose(self.nodes.len());
                    self.post(from, to);
                }
                NetStep::Script(at) => {
                    let (from, to) = self.script.swap_remove(at);
                    self.post(from, to);
                }
                NetStep::Restart => {
                    self.plan.restarts -= 1;
                    let node = choice.choose(self.nodes.len());
                    self.restart(node);
                }
                NetStep::Lose => {
                    self.plan.losses -= 1;
                    let stream = choice.choose(self.streams.len());
                    self.lose(stream);
                }
                NetStep::Close => {
                    self.plan.closes -= 1;
                    let node = choice.choose(self.nodes.len());
                    self.close_one(node, choice);
                }
            }
            for node in &self.nodes {
                node.peers.check();
            }
        }
        panic!("it does not come to rest");
    }

    /// Runs all timers that expire until then, at all nodes.
    fn time_out(&mut self, until: Instant) {
        self.now = until.max(self.now);
        for at in 0..self.nodes.len() {
            let now = self.now;
            self.nodes[at].peers.handle_timeout(now);
            self.run_commands(at);
        }
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
            self.run_commands(from);
        }
        let port = self.nodes[from].ports.get_mut(&id).unwrap();
        port.kept.push_back(message);
        self.flush(from, id);
    }

    /// Returns the port that is posted to, and whether it was made for that.
    fn port_to(&mut self, node: usize, peer: PeerAddr) -> (u64, bool) {
        let owner = &self.nodes[node];
        if let Some(id) = owner.current.get(&peer)
            && !owner.ports[id].is_superseded()
        {
            return (*id, false);
        }
        let id = self.new_port(node, peer, false);
        self.nodes[node].current.insert(peer, id);
        (id, true)
    }

    fn new_port(&mut self, node: usize, peer: PeerAddr, is_verification: bool) -> u64 {
        self.next_port += 1;
        let id = self.next_port;
        let port = Port {
            peer,
            stream: None,
            phase: Phase::Idle,
            attempt: None,
            incarnation: 0,
            kept: VecDeque::new(),
            is_verification,
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
        if self.streams[stream].owner[1 - from] == Owner::Closed {
            return self.excuse([segment]);
        }
        self.streams[stream].to[1 - from].push_back(segment);
    }

    /// Closes one side of a stream, which loses the segments that it has not read.
    fn close_side(&mut self, stream: usize, side: usize) {
        if self.streams[stream].owner[side] == Owner::Closed {
            return;
        }
        self.streams[stream].owner[side] = Owner::Closed;
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

    fn restart(&mut self, node: usize) {
        for at in 0..self.streams.len() {
            for side in 0..2 {
                if self.streams[at].nodes[side] == node {
                    self.close_side(at, side);
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

    /// Loses the segments on their way over a stream, which both sides notice.
    fn lose(&mut self, stream: usize) {
        for side in 0..2 {
            if self.streams[stream].owner[side] != Owner::Closed {
                let lost = std::mem::take(&mut self.streams[stream].to[side]);
                self.excuse(lost);
                self.streams[stream].to[side].push_back(Segment::End);
            }
        }
    }

    fn close_one(&mut self, node: usize, choice: &mut dyn Choice) {
        let can_be_closed = |port: &Port| port.phase == Phase::Up && !port.is_superseded();
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
        owner
            .peers
            .handle_ending(port.peer, port.attempt.unwrap(), now);
        self.send(stream, side, Segment::Close);
    }

    /// Returns the stream over which one node's port to another is up.
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

    /// How often the nodes stood still, of the times that `late` said.
    pub(super) fn stood_still(&self, late: usize) -> usize {
        late - self.plan.late
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
            node.peers.handle_timeout(self.now);
        }
    }
}

impl Node {
    fn new(address: PeerAddr, incarnation: u32, seed: u64) -> Self {
        let settings = PeerSettings {
            incarnation,
            connect_deadline: Duration::from_secs(30),
            idle: None,
            strangers_max: usize::MAX,
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

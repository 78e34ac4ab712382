//! What nodes do with commands and with segments that come.

use super::*;

impl PeerNet {
    pub(super) fn run_commands(&mut self, node: usize) {
        while let Some(command) = self.nodes[node].peers.poll_command() {
            match command {
                Command::Dial { peer, attempt } => {
                    let (id, _) = self.port_to(node, peer);
                    self.dial(node, id, attempt);
                }
                Command::Verify { peer, attempt } => {
                    let id = self.new_port(node, peer, true);
                    self.dial(node, id, attempt);
                }
                Command::EndVerification { attempt } => {
                    let is_it = |port: &Port| port.is_verification && port.attempt == Some(attempt);
                    let id = (self.nodes[node].ports.iter())
                        .find(|(_, port)| is_it(port) && port.phase == Phase::Dialling)
                        .map(|(id, _)| *id);
                    if let Some(id) = id {
                        self.end_port(node, id);
                    }
                }
                Command::Retract { peer, attempt } => {
                    // The segments that have come on it are read first.
                    while let Some(id) = self.accepting(node, peer, attempt) {
                        let (stream, side) = self.nodes[node].ports[&id].stream.unwrap();
                        match self.streams[stream].to[side].is_empty() {
                            true => self.failed(node, id, Failure::Passing),
                            false => self.deliver(stream, side),
                        }
                    }
                }
                Command::CheckIdle { .. } | Command::Doubt { .. } => {}
                Command::Close { peer, attempt, .. } => {
                    let id = self.port_of(node, peer, attempt).expect("it is there");
                    self.end_port(node, id);
                    let now = self.now;
                    self.nodes[node]
                        .peers
                        .handle_closed(peer, attempt, false, now);
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

    /// Handles the failed attempt of a port.
    fn failed(&mut self, node: usize, id: u64, failure: Failure) {
        let now = self.now;
        let owner = &mut self.nodes[node];
        let port = owner.ports.get_mut(&id).unwrap();
        let (peer, attempt) = (port.peer, port.attempt.unwrap());
        port.phase = Phase::Idle;
        let stream = port.stream.take();
        if !port.kept.is_empty() {
            // It may have been posted while the peer's own request was being accepted.
            owner.peers.want(peer, now);
        } else if !owner.peers.is_wanted(peer) {
            port.phase = Phase::Ended;
        }
        owner.peers.handle_failed(peer, attempt, failure, now);
        if let Some((stream, side)) = stream {
            self.close_side(stream, side);
        }
    }

    fn port_of(&self, node: usize, peer: PeerAddr, attempt: AttemptId) -> Option<u64> {
        let ports = &self.nodes[node].ports;
        let is_it = |port: &&Port| port.peer == peer && port.attempt == Some(attempt);
        ports
            .iter()
            .find(|(_, port)| is_it(port))
            .map(|(id, _)| *id)
    }

    /// Returns the port of this attempt, while it has accepted the peer's request.
    fn accepting(&self, node: usize, peer: PeerAddr, attempt: AttemptId) -> Option<u64> {
        let id = self.port_of(node, peer, attempt);
        id.filter(|id| self.nodes[node].ports[id].phase == Phase::Accepting)
    }

    /// Ends a port, with the messages that were posted to it.
    fn end_port(&mut self, node: usize, id: u64) {
        let port = self.nodes[node].ports.get_mut(&id).unwrap();
        port.phase = Phase::Ended;
        let kept: Vec<_> = port.kept.drain(..).collect();
        let stream = port.stream.take();
        self.excused.extend(kept);
        if let Some((stream, side)) = stream {
            self.close_side(stream, side);
        }
    }

    pub(super) fn deliver(&mut self, stream: usize, side: usize) {
        let segment = self.streams[stream].to[side].pop_front().unwrap();
        let node = self.streams[stream].nodes[side];
        match self.streams[stream].owner[side] {
            Owner::Closed => unreachable!("a closed stream is not read"),
            Owner::Listener => match segment {
                Segment::Request { from, incarnation } => {
                    self.asked(stream, node, from, incarnation);
                }
                Segment::End => self.close_side(stream, side),
                other => panic!("{other:?} in a request"),
            },
            Owner::Aside => match segment {
                Segment::Data(message) => self.delivered.push(message),
                Segment::End => self.close_side(stream, side),
                Segment::Close => self.send(stream, side, Segment::Close),
                _ => {}
            },
            Owner::Port(id) => self.deliver_to_port(stream, side, node, id, segment),
        }
        self.run_commands(node);
    }

    fn asked(&mut self, stream: usize, node: usize, from: usize, incarnation: u32) {
        let request = Request {
            from: self.nodes[from].address,
            to: self.nodes[node].address,
            incarnation,
            undialable: false,
            is_proven: !self.plan.unproven,
            is_known: false,
        };
        let now = self.now;
        let answer = self.nodes[node].peers.handle_request(&request, now);
        self.run_commands(node);
        let ours = self.nodes[node].incarnation;
        match answer {
            Answer::Reject => {
                let said = (!self.plan.plain).then_some(ours);
                self.send(stream, 1, Segment::Reject(said));
                self.close_side(stream, 1);
            }
            Answer::AcceptSelf => {
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
                    self.close_side(stream, side);
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
        if port.is_verification {
            let (stream, side) = port.stream.unwrap();
            match owner.peers.handle_verified(peer, attempt, incarnation, now) {
                VerificationOutcome::Promote => {
                    let old = owner.current.insert(peer, id);
                    old.into_iter().for_each(|old| self.end_port(node, old));
                }
                VerificationOutcome::Drop => {
                    port.close_sent = true;
                    self.send(stream, side, Segment::Close);
                }
            }
            return;
        }
        owner
            .peers
            .handle_connected(peer, attempt, incarnation, now);
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
        assert_eq!(port.stream, Some((stream, side)), "its own stream");
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
            (Segment::Reject(said), Phase::Dialling) if port.is_verification => {
                owner
                    .peers
                    .handle_verification_failed(peer, attempt, said, now);
                self.end_port(node, id);
            }
            (Segment::End, Phase::Dialling) if port.is_verification => {
                owner
                    .peers
                    .handle_verification_failed(peer, attempt, None, now);
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
                owner.peers.handle_ending(peer, attempt, now);
                if !std::mem::replace(&mut port.close_sent, true) {
                    self.send(stream, side, Segment::Close);
                }
                // Both have sent CLOSE: our stream ends, and we read on to the end of theirs.
                self.send(stream, side, Segment::End);
            }
            (Segment::End, Phase::Up) => {
                let in_order = port.close_came && port.close_sent;
                owner.peers.handle_closed(peer, attempt, in_order, now);
                self.end_port(node, id);
            }
            (other, phase) => panic!("{other:?} at a port that is {phase:?}"),
        }
    }
}

//! Three nodes agree on a log, as Raft does, over connectionless endpoints, while a nemesis parts,
//! stops and kills them. All of it follows from the seed.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tokio_fabric::testing::{Net, Node};
use tokio_fabric::{RdmEndpoint, Result, av::FabricAddr};

const NAMES: [&str; 3] = ["a", "b", "c"];
const PORT: u16 = 7000;
const HEARTBEAT: Duration = Duration::from_millis(50);

/// Numbers that a seed repeats (SplitMix64): what a test draws itself comes from its seed too.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    term: u64,
    value: u64,
}

/// What survives a crash.
#[derive(Default)]
struct Disk {
    term: u64,
    voted_for: Option<u64>,
    log: Vec<Entry>,
}

/// What must hold, whatever happens; and what the clients know.
#[derive(Default)]
struct ClusterState {
    disks: [Disk; 3],
    /// Who led in which term.
    leaders: Vec<(u64, usize)>,
    /// What some node has found committed, ever.
    committed: Vec<Entry>,
    commit_of: [usize; 3],
    next_value: u64,
}

impl ClusterState {
    /// At most one leader a term, which has all that is committed.
    fn elected(&mut self, term: u64, node: usize) {
        let other = self.leaders.iter().find(|(led, _)| *led == term);
        assert!(other.is_none(), "{other:?} and {node} lead in term {term}");
        self.leaders.push((term, node));
        let log = &self.disks[node].log;
        assert!(
            log.starts_with(&self.committed),
            "a leader has lost entries"
        );
    }

    /// What is committed once stays, and is the same everywhere.
    fn commit(&mut self, node: usize, count: usize) {
        let log = &self.disks[node].log[..count];
        let both = log.len().min(self.committed.len());
        assert_eq!(log[..both], self.committed[..both], "two truths at {node}");
        if log.len() > both {
            self.committed = log.to_vec();
        }
        self.commit_of[node] = self.commit_of[node].max(count);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Follower,
    Candidate,
    Leader,
}

/// One life of one node.
struct Raft {
    me: usize,
    world: Arc<Mutex<ClusterState>>,
    node: Node,
    endpoint: RdmEndpoint,
    peers: Vec<FabricAddr>,
    random: Random,
    role: Role,
    votes: usize,
    /// Entries known to be at each node, and those that are committed.
    matched: [usize; 3],
    commit: usize,
    deadline: Instant,
}

// Messages are words: what it is, the term, the sender, and what belongs to it.
const ASK_VOTE: u64 = 1;
const VOTE: u64 = 2;
const APPEND: u64 = 3;
const APPENDED: u64 = 4;
const WORDS_MAX: usize = 6 + 2 * 64;

impl Raft {
    fn open(me: usize, cluster: &Cluster, seed: u64) -> Result<Raft> {
        let node = cluster.net.node(NAMES[me]);
        let addresses = NAMES.map(|name| cluster.net.node(name).addr(PORT));
        let endpoint = node.peer()?.domain.rdm_endpoint();
        let endpoint = endpoint.listen_at(node.addr(PORT)).open()?;
        let peers = addresses.map(|address| endpoint.insert(address));
        let peers = peers.into_iter().collect::<Result<_>>()?;
        let mut raft = Raft {
            me,
            world: Arc::clone(&cluster.world),
            node,
            endpoint,
            peers,
            random: Random(seed ^ me as u64),
            role: Role::Follower,
            votes: 0,
            matched: [0; 3],
            commit: 0,
            deadline: Instant::now(),
        };
        raft.wait_for_leader();
        Ok(raft)
    }

    fn world(&self) -> MutexGuard<'_, ClusterState> {
        self.world.lock().unwrap()
    }

    fn wait_for_leader(&mut self) {
        let patience = Duration::from_millis(150 + self.random.below(150));
        self.deadline = Instant::now() + patience;
    }

    /// The node's program: it ends with its process.
    async fn run(mut self) {
        let endpoint = self.endpoint.clone();
        let mut receive = endpoint.recv(vec![0; 8 * WORDS_MAX]).into_future();
        loop {
            // In order: which branch is looked at first is chosen by chance otherwise, and not by
            // the seed.
            tokio::select! {
                biased;
                received = &mut receive => {
                    if let Ok((received, bytes)) = received {
                        let (words, _) = bytes[..received.len].as_chunks();
                        let words = words.iter().map(|word| u64::from_le_bytes(*word));
                        self.hear(&words.collect::<Vec<_>>());
                    }
                    receive = endpoint.recv(vec![0; 8 * WORDS_MAX]).into_future();
                }
                () = sleep_until(self.deadline) => self.time_out(),
            }
        }
    }

    /// Sends, and does not wait: a peer that is cut off must not hold the others.
    fn send_words(&self, to: usize, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let (endpoint, peer) = (self.endpoint.clone(), self.peers[to]);
        self.node.spawn(async move {
            // What does not arrive in time is said again, or is not needed any more.
            let _ = endpoint.send(bytes, peer).timeout(4 * HEARTBEAT).await;
        });
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.me;
        (0..3).filter(move |other| *other != me)
    }

    fn last(log: &[Entry]) -> (u64, u64) {
        (log.last().map_or(0, |entry| entry.term), log.len() as u64)
    }

    fn time_out(&mut self) {
        if self.role == Role::Leader {
            return self.lead();
        }
        let me = self.me as u64;
        let (term, (last_term, len)) = {
            let disk = &mut self.world().disks[self.me];
            disk.term += 1;
            disk.voted_for = Some(me);
            (disk.term, Raft::last(&disk.log))
        };
        (self.role, self.votes) = (Role::Candidate, 1);
        for other in self.others() {
            self.send_words(other, &[ASK_VOTE, term, me, last_term, len]);
        }
        self.wait_for_leader();
    }

    /// A heartbeat: to each other node what it lacks. A client's value comes with every one.
    fn lead(&mut self) {
        let mut world = self.world.lock().unwrap();
        world.next_value += 1;
        let value = world.next_value;
        let disk = &mut world.disks[self.me];
        let (term, len) = (disk.term, disk.log.len());
        if len < self.commit + 32 {
            disk.log.push(Entry { term, value });
        }
        self.matched[self.me] = disk.log.len();
        let mut messages = Vec::new();
        for other in self.others() {
            let from = self.matched[other].min(disk.log.len());
            let (before, _) = Raft::last(&disk.log[..from]);
            let mut words = vec![APPEND, term, self.me as u64, before, from as u64];
            words.push(self.commit as u64);
            let lacking = disk.log[from..].iter().take(64);
            words.extend(lacking.flat_map(|entry| [entry.term, entry.value]));
            messages.push((other, words));
        }
        drop(world);
        for (other, words) in messages {
            self.send_words(other, &words);
        }
        self.deadline = Instant::now() + HEARTBEAT;
    }

    fn hear(&mut self, words: &[u64]) {
        let &[what, term, from, ref rest @ ..] = words else {
            return;
        };
        let was = self.world().disks[self.me].term;
        let current = was.max(term);
        if term > was {
            let disk = &mut self.world().disks[self.me];
            (disk.term, disk.voted_for) = (term, None);
        }
        if self.role != Role::Follower && (term > was || term == was && what == APPEND) {
            self.role = Role::Follower;
            self.wait_for_leader();
        }
        let from = from as usize;
        match (what, rest) {
            (ASK_VOTE, &[last_term, len]) => self.vote(from, term, current, (last_term, len)),
            (VOTE, &[granted]) if term == current && self.role == Role::Candidate => {
                self.votes += granted as usize;
                if self.votes == 2 {
                    self.role = Role::Leader;
                    self.matched = [self.commit; 3];
                    self.world().elected(current, self.me);
                    self.lead();
                }
            }
            (APPEND, &[before, at, commit, ref entries @ ..]) => {
                let held = (term == current)
                    .then(|| self.append(before, at as usize, commit as usize, entries));
                let (is_taken, count) = held.unwrap_or((false, 0));
                let answer = [u64::from(is_taken), count as u64];
                self.send_words(
                    from,
                    &[APPENDED, current, self.me as u64, answer[0], answer[1]],
                );
            }
            (APPENDED, &[is_taken, count]) if term == current && self.role == Role::Leader => {
                self.appended(from, is_taken == 1, count as usize);
            }
            _ => {}
        }
    }

    fn vote(&mut self, from: usize, term: u64, current: u64, theirs: (u64, u64)) {
        let granted = {
            let disk = &mut self.world().disks[self.me];
            let is_free = disk.voted_for.is_none_or(|other| other == from as u64);
            let granted = term == current && is_free && theirs >= Raft::last(&disk.log);
            if granted {
                disk.voted_for = Some(from as u64);
            }
            granted
        };
        if granted {
            self.wait_for_leader();
        }
        self.send_words(from, &[VOTE, current, self.me as u64, u64::from(granted)]);
    }

    /// Takes a leader's entries that follow what is here; returns how many are the same there.
    fn append(&mut self, before: u64, at: usize, commit: usize, words: &[u64]) -> (bool, usize) {
        self.wait_for_leader();
        let world = Arc::clone(&self.world);
        let mut world = world.lock().unwrap();
        let log = &mut world.disks[self.me].log;
        if at > log.len() || Raft::last(&log[..at]).0 != before {
            // Nothing up to what is committed is ever in doubt.
            return (false, self.commit);
        }
        let (pairs, _) = words.as_chunks::<2>();
        for (index, [term, value]) in pairs.iter().enumerate() {
            let (entry, index) = (
                Entry {
                    term: *term,
                    value: *value,
                },
                at + index,
            );
            if log.get(index) != Some(&entry) {
                log.truncate(index);
                log.push(entry);
            }
        }
        let same = at + pairs.len();
        self.commit = self.commit.max(commit.min(same));
        world.commit(self.me, self.commit);
        (true, same)
    }

    fn appended(&mut self, from: usize, is_taken: bool, count: usize) {
        self.matched[from] = match is_taken {
            true => self.matched[from].max(count),
            false => count,
        };
        // What two of three have is committed, if it is of this term.
        let mut counts = self.matched;
        counts.sort_unstable();
        let mut world = self.world.lock().unwrap();
        let disk = &world.disks[self.me];
        let is_new = counts[1] > self.commit && counts[1] <= disk.log.len();
        if is_new && disk.log[counts[1] - 1].term == disk.term {
            self.commit = counts[1];
            world.commit(self.me, self.commit);
        }
    }
}

struct Cluster {
    net: Net,
    world: Arc<Mutex<ClusterState>>,
    random: Random,
}

impl Cluster {
    /// Starts a node's program.
    fn start(&mut self, me: usize) {
        let seed = self.random.below(u64::MAX);
        let raft = Raft::open(me, self, seed).expect("a node that is up");
        raft.node.clone().spawn(raft.run());
    }

    /// Something bad, for a while.
    async fn disturb(&mut self) {
        let me = self.random.below(3) as usize;
        let (one, other) = (NAMES[me], NAMES[(me + 1) % 3]);
        let what = self.random.below(5);
        match what {
            0 => self.net.isolate(one),
            1 => self.net.partition(one, other),
            2 => self.net.partition_one_way(one, other),
            3 => self.net.hang(one),
            _ => self.net.crash(one),
        }
        sleep(Duration::from_millis(self.random.below(1_000))).await;
        self.net.heal_all();
        self.net.resume(one);
        if what == 4 {
            self.net.restart(one);
            self.start(me);
        }
    }
}

async fn cluster(seed: u64) -> (usize, usize) {
    let mut cluster = Cluster {
        net: Net::new(seed),
        world: Arc::default(),
        random: Random(seed),
    };
    let world = Arc::clone(&cluster.world);
    for name in NAMES {
        cluster.net.node(name);
    }
    for me in 0..3 {
        let latency = Duration::from_millis(cluster.random.below(20));
        let link = cluster.net.link(NAMES[me], NAMES[(me + 1) % 3]);
        link.latency(latency);
        cluster.start(me);
    }
    for _ in 0..6 {
        sleep(Duration::from_millis(cluster.random.below(600))).await;
        cluster.disturb().await;
    }
    // All is well again, so they go on, and agree.
    let target = world.lock().unwrap().committed.len() + 5;
    let limit = Instant::now() + Duration::from_secs(30);
    let lags = |world: &ClusterState| world.commit_of.iter().any(|commit| *commit < target);
    while lags(&world.lock().unwrap()) {
        assert!(Instant::now() < limit, "no progress although all is well");
        sleep(HEARTBEAT).await;
    }
    let world = world.lock().unwrap();
    (world.committed.len(), world.leaders.len())
}

/// One seed, in paused time: how many entries were committed, by how many leaders.
pub fn simulate(seed: u64) -> (usize, usize) {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime")
        .block_on(cluster(seed))
}

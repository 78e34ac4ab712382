//! Signs of life: which connections are looked at, when, and what silence means (ruling 13).
//!
//! A port is on the driver's list of visits while operations of it are outstanding, or while it
//! does not read and so owes its peer a sign of life; posting puts it there, a visit takes it off.
//! The hot path costs a flag per received batch. Connections with nothing outstanding are not on
//! the list: their systems ask each other (keepalive), which costs this process nothing.
//!
//! A port has one of two paces. *Close*, once per `interval`: something awaits the peer, or the
//! port owes signs. *Idle*, once per `idle_interval`: it has receives posted and waits for whatever
//! may come, the normal state of a server. A question is followed up at the close pace. Ports that
//! became idle together are visited spread over the interval, those of a moment in one batch.
//! Between its visits an idle port costs nothing. Toward a plain peer it has none: there the system
//! asks. Idle ports that have one and the same domain for their peer ask one question together, and
//! rest while that lives: they have no visits then, until something comes (`heard_peers.rs`).
//!
//! ```text
//!          heard                bytes ahead of the question are being taken
//!        +------+                +-------+
//!        v      |                v       |
//!   Quiet -- silent: PING --> Asked(0) -- silent --> Asked(k+1) -- k = rounds --> dead
//!     ^                          |                       |
//!     +--------- heard ----------+-----------------------+
//! ```
//!
//! A visit says nothing if it comes late or while this side does not read. What has come is taken
//! in before each visit, and the system is asked what it has that nobody took.
//!
//! Toward a plain peer there is nobody to ask but its system: keepalive asks while nothing of ours
//! is under way, and bytes or probes of ours that its system leaves unanswered tell the rest. A
//! program that is stopped, or does not read, has a system that answers.

mod settings;

use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind};
use crate::proto::Lifecycle;
use crate::transport::Vitals;

use super::heard_peers::{HeardPeers, PeerLife, Word};
use super::port::{Closing, Port, PortState};

pub use settings::Liveness;
use settings::{INTERVAL_MAX, INTERVAL_MIN};

/// What the system's clocks may be off by.
const SLACK: Duration = Duration::from_millis(10);
/// The interval of a peer that does not tell its own.
const PEER_INTERVAL_DEFAULT: Duration = Duration::from_secs(1);

/// What a port knows of its peer's life.
#[derive(Debug)]
pub(super) struct Life {
    config: Liveness,
    /// How often it is visited; `None`: it is neither on the driver's list of visits nor about to
    /// be.
    pace: Option<Pace>,
    /// Something has come since the last visit.
    pub(super) heard: bool,
    /// Bytes handed to the transport's system so far.
    pub(super) sent: u64,
    /// Nobody looks at it as long as its peer's life is known otherwise, and nothing comes.
    rests: bool,
    pub(super) last_visit: Option<Instant>,
    next_visit: Option<Instant>,
    asked: Option<Asked>,
    /// Silent visits since it was asked.
    missed: u32,
    /// Visits that found the peer's system silent for too long.
    unanswered: u32,
    pub(super) questions: u64,
    /// The system asks for the peer's, when the connection has long been silent.
    pub(super) kept_alive: bool,
    /// The system was told to ask as often as for outstanding operations.
    hurried: bool,
    /// Found dead: the connection is reset, since nobody will take what was not sent.
    pub(super) dead: bool,
}

/// How often a port is visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Pace {
    Idle,
    Close,
}

/// The times of a domain's visits: ports share them, so that thousands of connections wake the
/// driver some dozens of times a second while they are watched, and about once while they are idle.
#[derive(Clone, Copy, Debug)]
pub(super) struct VisitGrid {
    pub(super) epoch: Instant,
}

impl VisitGrid {
    const STEP: Duration = Duration::from_millis(16);
    const IDLE_STEP_MAX: Duration = Duration::from_secs(1);

    /// The next time of those that serve visits `every` so often, not before `at`.
    pub(super) fn at(&self, at: Instant, every: Duration) -> Instant {
        let step = (every / 64).clamp(VisitGrid::STEP, VisitGrid::IDLE_STEP_MAX);
        let steps = at.saturating_duration_since(self.epoch).as_nanos() / step.as_nanos();
        let steps = u32::try_from(steps + 1).unwrap_or(u32::MAX);
        self.epoch + step.saturating_mul(steps)
    }
}

/// A question that awaits its answer.
#[derive(Debug)]
struct Asked {
    /// Bytes that the peer's system had confirmed at the last visit.
    confirmed: u64,
    /// How many it will have when it has the question; not known while that waits for room.
    with_question: Option<u64>,
}

impl Life {
    /// A visit of an idle connection, whose next one follows in its time.
    fn is_visited(&mut self, now: Instant, grid: VisitGrid) {
        let every = self.config.step(Pace::Idle);
        self.last_visit = Some(now);
        self.next_visit = Some(grid.at(now + every, every));
    }

    pub(super) fn new(config: Liveness) -> Self {
        Life {
            config,
            pace: None,
            heard: false,
            sent: 0,
            rests: false,
            last_visit: None,
            next_visit: None,
            asked: None,
            missed: 0,
            unanswered: 0,
            questions: 0,
            kept_alive: false,
            hurried: false,
            dead: false,
        }
    }

    fn is_alive(&mut self) {
        self.asked = None;
        self.missed = 0;
    }

    fn leave(&mut self) {
        self.is_alive();
        self.pace = None;
        self.heard = false;
        self.unanswered = 0;
        self.last_visit = None;
        self.next_visit = None;
    }

    /// A silent visit, after which `vitals` are what the system knows. True if the peer is dead.
    fn judge_silence(&mut self, is_question_out: bool, vitals: Option<Vitals>) -> bool {
        let confirmed = vitals.map_or(self.sent, |vitals| vitals.confirmed);
        let under_way = vitals.map_or(0, |vitals| vitals.unconfirmed);
        let Some(asked) = &mut self.asked else {
            return false;
        };
        if asked.with_question.is_none() && is_question_out {
            asked.with_question = Some(confirmed + under_way);
        }
        let taken = confirmed > asked.confirmed;
        asked.confirmed = confirmed;
        if taken && asked.with_question.is_none_or(|all| confirmed < all) {
            // What lies ahead of the question is being taken, so the question is on its way.
            self.missed = 0;
            return false;
        }
        self.missed += 1;
        self.missed >= self.config.rounds
    }
}

impl Port {
    /// The connection is up.
    pub(super) fn begin_life(&self, state: &mut PortState) {
        if state.life.config.is_off() {
            return;
        }
        let idle = state.life.config.when_idle();
        if let Some(link) = &mut state.link {
            state.life.kept_alive = link.keep_alive(idle);
        }
        self.watch_life(state);
    }

    /// Something was posted, or a frame has begun: from now on the peer must show signs of life, as
    /// often as that asks for.
    pub(super) fn watch_life(&self, state: &mut PortState) {
        // First what is the case at most calls: nothing changes.
        let life = &state.life;
        if life.pace == Some(Pace::Close) || life.config.is_off() {
            return;
        }
        if is_up(state)
            && let Some(pace) = wanted_pace(state)
        {
            self.quicken(state, pace);
        }
    }

    /// Reading has stopped: the peer's questions are not seen, so it is told unasked.
    pub(super) fn owe_signs(&self, state: &mut PortState) {
        if state.machine.gives_signs() {
            self.quicken(state, Pace::Close);
        }
    }

    fn quicken(&self, state: &mut PortState, pace: Pace) {
        let life = &mut state.life;
        if life.pace >= Some(pace) {
            return;
        }
        life.pace = Some(pace);
        // The answer to a question is looked for soon, whatever the pace.
        if life.asked.is_none() {
            life.last_visit = None;
            self.enlist();
        }
    }

    /// What the driver does before a visit, be it due or the first of a pace: the time at which it
    /// is on the list, and whether what has come is to be taken in before.
    pub(super) fn before_visit(
        &self,
        now: Instant,
        peers: &mut HeardPeers,
    ) -> (Option<Instant>, bool) {
        let state = &*self.lock("listen");
        let life = &state.life;
        if life.rests
            && let Some((peer, _)) = self.shared_life(state)
        {
            peers.rise(peer, self.key());
        }
        let must_listen = life.last_visit.is_some() && !life.heard;
        let must_listen = must_listen && self.word(state, now, peers) == Word::None;
        (life.next_visit, must_listen)
    }

    /// Looks at the connection; gives the time of the next visit, if there is to be one.
    pub(super) fn visit(
        &self,
        now: Instant,
        grid: VisitGrid,
        peers: &mut HeardPeers,
    ) -> Option<Instant> {
        let mut guard = self.lock("visit");
        let state = &mut *guard;
        let life = &state.life;
        if life.rests && life.heard && life.pace == Some(Pace::Idle) && is_up(state) {
            return self.rise(state, now, grid, peers);
        }
        self.vouch(state, now, peers);
        if !state.life.heard && self.may_rest(state, now, peers) {
            return self.rest(state, now, grid, peers);
        }
        let was = state.life.last_visit.and(state.life.pace);
        let next = self.look(state, now, grid, peers);
        state.life.rests = false;
        match next {
            Some(_) => state.life.next_visit = next,
            None => {
                self.unhurry(state);
                state.life.leave();
            }
        }
        self.settle(state);
        if state.life.pace != Some(Pace::Close) {
            shrink(state);
        }
        // Not one at which something came while it was idle: much may follow.
        if next.is_some() && was != Some(Pace::Idle) && self.may_rest(state, now, peers) {
            return self.rest(state, now, grid, peers);
        }
        next
    }

    /// Nobody looks at it again before there is a reason: the usual case of thousands.
    fn rest(
        &self,
        state: &mut PortState,
        now: Instant,
        grid: VisitGrid,
        peers: &mut HeardPeers,
    ) -> Option<Instant> {
        let (peer, fresh) = self.shared_life(state)?;
        let takes = state.life.config.answer_within();
        peers.rest(peer, self.auth_key(), self.key(), fresh, takes);
        // If it is to ask for all, it is not late before it would be if it did not rest.
        state.life.is_visited(now, grid);
        state.life.rests = true;
        shrink(state);
        None
    }

    /// Something has come while it rested, and much may follow: it is looked at again in its time,
    /// even if nothing is outstanding in this moment. Else a connection at work would go to rest,
    /// and be looked at, with every message.
    fn rise(
        &self,
        state: &mut PortState,
        now: Instant,
        grid: VisitGrid,
        peers: &mut HeardPeers,
    ) -> Option<Instant> {
        if let Some((peer, fresh)) = self.shared_life(state) {
            peers.heard(peer, self.auth_key(), heard_at(state, now), fresh);
        }
        let life = &mut state.life;
        life.is_alive();
        (life.rests, life.heard) = (false, false);
        life.is_visited(now, grid);
        life.next_visit
    }

    /// Something has come.
    pub(super) fn hear(&self, state: &mut PortState) {
        if !std::mem::replace(&mut state.life.heard, true) && state.life.rests {
            self.enlist();
        }
    }

    /// The system of a plain peer is asked no more often than for an idle connection.
    fn unhurry(&self, state: &mut PortState) {
        if std::mem::take(&mut state.life.hurried)
            && let Some(link) = &mut state.link
        {
            link.keep_alive(state.life.config.when_idle());
        }
    }

    /// The domain that other connections may have heard too; `None`: this one is on its own.
    fn shared_life(&self, state: &PortState) -> Option<(PeerLife, Duration)> {
        let fresh = state.life.config.shared()?;
        let incarnation = state.machine.peer_hello()?.incarnation;
        let host = state.peer?.ip();
        Some((PeerLife { host, incarnation }, fresh))
    }

    /// A connection that is idle from now on: how long ago its peer was heard, its system knows.
    fn vouch(&self, state: &PortState, now: Instant, peers: &mut HeardPeers) {
        let is_first = state.life.pace == Some(Pace::Idle) && state.life.last_visit.is_none();
        if is_first
            && self.word(state, now, peers) == Word::None
            && let Some((peer, fresh)) = self.shared_life(state)
        {
            peers.heard(peer, self.auth_key(), heard_at(state, now), fresh);
        }
    }

    /// What other connections know of this one's peer, if it is idle and has not asked itself.
    fn word(&self, state: &PortState, now: Instant, peers: &HeardPeers) -> Word {
        let life = &state.life;
        let is_open = life.asked.is_some() || life.unanswered > 0 || !state.receive_armed;
        let is_idle = !is_open && wanted_pace(state) == Some(Pace::Idle);
        // Where no system asks whether this connection is there, the others cannot vouch for it.
        let shares = is_idle && life.kept_alive;
        let Some((peer, fresh)) = self.shared_life(state).filter(|_| shares) else {
            return Word::None;
        };
        let takes = life.config.answer_within();
        peers.word(peer, self.auth_key(), now, fresh, takes)
    }

    /// It is idle, and its peer lives.
    fn may_rest(&self, state: &PortState, now: Instant, peers: &HeardPeers) -> bool {
        state.life.pace == Some(Pace::Idle)
            && is_up(state)
            && self.word(state, now, peers) == Word::Alive
    }

    fn look(
        &self,
        state: &mut PortState,
        now: Instant,
        grid: VisitGrid,
        peers: &mut HeardPeers,
    ) -> Option<Instant> {
        let gives_signs = state.machine.gives_signs();
        let is_reading = state.receive_armed;
        let config = state.life.config;
        let watched = wanted_pace(state).filter(|_| !config.is_off());
        let is_watched = watched.is_some();
        if !is_up(state) || !is_watched && (is_reading || !gives_signs) {
            return None;
        }
        let word = self.word(state, now, peers);
        let heard = std::mem::take(&mut state.life.heard);
        let last_visit = state.life.last_visit.replace(now);
        let wanted = state.life.next_visit.take();
        if let (true, Some(since)) = (heard, last_visit)
            && let Some((peer, fresh)) = self.shared_life(state)
        {
            let since = match state.life.rests {
                // Long ago, maybe: its system knows better when the last byte came.
                true => heard_at(state, now).max(since),
                false => since,
            };
            peers.heard(peer, self.auth_key(), since, fresh);
        }
        if is_watched && !gives_signs && !std::mem::replace(&mut state.life.hurried, true) {
            let link = state.link.as_mut()?;
            link.keep_alive(config.when_watched());
        }
        if !is_reading && gives_signs {
            state.machine.give_sign();
            self.transmit_now(state);
        }
        let was_asked = state.life.asked.is_some();
        if let (Some(last_visit), Some(wanted), true) =
            (last_visit, wanted, heard || word == Word::None)
            && self.is_found_dead(state, now, last_visit, wanted, heard, is_watched)
        {
            return None;
        }
        if let (false, true) = (was_asked, state.life.asked.is_some())
            && let Some((peer, _)) = self.shared_life(state)
        {
            let takes = state.life.config.answer_within();
            peers.asked(peer, self.auth_key(), now, takes);
        }
        let awaits_word = !heard && word == Word::Asked;
        Some(self.next_visit(state, now, grid, watched, last_visit.is_none(), awaits_word))
    }

    /// What silence since the last visit means; asks, if that is what is to be done.
    fn is_found_dead(
        &self,
        state: &mut PortState,
        now: Instant,
        last_visit: Instant,
        wanted: Instant,
        heard: bool,
        is_watched: bool,
    ) -> bool {
        if heard {
            state.life.is_alive();
            state.life.unanswered = 0;
            return false;
        }
        let config = state.life.config;
        let can_hear = state.receive_armed && state.machine.gives_signs();
        let vitals = state.link.as_ref().and_then(|link| link.vitals());
        let unanswered = vitals.map_or(Duration::ZERO, |vitals| vitals.unanswered);
        if is_watched && unanswered >= config.silence_max() {
            state.life.unanswered += 1;
        } else {
            state.life.unanswered = 0;
        }
        let elapsed = now.saturating_duration_since(last_visit);
        let has_come = vitals.is_some_and(|it| has_come(it.silent, elapsed, state.life.rests));
        let is_late = now.saturating_duration_since(wanted) > config.interval / 2;
        let mut is_dead = state.life.unanswered > 1;
        if !can_hear || !is_watched || has_come {
            state.life.is_alive();
        } else if state.life.asked.is_none() {
            self.ask(state, vitals);
        } else if !is_late {
            let is_question_out = state.machine.is_transmit_idle();
            is_dead |= state.life.judge_silence(is_question_out, vitals);
        }
        if is_dead {
            let silent = vitals.map_or(elapsed * (state.life.missed + 1), |vitals| vitals.silent);
            self.found_dead(state, silent);
        }
        is_dead
    }

    fn next_visit(
        &self,
        state: &mut PortState,
        now: Instant,
        grid: VisitGrid,
        watched: Option<Pace>,
        is_first: bool,
        awaits_word: bool,
    ) -> Instant {
        let life = &mut state.life;
        let is_reading = state.receive_armed;
        let is_expecting = awaits_word || life.asked.is_some() || life.unanswered > 0;
        let was = life.pace;
        if is_reading && !is_expecting && watched == Some(Pace::Idle) {
            life.pace = Some(Pace::Idle);
            let every = life.config.step(Pace::Idle);
            let next = if is_first || was != Some(Pace::Idle) {
                let seed = self.engine.incarnation();
                first_idle_visit_after(every, self.id().spread(seed))
            } else {
                every
            };
            return grid.at(now + next, every);
        }
        life.pace = Some(Pace::Close);
        let every = next_interval(state, is_reading);
        grid.at(now + every, every)
    }

    fn ask(&self, state: &mut PortState, vitals: Option<Vitals>) {
        state.life.questions += 1;
        state.machine.ask_for_sign(state.life.questions);
        state.life.asked = Some(Asked {
            confirmed: vitals.map_or(state.life.sent, |vitals| vitals.confirmed),
            with_question: None,
        });
        self.transmit_now(state);
    }

    fn found_dead(&self, state: &mut PortState, silent: Duration) {
        let what = format!("no sign of life for {:.1} s", silent.as_secs_f32());
        state.life.dead = true;
        self.fail(state, Error::new(ErrorKind::TimedOut, what));
    }
}

/// True while signs of life are of use.
fn is_up(state: &PortState) -> bool {
    state.machine.lifecycle() == Lifecycle::Connected
        && state.machine.fault().is_none()
        && state.closing == Closing::No
        // Whoever has ended its stream may have left: a byte now would reset the connection under
        // what it sent before.
        && !state.peer_finished
}

/// Whether anything has come since the last visit, `elapsed` ago, by what the system says. In doubt
/// it has; not so at a port that rested, to which much may have come in the moment before that, and
/// which is told of what comes after.
fn has_come(silent: Duration, elapsed: Duration, rested: bool) -> bool {
    if rested {
        silent + SLACK < elapsed
    } else {
        silent < elapsed + SLACK
    }
}

/// When the last byte came, or a moment before that.
fn heard_at(state: &PortState, now: Instant) -> Instant {
    let vitals = state.link.as_ref().and_then(|link| link.vitals());
    let silent = vitals.map(|vitals| vitals.silent + SLACK);
    silent
        .and_then(|silent| now.checked_sub(silent))
        .unwrap_or(now)
}

/// Gives back what is kept for what may be queued soon.
fn shrink(state: &mut PortState) {
    state.machine.shrink();
    if let Some(link) = &mut state.link {
        link.shrink();
    }
}

/// How often the peer must be looked at for what this side has outstanding; `None`: it need not.
fn wanted_pace(state: &PortState) -> Option<Pace> {
    let machine = &state.machine;
    if machine.awaits_peer() {
        Some(Pace::Close)
    } else if machine.outstanding() > 0 && machine.gives_signs() {
        Some(Pace::Idle)
    } else {
        None
    }
}

/// Until the first visit at idle pace: what becomes idle together is spread evenly over half of the
/// interval, and so it stays. The two sides of a connection differ, so that one of them asks first,
/// and the other has heard of it.
fn first_idle_visit_after(every: Duration, spread: f64) -> Duration {
    every / 2 + (every / 2).mul_f64(spread)
}

/// Until the next visit at close pace: our own interval, or, of a side that does not read, the
/// peer's if that is shorter.
fn next_interval(state: &PortState, is_reading: bool) -> Duration {
    let ours = state.life.config;
    if is_reading {
        return ours.interval;
    }
    let theirs = match state.machine.peer_asks_after_ms() {
        Some(0) => INTERVAL_MAX,
        Some(ms) => Duration::from_millis(ms.into()).max(INTERVAL_MIN),
        None => PEER_INTERVAL_DEFAULT,
    };
    if ours.is_off() {
        theirs
    } else {
        theirs.min(ours.interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::EndpointId;

    /// What came in the moment in which a port went to rest is no sign of life since: else none of
    /// those that rest together would ask.
    #[test]
    fn what_came_before_a_rest_is_nothing_new() {
        let rest = Duration::from_secs(30);
        assert!(!has_come(rest + SLACK / 2, rest, true));
        assert!(!has_come(rest, rest, true));
        assert!(has_come(rest / 2, rest, true));
        assert!(has_come(rest + SLACK / 2, rest, false), "the clocks differ");
        assert!(!has_come(rest + 2 * SLACK, rest, false));
    }

    /// "no thundering herd": of thousands of connections that become idle at the same moment, no
    /// second sees more than its share.
    #[test]
    fn idle_visits_are_spread_over_the_interval() {
        let every = Liveness::default().idle_interval;
        let grid = VisitGrid {
            epoch: Instant::now(),
        };
        let mut visits = std::collections::BTreeMap::new();
        for _ in 0..10_000 {
            let spread = EndpointId::next().spread(7);
            let after = first_idle_visit_after(every, spread);
            *visits
                .entry(grid.at(grid.epoch + after, every))
                .or_insert(0) += 1;
        }
        assert!(visits.len() <= 40, "{} wake-ups in 30 s", visits.len());
        let most = visits.values().max().copied();
        assert!(most < Some(500), "{most:?} at once");
    }
}

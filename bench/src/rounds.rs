//! Runs a case: rounds in which every subject has its turn, one after the other, until enough of
//! them were quiet.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use crate::bounce;
use crate::case::{Case, Figures, Placement};
use crate::launch::Launcher;
use crate::link::Link;
use crate::lock;
use crate::noise::{self, Watch};
use crate::options::Options;
use crate::pin::Cpus;
use crate::spread::Spread;
use crate::subject::{SUBJECTS, Subject};

/// Rounds that count.
const ROUNDS: usize = 7;
const ROUNDS_QUICK: usize = 2;
/// Rounds begun before a case is given up, for each that shall count.
const TRIES_PER_ROUND: usize = 6;
/// How long a round waits for a quiet machine before it is tried all the same.
const PATIENCE: Duration = Duration::from_secs(20);
/// Runs of a subject that may fail in a case, before it is left out of the rest.
const FAILURES_MAX: usize = 2;

/// How cases are run.
#[derive(Debug)]
pub struct Plan {
    launcher: Launcher,
    cpus: Cpus,
    links: Vec<Link>,
    rounds: usize,
    keep_noisy: bool,
    only_subjects: Vec<String>,
}

impl Plan {
    pub fn new(
        options: &Options,
        cpus: Cpus,
        driver: Option<PathBuf>,
        has_ucx: bool,
        links: Vec<Link>,
    ) -> Plan {
        let rounds = if options.quick { ROUNDS_QUICK } else { ROUNDS };
        Plan {
            launcher: Launcher { driver, has_ucx },
            cpus,
            links,
            rounds: options.rounds.unwrap_or(rounds).max(1),
            keep_noisy: options.keep_noisy || options.quick,
            only_subjects: options.subject.clone(),
        }
    }

    /// Runs a subject once, where the case is placed.
    fn run(&self, subject: &Subject, case: &Case) -> Result<Figures> {
        let link = match case.placement {
            Placement::Link(spec) => self.links.iter().find(|link| link.spec() == spec),
            _ => None,
        };
        let cpus = self.cpus.placed(case.placement);
        self.launcher.run(subject, &case.job, cpus, link)
    }

    fn subjects(&self, case: &Case) -> Vec<&'static Subject> {
        let wanted = |subject: &&Subject| {
            let only = &self.only_subjects;
            only.is_empty() || only.iter().any(|part| subject.is_named(part))
        };
        let fits = |subject: &&Subject| subject.fits(&case.job, case.placement);
        let has = |subject: &&Subject| self.launcher.has(subject);
        SUBJECTS
            .iter()
            .filter(wanted)
            .filter(fits)
            .filter(has)
            .collect()
    }
}

/// What a case gave.
#[derive(Debug)]
pub struct Outcome {
    pub case: Case,
    pub subjects: Vec<&'static Subject>,
    pub rounds: Vec<Round>,
    /// Rounds in which others took too much of the time.
    pub thrown_away: usize,
    /// Subjects that failed, and why.
    pub failures: Vec<(&'static str, String)>,
}

/// One round that counts.
#[derive(Debug, Default)]
pub struct Round {
    /// By subject; one that failed is not there.
    pub facts: BTreeMap<&'static str, Figures>,
    pub bounce_ns: f64,
    pub lock_ns: f64,
    pub others_share: f64,
}

/// Runs a case.
pub fn run(plan: &Plan, case: Case) -> Outcome {
    let subjects = plan.subjects(&case);
    let mut outcome = Outcome {
        case,
        subjects,
        rounds: Vec::new(),
        thrown_away: 0,
        failures: Vec::new(),
    };
    if outcome.case.is_shared {
        let round = shared_round(plan, &mut outcome);
        outcome.rounds.push(round);
        return outcome;
    }
    let bar = bar(&outcome, plan.rounds);
    for turn in 0..plan.rounds * TRIES_PER_ROUND {
        if outcome.rounds.len() == plan.rounds {
            break;
        }
        let round = one_round(plan, &mut outcome, turn, &bar);
        if round.others_share > noise::SHARE_MAX && !plan.keep_noisy {
            outcome.thrown_away += 1;
        } else {
            outcome.rounds.push(round);
        }
    }
    bar.finish_and_clear();
    outcome
}

/// All subjects at the same time.
fn shared_round(plan: &Plan, outcome: &mut Outcome) -> Round {
    let cpus = plan.cpus.placed(outcome.case.placement);
    let mut round = Round {
        bounce_ns: bounce::nanoseconds(plan.cpus),
        lock_ns: lock::nanoseconds(plan.cpus),
        ..Round::default()
    };
    let watch = Watch::start(cpus);
    let case = &outcome.case;
    let ended: Vec<_> = thread::scope(|scope| {
        let run =
            |subject: &'static Subject| (subject.name, scope.spawn(|| plan.run(subject, case)));
        let running: Vec<_> = outcome
            .subjects
            .iter()
            .map(|subject| run(subject))
            .collect();
        running
            .into_iter()
            .map(|(name, run)| (name, run.join()))
            .collect()
    });
    round.others_share = watch.others_share();
    for (name, ended) in ended {
        match ended {
            Ok(Ok(facts)) => drop(round.facts.insert(name, facts)),
            Ok(Err(error)) => outcome.failures.push((name, format!("{error:#}"))),
            Err(_) => outcome
                .failures
                .push((name, "its launcher panicked".to_owned())),
        }
    }
    round
}

fn one_round(plan: &Plan, outcome: &mut Outcome, turn: usize, bar: &ProgressBar) -> Round {
    let cpus = plan.cpus.placed(outcome.case.placement);
    if !plan.keep_noisy {
        noise::wait_for_quiet(plan.cpus, PATIENCE);
    }
    let mut round = Round {
        bounce_ns: bounce::nanoseconds(plan.cpus),
        lock_ns: lock::nanoseconds(plan.cpus),
        ..Round::default()
    };
    let watch = Watch::start(cpus);
    // Each round begins with the next subject, so that none is always the first, or always behind
    // the same one.
    let count = outcome.subjects.len();
    for at in 0..count {
        let subject = outcome.subjects[(turn + at) % count];
        bar.set_message(subject.name);
        let failed = outcome
            .failures
            .iter()
            .filter(|(name, _)| *name == subject.name)
            .count();
        if failed == FAILURES_MAX {
            continue;
        }
        match plan.run(subject, &outcome.case) {
            Ok(facts) => drop(round.facts.insert(subject.name, facts)),
            Err(error) => outcome.failures.push((subject.name, format!("{error:#}"))),
        }
        bar.inc(1);
        round.others_share = watch.others_share();
        // Some have been disturbed already: nothing that follows can save this round.
        if round.others_share > noise::SHARE_MAX && !plan.keep_noisy {
            break;
        }
    }
    round
}

fn bar(outcome: &Outcome, rounds: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len} {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new((outcome.subjects.len() * rounds) as u64).with_style(style);
    bar.set_prefix(outcome.name());
    bar
}

impl Outcome {
    /// What the case is called in messages.
    pub fn name(&self) -> String {
        let measure = self
            .case
            .quantities
            .first()
            .map_or("", |quantity| quantity.measure);
        format!(
            "{measure}, {}, {}",
            self.case.what,
            self.case.placement.name()
        )
    }

    /// The figure of a subject over the rounds.
    pub fn value(&self, quantity: usize, subject: &str) -> Option<Spread> {
        Spread::of(
            self.rounds
                .iter()
                .filter_map(|round| self.read(quantity, round, subject)),
        )
    }

    /// The subject's figure divided by the peer's, of the same round each.
    pub fn ratio(&self, quantity: usize, subject: &str, peer: &str) -> Option<Spread> {
        Spread::of(self.rounds.iter().filter_map(|round| {
            let ours = self.read(quantity, round, subject)?;
            Some(ours / self.read(quantity, round, peer)?)
        }))
    }

    fn read(&self, quantity: usize, round: &Round, subject: &str) -> Option<f64> {
        let read = self.case.quantities[quantity].read;
        read(round.facts.get(subject)?, &self.case.job)
    }

    /// How the rounds went, in one line or more.
    pub fn summary(&self) -> String {
        let bounce = Spread::of(self.rounds.iter().map(|round| round.bounce_ns));
        let others = Spread::of(self.rounds.iter().map(|round| round.others_share));
        let mut text = format!("{}: {} rounds", self.name(), self.rounds.len());
        if self.thrown_away > 0 {
            text += &format!(", {} thrown away as too noisy", self.thrown_away);
        }
        if let (Some(bounce), Some(others)) = (bounce, others) {
            text += &format!(
                "; bounce {:.0} ns ({:.0}..{:.0}); others took {:.0} % ({:.0}..{:.0})",
                bounce.median,
                bounce.min,
                bounce.max,
                others.median * 100.0,
                others.min * 100.0,
                others.max * 100.0
            );
        }
        for (subject, why) in &self.failures {
            text += &format!("\n  {subject} failed: {why}");
        }
        text
    }
}

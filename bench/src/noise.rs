//! How much of the processors other processes took during a round.

use std::time::{Duration, Instant};

use rustix::param::clock_ticks_per_second;

use crate::pin::Cpus;
use crate::sys;

/// Above this share of the time a round is thrown away.
pub const SHARE_MAX: f64 = 0.12;

/// The beginning of a stretch of time.
#[derive(Debug)]
pub struct Watch {
    cpus: Cpus,
    begin: Instant,
    busy: Duration,
    ours: Duration,
}

impl Watch {
    pub fn start(cpus: Cpus) -> Watch {
        Watch {
            cpus,
            begin: Instant::now(),
            busy: busy(cpus),
            ours: ours(),
        }
    }

    /// The share of the time of these processors that neither idled nor was ours.
    pub fn others_share(&self) -> f64 {
        let processors = if self.cpus.client == self.cpus.server {
            1.0
        } else {
            2.0
        };
        let time = self.begin.elapsed().as_secs_f64() * processors;
        let busy = busy(self.cpus).saturating_sub(self.busy);
        let ours = ours().saturating_sub(self.ours);
        busy.saturating_sub(ours).as_secs_f64() / time
    }
}

/// How long the processors have to be quiet before a round is begun.
const LOOK: Duration = Duration::from_millis(100);

/// Waits until no other process works on these processors, or until `patience` is over.
pub fn wait_for_quiet(cpus: Cpus, patience: Duration) {
    let until = Instant::now() + patience;
    loop {
        let watch = Watch::start(cpus);
        std::thread::sleep(LOOK);
        if watch.others_share() <= SHARE_MAX || Instant::now() > until {
            return;
        }
    }
}

/// CPU time of this program: of its ends, and its own.
fn ours() -> Duration {
    sys::children_cpu() + sys::process_cpu(std::process::id())
}

/// Time that processes used, and that the machine below took away, of these processors. Interrupts
/// are left out: those of our own traffic are counted with them.
fn busy(cpus: Cpus) -> Duration {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let mut processors = vec![cpus.client, cpus.server];
    processors.dedup();
    let ticks: u64 = processors.iter().filter_map(|cpu| line(&stat, *cpu)).sum();
    Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64)
}

/// user + nice + system + steal of one processor, in ticks (`proc(5)`).
fn line(stat: &str, cpu: usize) -> Option<u64> {
    let name = format!("cpu{cpu} ");
    let fields = stat.lines().find_map(|line| line.strip_prefix(&name))?;
    let fields: Vec<u64> = fields
        .split_whitespace()
        .filter_map(|field| field.parse().ok())
        .collect();
    Some([0, 1, 2, 7].iter().filter_map(|at| fields.get(*at)).sum())
}

#[test]
fn a_processors_line_is_found_and_added_up() {
    let stat = "cpu  9 9 9\ncpu0 1 2 3 4 5 6 7 8 9 10\ncpu1 10 0 0 0 0 0 0 5 0 0\n";
    assert_eq!(line(stat, 0), Some(1 + 2 + 3 + 8));
    assert_eq!(line(stat, 1), Some(15));
    assert_eq!(line(stat, 2), None);
}

//! What happened in a run, and when by virtual time.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};

use tokio::time::Instant;

#[derive(Clone)]
pub struct Recorder {
    start: Instant,
    lines: Arc<Mutex<Vec<String>>>,
}

/// All that was recorded.
pub struct Trace {
    pub lines: Vec<String>,
    pub hash: u64,
}

impl Recorder {
    pub fn new() -> Self {
        Recorder {
            start: Instant::now(),
            lines: Arc::default(),
        }
    }

    pub fn note(&self, what: impl fmt::Display) {
        let line = format!("{:?} {what}", self.start.elapsed());
        self.lines.lock().unwrap().push(line);
    }

    pub fn finish(&self) -> Trace {
        let lines = std::mem::take(&mut *self.lines.lock().unwrap());
        let mut hasher = DefaultHasher::new();
        lines.hash(&mut hasher);
        Trace {
            hash: hasher.finish(),
            lines,
        }
    }
}

impl Trace {
    /// Where two traces part.
    pub fn difference(&self, other: &Trace) -> String {
        let both = self.lines.iter().zip(&other.lines);
        let same = both.take_while(|(one, two)| one == two).count();
        let from = same.saturating_sub(3);
        let part = |lines: &[String]| lines[from..lines.len().min(same + 4)].join("\n  ");
        let (one, two) = (part(&self.lines), part(&other.lines));
        format!("after {same} lines\n  {one}\nbut then\n  {two}")
    }
}

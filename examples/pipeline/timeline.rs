//! Draws with letters when each stage worked: 80 columns, wherever it is printed.

use std::fmt;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Read,
    Register,
    Transfer,
}

impl Stage {
    const ALL: [(Stage, char, &str); 3] = [
        (Stage::Read, '.', "reading"),
        (Stage::Register, '#', "registering"),
        (Stage::Transfer, '=', "transferring"),
    ];
}

/// The time during which a stage had a batch.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    stage: Stage,
    begin: Instant,
    end: Instant,
}

impl Span {
    /// Returns the span from `begin` until now.
    pub fn since(stage: Stage, begin: Instant) -> Span {
        Span {
            stage,
            begin,
            end: Instant::now(),
        }
    }

    fn time(&self) -> Duration {
        self.end - self.begin
    }

    /// Returns how long the two spans overlap.
    fn overlap(&self, other: &Span) -> Duration {
        let begin = self.begin.max(other.begin);
        self.end.min(other.end).saturating_duration_since(begin)
    }
}

/// The batches that were sent, in order.
#[derive(Debug, Default)]
pub struct Timeline {
    batches: Vec<(u64, usize, Vec<Span>)>,
}

impl Timeline {
    pub fn add(&mut self, rows: u64, bytes: usize, spans: Vec<Span>) {
        self.batches.push((rows, bytes, spans));
    }

    pub fn batches(&self) -> usize {
        self.batches.len()
    }

    fn spans(&self) -> impl Iterator<Item = &Span> {
        self.batches.iter().flat_map(|(_, _, spans)| spans)
    }

    fn of_stage(&self, stage: Stage) -> impl Iterator<Item = &Span> {
        self.spans().filter(move |span| span.stage == stage)
    }
}

/// Columns of the drawing; the rest of 80 names the batch.
const COLUMNS: usize = 56;

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(begin), Some(end)) = (
            self.spans().map(|span| span.begin).min(),
            self.spans().map(|span| span.end).max(),
        ) else {
            return writeln!(f, "There was nothing to send.");
        };
        let whole = end - begin;
        let column = |at: Instant| {
            let part = (at - begin).as_secs_f64() / whole.as_secs_f64();
            ((part * COLUMNS as f64) as usize).min(COLUMNS - 1)
        };
        let ms = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
        let width = COLUMNS - 1;
        writeln!(f, "batch     rows    KiB  0{:>width$}", ms(whole))?;
        for (number, (rows, bytes, spans)) in self.batches.iter().enumerate() {
            let mut line = [' '; COLUMNS];
            for (stage, letter, _) in Stage::ALL {
                for span in spans.iter().filter(|span| span.stage == stage) {
                    line[column(span.begin)..=column(span.end)].fill(letter);
                }
            }
            let line: String = line.iter().collect();
            let line = line.trim_end();
            writeln!(
                f,
                "{number:>5} {rows:>8} {:>6}  {line}",
                bytes.div_ceil(1024)
            )?;
        }
        let mut after_each_other = Duration::ZERO;
        for (stage, letter, name) in Stage::ALL {
            let time = self.of_stage(stage).map(Span::time).sum();
            after_each_other += time;
            writeln!(f, "{letter} {name:<12} {:>10}", ms(time))?;
        }
        let transfers = || self.of_stage(Stage::Transfer);
        let beside = |span: &Span| transfers().map(|it| it.overlap(span)).sum::<Duration>();
        let registers = || self.of_stage(Stage::Register);
        writeln!(
            f,
            "{} of {} registrations ran beside a transfer, {} of {}.",
            registers().filter(|it| !beside(it).is_zero()).count(),
            self.batches.len(),
            ms(registers().map(beside).sum()),
            ms(registers().map(Span::time).sum()),
        )?;
        writeln!(
            f,
            "All of it took {}; one after the other it would have been {}.",
            ms(whole),
            ms(after_each_other),
        )?;
        writeln!(f, "Every batch arrived as it was sent.")
    }
}

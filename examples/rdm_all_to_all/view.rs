//! The display while the program runs: on a terminal a matrix of messages per second, with senders
//! as rows and receivers as columns; elsewhere one line per second.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::board::Count;
use crate::party::Party;
use crate::status::Status;

/// The smallest terminal width: a label, and cells of five columns.
const WIDTH: usize = 80;
const LABEL: usize = 7;
const CELLS_MAX: usize = 14;

#[derive(Debug)]
struct Sample {
    time: Duration,
    /// Bytes of each message.
    size: usize,
    /// The rate of each endpoint of this process (row) to each member (column).
    rows: Vec<Vec<Cell>>,
    errors: BTreeMap<String, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Cell {
    /// Messages per second.
    Rate(f64),
    /// The endpoint itself, which is not a pair.
    Itself,
    /// Why the member is not reached.
    Not(&'static str),
}

pub struct View {
    start: Instant,
    last: Instant,
    /// The count of each pair at the last sample.
    before: Vec<(Arc<Count>, u64)>,
    form: Form,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Number of lines on the screen, to write over.
    Matrix(usize),
    Lines,
    /// Notes only, to standard error.
    Notes,
}

impl View {
    pub fn new(json: bool) -> View {
        let form = match (json, std::io::stdout().is_terminal()) {
            (true, _) => Form::Notes,
            (false, true) => Form::Matrix(0),
            (false, false) => Form::Lines,
        };
        View {
            start: Instant::now(),
            last: Instant::now(),
            before: Vec::new(),
            form,
        }
    }

    pub fn interval(&self) -> Duration {
        match self.form {
            Form::Matrix(_) => Duration::from_millis(250),
            _ => Duration::from_secs(1),
        }
    }

    /// Shows what happened since the last call. Output that cannot be written is dropped.
    pub fn show(&mut self, party: &Party) {
        let notes = party.board.take_notes();
        let sample = self.sample(party);
        let mut text = String::new();
        match &mut self.form {
            Form::Notes => {
                for note in notes {
                    let _ = writeln!(std::io::stderr(), "{note}");
                }
            }
            Form::Lines => {
                let lines = notes.into_iter().chain([sample.line()]);
                lines.for_each(|line| text.extend([&line, "\n"]));
            }
            Form::Matrix(on_screen) => {
                if *on_screen > 0 {
                    let _ = write!(text, "\x1b[{on_screen}A");
                }
                let lines = sample.matrix();
                *on_screen = lines.len();
                // Each line clears the old line; the end clears the rest of the screen.
                for line in notes.into_iter().chain(lines) {
                    let _ = writeln!(text, "{line}\x1b[K");
                }
                text.push_str("\x1b[J");
            }
        }
        let _ = std::io::stdout().write_all(text.as_bytes());
        let _ = std::io::stdout().flush();
    }

    /// Shows the notes that have not been shown.
    pub fn show_notes(&self, party: &Party) {
        for note in party.board.take_notes() {
            let _ = match self.form {
                Form::Notes => writeln!(std::io::stderr(), "{note}"),
                _ => writeln!(std::io::stdout(), "{note}"),
            };
        }
    }

    fn sample(&mut self, party: &Party) -> Sample {
        let (now, members) = (Instant::now(), party.members());
        let seconds = now.duration_since(self.last).as_secs_f64().max(1e-9);
        let blank = members.iter().map(|member| match member.status() {
            Status::Lost => Cell::Not("lost"),
            Status::Gone => Cell::Not("gone"),
            Status::Left => Cell::Not("left"),
            Status::New => Cell::Not("..."),
            Status::Living => Cell::Itself,
        });
        let blank: Vec<Cell> = blank.collect();
        let mut rows = vec![blank; party.locals.len()];
        let mut done = Vec::new();
        for pair in party.board.pairs() {
            let count = pair.done.load(Relaxed);
            let known = self.before.iter().find(|it| Arc::ptr_eq(&it.0, &pair));
            let before = known.map_or(0, |it| it.1);
            let cell = rows.get_mut(pair.from).and_then(|row| row.get_mut(pair.to));
            if let Some(cell @ Cell::Itself) = cell {
                *cell = Cell::Rate((count - before) as f64 / seconds);
            }
            done.push((pair, count));
        }
        (self.before, self.last) = (done, now);
        Sample {
            time: now.duration_since(self.start),
            size: party.options.size(),
            rows,
            errors: party.board.errors(),
        }
    }
}

impl Sample {
    /// The living pairs: from, to, and messages per second.
    fn pairs(&self) -> impl Iterator<Item = (usize, usize, f64)> {
        let rows = self.rows.iter().enumerate();
        rows.flat_map(|(from, row)| {
            row.iter()
                .enumerate()
                .filter_map(move |(to, cell)| match cell {
                    Cell::Rate(rate) => Some((from, to, *rate)),
                    _ => None,
                })
        })
    }

    fn line(&self) -> String {
        format!("{}  errors {}", self.total(), errors(&self.errors))
    }

    /// Returns the total rate of all pairs, and the slowest pair.
    fn total(&self) -> String {
        let total = self.pairs().map(|it| it.2).sum();
        let mut line = format!(
            "{:4.0} s  {} pairs  {}/s  {}B/s",
            self.time.as_secs_f64(),
            self.pairs().count(),
            short(total),
            short(total * self.size as f64)
        );
        if let Some((from, to, rate)) = self.pairs().min_by(|a, b| a.2.total_cmp(&b.2)) {
            let _ = write!(line, "  slowest {from} to {to}: {}/s", short(rate));
        }
        line
    }

    /// Returns a table, and two lines below it.
    fn matrix(&self) -> Vec<String> {
        let columns = self.rows.first().map_or(0, Vec::len);
        let heads = (0..columns).map(|to| to.to_string());
        let heads = fold(heads.collect(), |_| "rest".to_owned());
        let rows: Vec<Vec<Cell>> = self.rows.iter().map(|row| fold(row.clone(), sum)).collect();
        let labels = (0..rows.len()).map(|from| from.to_string());
        let labels = fold(labels.collect(), |_| "rest".to_owned());
        let rows = fold(rows, |rest| {
            let width = rest[0].len();
            let column = |to: usize| rest.iter().map(|row| row[to]).collect();
            (0..width).map(|to| sum(column(to))).collect()
        });
        let line = |label: &str, cells: Vec<String>| {
            let cells = cells.iter().fold(String::new(), |mut line, cell| {
                let _ = write!(line, " {cell:>4}");
                line
            });
            format!("{label:>LABEL$}{cells}")
        };
        let mut lines = vec![line("from/to", heads)];
        for (label, row) in labels.iter().zip(rows) {
            lines.push(line(label, row.into_iter().map(Cell::text).collect()));
        }
        lines.push(self.total());
        lines.push(format!("errors {}", errors(&self.errors)));
        for line in &mut lines {
            // Cut to the width, so that the terminal does not break the line in two.
            *line = line.chars().take(WIDTH).collect();
        }
        lines
    }
}

impl Cell {
    fn text(self) -> String {
        match self {
            Cell::Rate(rate) => short(rate),
            Cell::Itself => "-".to_owned(),
            Cell::Not(what) => what.to_owned(),
        }
    }
}

/// Limits the items to the room there is; the last item represents the rest.
fn fold<T>(mut items: Vec<T>, to_one: impl FnOnce(Vec<T>) -> T) -> Vec<T> {
    if items.len() > CELLS_MAX {
        let rest = items.split_off(CELLS_MAX - 1);
        items.push(to_one(rest));
    }
    items
}

fn sum(cells: Vec<Cell>) -> Cell {
    Cell::Rate(cells.into_iter().fold(0.0, |sum, cell| match cell {
        Cell::Rate(rate) => sum + rate,
        _ => sum,
    }))
}

/// Formats a number in four characters.
pub fn short(number: f64) -> String {
    let units = ["", "k", "M", "G", "T"];
    let (mut rest, mut unit) = (number.abs(), 0);
    while rest >= 999.5 && unit + 1 < units.len() {
        (rest, unit) = (rest / 1e3, unit + 1);
    }
    match unit > 0 && rest < 9.95 {
        true => format!("{rest:.1}{}", units[unit]),
        false => format!("{rest:.0}{}", units[unit]),
    }
}

/// Formats the number of errors of each kind.
pub fn errors(errors: &BTreeMap<String, u64>) -> String {
    match errors.is_empty() {
        true => "none".to_owned(),
        false => {
            let each = errors.iter().map(|(kind, count)| format!("{count} {kind}"));
            each.collect::<Vec<_>>().join(", ")
        }
    }
}

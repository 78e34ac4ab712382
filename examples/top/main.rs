//! Shows live what a running program does: rates, bytes, queues, peers, the longest turns of its
//! drivers. The program serves its statistics, as `rdm_all_to_all --stats PATH` does.
//!
//! ```text
//! cargo run --release --example rdm_all_to_all -- --seconds 0 --stats /tmp/stats &
//! cargo run --example top -- /tmp/stats
//! cargo run --example top -- /tmp/stats --once             # one page of text
//! cargo run --example top -- /tmp/stats --prometheus 9100  # the same for Prometheus
//! ```

mod prometheus;
mod reading;
mod svg;
mod view;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};

use reading::{Reading, Source, StatsAddress};

/// Shows what a running program counts, twice a second. `q` ends it.
#[derive(Debug, Parser)]
#[command(name = "top", version)]
struct Options {
    /// Where the program serves its statistics: a path, or IP:PORT of this machine
    #[arg(value_name = "ADDR")]
    at: StatsAddress,
    /// Between two readings
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 500,
          value_parser = clap::value_parser!(u64).range(10..=60_000))]
    interval: u64,
    /// Print one page of text, of two readings, and end
    #[arg(long)]
    once: bool,
    /// The same as a picture
    #[arg(long, value_name = "PATH")]
    svg: Option<PathBuf>,
    /// Serve the readings at this port of this machine, for Prometheus
    #[arg(long, value_name = "PORT")]
    prometheus: Option<u16>,
}

/// Columns and lines of a page that is not on a terminal.
const PAGE: (u16, u16) = (100, 34);

fn main() -> Result<()> {
    let options = Options::parse();
    if let Some(port) = options.prometheus {
        return prometheus::serve(&options.at, port);
    }
    let mut source = Source::open(&options.at)?;
    let interval = Duration::from_millis(options.interval);
    if options.once || options.svg.is_some() {
        return page(&mut source, interval, &options);
    }
    let mut terminal = ratatui::init();
    let shown = live(&mut terminal, &mut source, interval);
    ratatui::restore();
    shown
}

/// Draws until the user quits or the observed program ends.
fn live(
    terminal: &mut ratatui::DefaultTerminal,
    source: &mut Source,
    interval: Duration,
) -> Result<()> {
    let mut before = source.read()?;
    loop {
        let now = source.read()?;
        terminal.draw(|frame| view::draw(frame, &before, &now))?;
        before = now;
        if event::poll(interval)?
            && let Event::Key(key) = event::read()?
        {
            let is_interrupt = key.modifiers.contains(KeyModifiers::CONTROL);
            if key.code == KeyCode::Char('q') || key.code == KeyCode::Char('c') && is_interrupt {
                return Ok(());
            }
        }
    }
}

fn page(source: &mut Source, interval: Duration, options: &Options) -> Result<()> {
    let before = source.read()?;
    std::thread::sleep(interval);
    let now = source.read()?;
    let buffer = render(&before, &now)?;
    if let Some(path) = &options.svg {
        let picture = svg::of(&buffer);
        std::fs::write(path, picture)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if options.once {
        let mut out = std::io::stdout().lock();
        for line in svg::lines(&buffer) {
            writeln!(out, "{}", line.trim_end())?;
        }
    }
    Ok(())
}

fn render(before: &Reading, now: &Reading) -> Result<ratatui::buffer::Buffer> {
    let mut terminal = Terminal::new(TestBackend::new(PAGE.0, PAGE.1))?;
    terminal.draw(|frame| view::draw(frame, before, now))?;
    Ok(terminal.backend().buffer().clone())
}

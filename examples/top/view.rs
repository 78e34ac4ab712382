//! The page: what was transferred between two readings, and what was held at the second.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Row, Table};
use serde_json::Value;

use crate::reading::{Reading, number};

const KINDS: [&str; 5] = ["sends", "receives", "writes", "reads", "atomics"];

pub fn draw(frame: &mut Frame<'_>, before: &Reading, now: &Reading) {
    let shards = now.list("/shards").len() as u16;
    let rows = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(KINDS.len() as u16 + 3),
        Constraint::Length(6),
        Constraint::Length(shards + 3),
        Constraint::Min(3),
    ]);
    let [head, operations, queues, drivers, peers] = rows.areas(frame.area());
    let title = format!(
        "{} {}  {}  up {:.0} s  {} endpoints",
        now.text("/program"),
        now.number("/pid"),
        now.text("/backend"),
        now.seconds(),
        now.list("/endpoints").len()
    );
    frame.render_widget(Line::from(title).bold(), head);
    draw_operations(frame, operations, before, now);
    draw_queues(frame, queues, now);
    draw_drivers(frame, drivers, before, now);
    draw_peers(frame, peers, before, now);
}

fn seconds_between(before: &Reading, now: &Reading) -> f64 {
    (now.seconds() - before.seconds()).max(1e-9)
}

fn table<'a>(title: &'a str, head: &[&'a str], rows: Vec<Row<'a>>) -> Table<'a> {
    let first = Constraint::Length(22);
    let others = head.iter().skip(1).map(|_| Constraint::Length(11));
    let head = Row::new(head.iter().map(|it| (*it).to_owned())).dim();
    Table::new(rows, std::iter::once(first).chain(others))
        .header(head)
        .block(Block::bordered().title(title))
}

fn draw_operations(frame: &mut Frame<'_>, area: Rect, before: &Reading, now: &Reading) {
    let seconds = seconds_between(before, now);
    let rows = KINDS.map(|kind| {
        let at = |field: &str| format!("/stats/operations/{kind}/{field}");
        let rate = |field: &str| (now.sum(&at(field)) - before.sum(&at(field))) / seconds;
        let failed = now.sum(&at("failed"));
        let style = if failed > 0.0 {
            Color::Red
        } else {
            Color::Reset
        };
        Row::new([
            Span::raw(kind),
            Span::raw(short(rate("succeeded"))),
            Span::raw(short(rate("bytes"))),
            Span::raw(short(now.sum(&at("succeeded")))),
            Span::raw(short(now.sum(&at("canceled")))),
            Span::styled(short(failed), Style::new().fg(style)),
        ])
    });
    let head = [
        "operations",
        "per s",
        "B per s",
        "done",
        "canceled",
        "failed",
    ];
    frame.render_widget(table(" Operations ", &head, rows.into()), area);
}

fn draw_queues(frame: &mut Frame<'_>, area: Rect, now: &Reading) {
    let sum = |at: &str| short(now.sum(&format!("/stats/{at}")));
    let lines = [
        vec![
            ("in flight", sum("in_flight")),
            ("waiting", sum("waiting")),
            ("receives posted", sum("receives/posted")),
            ("receives waiting", sum("receives/waiting")),
        ],
        vec![
            ("unexpected", sum("receives/unexpected_messages")),
            ("their bytes", sum("receives/unexpected_bytes")),
            ("credit left", sum("credit_bytes")),
            ("stalls", sum("stalls")),
        ],
        vec![
            ("connections", sum("connections")),
            ("of these local", sum("connections_local")),
            ("made", sum("connects")),
            ("lost or failed", sum("losses")),
        ],
        vec![
            ("made again", sum("reconnects")),
            ("missed", sum("probe_misses")),
            ("regions", short(now.number("/domain/regions"))),
            ("accesses served", sum("accesses")),
        ],
    ];
    let lines = lines.map(|fields| {
        let spans = fields.into_iter().flat_map(|(name, value)| {
            let is_alarm = matches!(name, "lost or failed" | "missed") && value != "0";
            let value = Span::raw(format!("{value:<9}"));
            let name = Span::raw(format!("{name:>16} ")).dim();
            [name, if is_alarm { value.red() } else { value }]
        });
        Line::from_iter(spans)
    });
    let page = Paragraph::new(Vec::from(lines));
    frame.render_widget(
        page.block(Block::bordered().title(" Queues and links ")),
        area,
    );
}

fn draw_drivers(frame: &mut Frame<'_>, area: Rect, before: &Reading, now: &Reading) {
    let seconds = seconds_between(before, now);
    let rows = now.list("/shards").iter().enumerate().map(|(at, shard)| {
        let earlier = before.list("/shards").get(at);
        let of = |name: &str| number(shard.get(name));
        let since = |name: &str| of(name) - number(earlier.and_then(|it| it.get(name)));
        let wakes = since("wakes");
        Row::new([
            at.to_string(),
            short(wakes / seconds),
            short(since("turns") / seconds),
            format!("{:.1}", since("completions") / wakes.max(1.0)),
            format!("{:.0} %", 100.0 * since("turn_time") / seconds),
            format!("{:.2} ms", 1e3 * of("longest_turn")),
            short(of("ports")),
        ])
    });
    let head = [
        "driver",
        "wakes/s",
        "turns/s",
        "ends/wake",
        "in turns",
        "longest",
        "ports",
    ];
    frame.render_widget(table(" Drivers ", &head, rows.collect()), area);
}

fn draw_peers(frame: &mut Frame<'_>, area: Rect, before: &Reading, now: &Reading) {
    let seconds = seconds_between(before, now);
    let earlier = before.list("/peers");
    let name_of = |peer: &Value| peer["peer"].as_str().unwrap_or_default().to_owned();
    let mut peers: Vec<&Value> = now.list("/peers").iter().collect();
    // Peers in trouble come first.
    let is_well = |peer: &Value| matches!(peer["is"].as_str(), Some("living" | "new"));
    peers.sort_by_key(|peer| is_well(peer));
    let rows = peers.into_iter().map(|peer| {
        let name = name_of(peer);
        let done = number(peer.get("done"));
        let was = earlier.iter().find(|it| name_of(it) == name);
        let since = done - number(was.and_then(|it| it.get("done")));
        let row = Row::new([
            name,
            peer["is"].as_str().unwrap_or_default().to_owned(),
            short(since / seconds),
            short(done),
        ]);
        match is_well(peer) {
            true => row,
            false => row.red(),
        }
    });
    let head = ["peer", "is", "per s", "done"];
    frame.render_widget(table(" Peers ", &head, rows.collect()), area);
}

/// A value in three digits, with a letter for thousands, millions and so on.
pub fn short(value: f64) -> String {
    let units = ["", "k", "M", "G", "T"];
    let mut value = value.max(0.0);
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    match (unit, value < 10.0 && value.fract() > 0.05) {
        (0, false) => format!("{value:.0}"),
        (_, true) => format!("{value:.1}{}", units[unit]),
        _ => format!("{value:.0}{}", units[unit]),
    }
}

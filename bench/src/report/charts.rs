//! The charts of docs/performance.md: a bar for every subject in a few cases, with a line from the
//! smallest to the largest of the rounds, where that is known. What users get by default is drawn
//! strongest; what spins has a lighter color and is named so, ours and others'.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::markdown::{capital, figure};
use super::results::{Figure, Results, is_ours, is_spinning};
use crate::spread::Spread;

/// What a chart shows, in which cases, of which subjects; the name of its file.
struct Chart {
    file: &'static str,
    measure: &'static str,
    /// Where; of more than one, each bar says where.
    places: &'static [&'static str],
    cases: &'static [&'static str],
    subjects: &'static [&'static str],
}

const fn chart(
    file: &'static str,
    (measure, places): (&'static str, &'static [&'static str]),
    cases: &'static [&'static str],
) -> Chart {
    Chart {
        file,
        measure,
        places,
        cases,
        subjects: &SHOWN,
    }
}

/// As [`chart`], of those that stay within a host, beside the best that do not.
const fn chart_of_one_host(
    file: &'static str,
    measure: &'static str,
    cases: &'static [&'static str],
) -> Chart {
    let subjects = &WITHIN_A_HOST;
    Chart {
        subjects,
        ..chart(file, (measure, TWO), cases)
    }
}

const ONE: &[&str] = &["same core"];
const TWO: &[&str] = &["two cores"];
/// Of docs/links.json.
const LINKS: &[&str] = &["1 Gbit/s", "1 Gbit/s, 5 ms each way", "10 Gbit/s"];
const OVER_CONNECTIONS: &str = "CPU per million messages over connections, 64 B";

const CHARTS: [Chart; 11] = [
    chart(
        "1-ping-pong",
        ("half round trip, p50", ONE),
        &["64 B", "64 KiB"],
    ),
    chart(
        "2-ping-pong-two-cores",
        ("half round trip, p50", TWO),
        &["64 B", "64 KiB"],
    ),
    chart(
        "3-messages",
        ("messages per second, 64 B", TWO),
        &["window 64", "window 256"],
    ),
    chart(
        "4-calls",
        ("calls per second", TWO),
        &["64 B, 64 under way", "64 B, 256 under way"],
    ),
    chart(
        "5-bulk-calls",
        ("calls per second", TWO),
        &["64 B and 1 MiB back, 8 under way"],
    ),
    chart(
        "6-bandwidth",
        ("bandwidth, RMA read", TWO),
        &["64 KiB", "1 MiB", "16 MiB"],
    ),
    chart(
        "7-connections",
        (OVER_CONNECTIONS, TWO),
        &["64 connections", "1024 connections"],
    ),
    chart(
        "8-beside-bulk",
        ("round trip beside bulk, p99", TWO),
        &["64 B beside 4 x 16 MiB"],
    ),
    chart_of_one_host(
        "9-one-host-ping-pong",
        "half round trip, p50",
        &["64 B", "64 KiB"],
    ),
    chart_of_one_host("10-one-host-bandwidth", "bandwidth, send", &["1 MiB"]),
    chart(
        "11-beside-bulk-over-links",
        ("small call during the transfer, p99", LINKS),
        &["64 B beside 32 MiB"],
    ),
];

/// The subjects of a chart, where they were measured. Backends and drivers that are asked for by
/// name are in the tables.
const SHOWN: [&str; 11] = [
    "tokio-fabric:epoll",
    "tokio-fabric-rpc",
    "tcp",
    "tokio",
    "tokio:gather",
    "libfabric:wait",
    "tarpc",
    "tonic",
    "tokio-fabric:epoll:spin",
    "tcp:spin",
    "libfabric:spin",
];

const WITHIN_A_HOST: [&str; 8] = [
    "tokio-fabric:local",
    "tokio-fabric:epoll",
    "tokio",
    "libfabric:wait",
    "tokio-fabric:local:spin",
    "libfabric-shm:spin",
    "ucx-shm:spin",
    "tcp:spin",
];

/// Pixels of a bar, between two cases, and of what is above and below all bars.
const BAR: u32 = 20;
const HEAD: u32 = 44;
const WIDTH: u32 = 760;
/// Pixels for the names of the bars.
const NAMES: u32 = 250;

const OURS: RGBColor = RGBColor(0x1f, 0x6f, 0xb4);
const OURS_SPINNING: RGBColor = RGBColor(0xa6, 0xc8, 0xe4);
const OTHERS: RGBColor = RGBColor(0x9a, 0xa5, 0xb1);
const OTHERS_SPINNING: RGBColor = RGBColor(0xd9, 0xde, 0xe3);

type Drawn = Result<(), Box<dyn std::error::Error>>;

/// One bar.
struct Bar {
    name: String,
    spread: Spread,
    color: RGBColor,
}

impl Results {
    /// Draws the charts whose figures are there into this directory, which is made if it is not.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn draw_charts(&self, directory: &Path) -> Result<()> {
        std::fs::create_dir_all(directory)?;
        for chart in &CHARTS {
            let places = chart.places.iter();
            let figures = places.filter_map(|place| self.figure(chart.measure, place));
            let figures: Vec<&Figure> = figures.collect();
            let bars: Vec<Bar> = figures.iter().flat_map(|of| bars(of, chart)).collect();
            if let (Some(of), false) = (figures.first(), bars.is_empty()) {
                let file = directory.join(format!("{}.svg", chart.file));
                let drawn = draw(of, chart, &bars, &file);
                drawn.map_err(|error| anyhow!("{}: {error}", file.display()))?;
            }
        }
        self.draw_overload(directory)
    }
}

fn bars(of: &Figure, chart: &Chart) -> Vec<Bar> {
    let cases = chart
        .cases
        .iter()
        .filter_map(|what| of.cases.iter().find(|case| case.what == *what));
    let bar = |case: &super::results::CaseResult, subject: &str| {
        let spread = case.value(subject)?;
        let color = match (is_ours(subject), is_spinning(subject)) {
            (true, false) => OURS,
            (true, true) => OURS_SPINNING,
            (false, false) => OTHERS,
            (false, true) => OTHERS_SPINNING,
        };
        let name = subject.replace(":epoll", "").replace(":wait", "");
        let name = name.replace(":spin", ", spinning");
        let whence = match chart.places {
            [_] => &case.what,
            _ => &of.cores,
        };
        Some(Bar {
            name: format!("{whence}, {name}"),
            spread,
            color,
        })
    };
    cases
        .flat_map(|case| {
            let subjects = chart.subjects.iter();
            subjects.filter_map(move |subject| bar(case, subject))
        })
        .collect()
}

fn draw(of: &Figure, chart: &Chart, bars: &[Bar], file: &Path) -> Drawn {
    let height = HEAD + BAR * bars.len() as u32;
    let area = SVGBackend::new(file, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    let better = if of.more_is_better { "more" } else { "less" };
    let whence = match (chart.places, chart.cases) {
        ([place], _) => place,
        (_, [case]) => case,
        _ => "over links",
    };
    let title = format!("{}, {whence}: {}, {better} is better", of.name, of.unit);
    let largest = bars.iter().map(|bar| bar.spread.max).fold(0.0, f64::max);
    let rows = bars.len() as f64;
    let mut chart = ChartBuilder::on(&area)
        .caption(capital(&title), ("sans-serif", 16))
        .margin_right(70)
        .y_label_area_size(NAMES)
        .x_label_area_size(4)
        .build_cartesian_2d(0.0..largest * 1.1, rows..0.0)?;
    for (row, bar) in bars.iter().enumerate() {
        let (row, Spread { median, min, max }) = (row as f64, bar.spread);
        let body = [(0.0, row + 0.15), (median, row + 0.85)];
        chart.draw_series([Rectangle::new(body, bar.color.filled())])?;
        let line = [(min, row + 0.5), (max, row + 0.5)];
        chart.draw_series([PathElement::new(line, BLACK)])?;
        let (x, y) = chart.backend_coord(&(max, row + 0.5));
        area.draw_text(&figure(median), &small(), (x + 4, y - 6))?;
        area.draw_text(&bar.name, &small(), (6, y - 6))?;
    }
    area.present()?;
    Ok(())
}

fn small() -> TextStyle<'static> {
    ("sans-serif", 12).into_font().color(&BLACK)
}

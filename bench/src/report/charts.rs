//! A chart of each figure: a bar for every subject in every case, on a scale of powers of ten, with
//! a line from the smallest to the largest of the rounds.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::markdown::{capital, figure};
use super::{Measured, Report};
use crate::spread::Spread;
use crate::subject::Subject;

/// Pixels of a bar and of what is above all bars.
const BAR: u32 = 18;
const HEAD: u32 = 90;
const WIDTH: u32 = 900;
/// Pixels for the names of the bars.
const NAMES: u32 = 330;

const OURS: RGBColor = RGBColor(0x1f, 0x6f, 0xb4);
const OTHERS: RGBColor = RGBColor(0x9a, 0xa5, 0xb1);

/// One bar.
struct Bar {
    name: String,
    spread: Spread,
    ours: bool,
}

impl Report {
    /// Draws a file for each figure into this directory, which is made if it is not there.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn draw_charts(&self, directory: &Path) -> Result<()> {
        std::fs::create_dir_all(directory)?;
        for measured in self.quantities() {
            let bars = measured.bars();
            if bars.len() > 1 {
                let file = directory.join(measured.file_name());
                let drawn = measured.draw(&bars, &file);
                drawn.map_err(|error| anyhow!("{}: {error}", file.display()))?;
            }
        }
        Ok(())
    }
}

impl Measured<'_> {
    /// Letters, digits and dashes.
    fn file_name(&self) -> String {
        let name = format!("{} {}", self.name, self.cores).to_lowercase();
        let words = name.split(|letter: char| !letter.is_ascii_alphanumeric());
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        format!("{}.svg", words.join("-"))
    }

    fn bars(&self) -> Vec<Bar> {
        let mut bars = Vec::new();
        for (at, outcome) in &self.cases {
            let bar = |subject: &&'static Subject| {
                // A scale of powers has no place for nothing.
                let spread = outcome.value(*at, subject.name)?;
                (spread.min > 0.0).then(|| Bar {
                    name: format!("{}, {}", outcome.case.what, subject.name),
                    spread,
                    ours: subject.is_ours(),
                })
            };
            bars.extend(outcome.subjects.iter().filter_map(bar));
        }
        bars
    }

    fn draw(&self, bars: &[Bar], file: &Path) -> Result<(), Box<dyn std::error::Error>> {
        let height = HEAD + BAR * bars.len() as u32;
        let area = SVGBackend::new(file, (WIDTH, height)).into_drawing_area();
        area.fill(&WHITE)?;
        let better = if self.more_is_better { "more" } else { "less" };
        let title = format!(
            "{}, {}: {}, {better} is better",
            self.name, self.cores, self.unit
        );
        let largest = bars
            .iter()
            .map(|bar| bar.spread.max)
            .fold(f64::MIN, f64::max);
        let smallest = bars
            .iter()
            .map(|bar| bar.spread.min)
            .fold(f64::MAX, f64::min);
        let rows = bars.len() as f64;
        let mut chart = ChartBuilder::on(&area)
            .caption(capital(&title), ("sans-serif", 17))
            .margin_right(70)
            .y_label_area_size(NAMES)
            .x_label_area_size(30)
            .build_cartesian_2d((smallest / 2.0..largest * 1.5).log_scale(), rows..0.0)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .x_label_formatter(&|value| figure(*value))
            .y_labels(0)
            .draw()?;
        for (row, bar) in bars.iter().enumerate() {
            let (row, Spread { median, min, max }) = (row as f64, bar.spread);
            let color = if bar.ours { OURS } else { OTHERS };
            let body = [(smallest / 2.0, row + 0.15), (median, row + 0.85)];
            chart.draw_series([Rectangle::new(body, color.filled())])?;
            let line = [(min, row + 0.5), (max, row + 0.5)];
            chart.draw_series([PathElement::new(line, BLACK)])?;
            let (x, y) = chart.backend_coord(&(max, row + 0.5));
            area.draw_text(&figure(median), &small(), (x + 4, y - 6))?;
            area.draw_text(&bar.name, &small(), (6, y - 6))?;
        }
        area.present()?;
        Ok(())
    }
}

fn small() -> TextStyle<'static> {
    ("sans-serif", 12).into_font().color(&BLACK)
}

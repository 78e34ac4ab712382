//! The overload curve: what is answered, and how late, by how much is offered.

use std::ops::Range;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use super::results::{CaseResult, Results};
use crate::case::Placement;
use crate::measure::rpc_overload::{ACCEPTED, GOODPUT, REFUSED};
use crate::spread::Spread;

const SIZE: (u32, u32) = (900, 360);
const COLOR: RGBColor = RGBColor(0x1f, 0x6f, 0xb4);
const OTHER: RGBColor = RGBColor(0xb4, 0x5f, 0x1f);
const SUBJECT: &str = "tokio-fabric-rpc";

/// A point: what was offered, as a share of the capacity, and a figure.
type Point = (f64, Spread);

impl Results {
    /// Draws `rpc-overload.svg`, if more than one load was measured.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn draw_overload(&self, directory: &Path) -> Result<()> {
        let goodput = self.points(GOODPUT);
        if goodput.len() < 2 {
            return Ok(());
        }
        let file = directory.join("rpc-overload.svg");
        let drawn = draw(
            &file,
            &goodput,
            &self.points(ACCEPTED),
            &self.points(REFUSED),
        );
        drawn.map_err(|error| anyhow!("{}: {error}", file.display()))
    }

    fn points(&self, figure: &str) -> Vec<Point> {
        let found = self.figure(figure, &Placement::TwoCores.name());
        let cases = found.map(|it| it.cases.as_slice()).unwrap_or_default();
        let point = |case: &CaseResult| {
            // The case's name begins with it.
            let offered = case.what.split(' ').next()?.parse().ok()?;
            Some((offered, case.value(SUBJECT)?))
        };
        cases.iter().filter_map(point).collect()
    }
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw(file: &Path, goodput: &[Point], accepted: &[Point], refused: &[Point]) -> Drawn {
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let (left, right) = area.split_horizontally(SIZE.0 / 2);
    let most = goodput.iter().map(|point| point.0).fold(1.0, f64::max);
    let x = 0.0..most * 1.05;
    let highest = goodput.iter().map(|point| point.1.max).fold(1.0, f64::max);
    let title = "Answered calls / capacity";
    let mut chart = panel(&left, title, x.clone(), 0.0..highest * 1.1)?;
    let ideal = [(0.0, 0.0), (1.0, 1.0), (most, 1.0)];
    chart.draw_series([PathElement::new(ideal, BLACK.mix(0.3))])?;
    line(&mut chart, goodput, COLOR)?;
    let all = accepted.iter().chain(refused);
    let top = all.map(|point| point.1.max).fold(2.0, f64::max) * 1.1;
    let title = "p99: accepted, relative to a full server (blue); refusal in ms (brown)";
    let mut chart = panel(&right, title, x, 0.0..top)?;
    line(&mut chart, accepted, COLOR)?;
    line(&mut chart, refused, OTHER)?;
    area.present()?;
    Ok(())
}

type Chart<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

fn panel<'a>(
    area: &DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
    title: &str,
    x: Range<f64>,
    y: Range<f64>,
) -> Result<Chart<'a>, Box<dyn std::error::Error>> {
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 15))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(40)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .x_desc("calls offered / capacity")
        .max_light_lines(0)
        .draw()?;
    Ok(chart)
}

/// Through the medians, each with a bar from the smallest to the largest of the rounds.
fn line(chart: &mut Chart<'_>, points: &[Point], color: RGBColor) -> Drawn {
    let medians: Vec<_> = points.iter().map(|(x, it)| (*x, it.median)).collect();
    let dots: Vec<_> = medians
        .iter()
        .map(|at| Circle::new(*at, 3, color.filled()))
        .collect();
    chart.draw_series([PathElement::new(medians, color.stroke_width(2))])?;
    chart.draw_series(dots)?;
    let strokes = points
        .iter()
        .map(|(x, Spread { min, max, .. })| PathElement::new([(*x, *min), (*x, *max)], color));
    chart.draw_series(strokes)?;
    Ok(())
}

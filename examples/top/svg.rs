//! Converts a drawn page to lines of text or to a picture.

use std::fmt::Write;

use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier, Style};

/// Size of a character in pixels.
const CELL: (f64, f64) = (8.4, 17.0);

pub fn lines(buffer: &Buffer) -> Vec<String> {
    let rows = 0..buffer.area.height;
    let row = |y| (0..buffer.area.width).map(move |x| buffer[(x, y)].symbol());
    rows.map(|y| row(y).collect()).collect()
}

/// Draws each run of one style as one text.
pub fn of(buffer: &Buffer) -> String {
    let (width, height) = (buffer.area.width, buffer.area.height);
    let (w, h) = (
        f64::from(width) * CELL.0 + 16.0,
        f64::from(height) * CELL.1 + 16.0,
    );
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w:.0} {h:.0}\" \
         font-family=\"monospace\" font-size=\"14\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#16181d\"/>\n"
    );
    for y in 0..height {
        let mut x = 0;
        while x < width {
            let style = buffer[(x, y)].style();
            let begin = x;
            let mut text = String::new();
            while x < width && buffer[(x, y)].style() == style {
                text.push_str(buffer[(x, y)].symbol());
                x += 1;
            }
            if text.trim().is_empty() {
                continue;
            }
            let at = (
                f64::from(begin) * CELL.0 + 8.0,
                f64::from(y + 1) * CELL.1 + 4.0,
            );
            let long = f64::from(x - begin) * CELL.0;
            let text = text.replace('&', "&amp;").replace('<', "&lt;");
            writeln!(
                out,
                "<text x=\"{:.1}\" y=\"{:.1}\" textLength=\"{long:.1}\" xml:space=\"preserve\"{}>\
                 {text}</text>",
                at.0,
                at.1,
                attributes(style)
            )
            .expect("writing to a string cannot fail");
        }
    }
    out.push_str("</svg>\n");
    out
}

fn attributes(style: Style) -> String {
    let is = |modifier| style.add_modifier.contains(modifier);
    let fill = match style.fg {
        Some(Color::Red) => "#ff6b6b",
        _ if is(Modifier::DIM) => "#8a919e",
        _ => "#e4e7ec",
    };
    let bold = if is(Modifier::BOLD) {
        " font-weight=\"bold\""
    } else {
        ""
    };
    format!(" fill=\"{fill}\"{bold}")
}

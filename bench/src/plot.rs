//! Plots as SVG, written by hand: bars and lines are all that is wanted.

use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const LEFT: f64 = 190.0;
const RIGHT: f64 = 110.0;
const TOP: f64 = 44.0;
const BAR: f64 = 26.0;
const LINES_HEIGHT: f64 = 260.0;
const COLORS: [&str; 4] = ["#2f6fab", "#d1793b", "#4d9a5b", "#8b5fae"];

/// What is shown.
#[derive(Clone, Debug)]
pub enum Shape {
    /// A bar a label.
    Bars(Vec<(String, f64)>),
    /// Lines over a common axis, each with its name.
    Lines(Vec<(String, Vec<(f64, f64)>)>),
}

/// A plot with its title, which also names the unit.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Over the plot.
    pub title: String,
    /// What is shown.
    pub shape: Shape,
}

impl Plot {
    /// The SVG.
    pub fn svg(&self) -> String {
        let (height, body) = match &self.shape {
            Shape::Bars(bars) => bars_of(bars),
            Shape::Lines(lines) => lines_of(lines),
        };
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
             font-size=\"13\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n\
             <text x=\"12\" y=\"24\" font-size=\"15\" fill=\"#222\">{}</text>\n{body}</svg>\n",
            escaped(&self.title)
        )
    }
}

fn bars_of(bars: &[(String, f64)]) -> (f64, String) {
    let most = bars.iter().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
    let mut body = String::new();
    for (row, (label, value)) in bars.iter().enumerate() {
        let y = TOP + BAR * row as f64;
        let width = (WIDTH - LEFT - RIGHT) * value / most;
        let middle = y + BAR / 2.0 + 4.0;
        let _ = writeln!(
            body,
            "<text x=\"{:.0}\" y=\"{middle:.0}\" text-anchor=\"end\" fill=\"#222\">{}</text>\
             <rect x=\"{LEFT}\" y=\"{:.0}\" width=\"{width:.1}\" height=\"{:.0}\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{middle:.0}\" fill=\"#222\">{}</text>",
            LEFT - 8.0,
            escaped(label),
            y + 3.0,
            BAR - 6.0,
            COLORS[0],
            LEFT + width + 6.0,
            figure(*value),
        );
    }
    (TOP + BAR * bars.len() as f64 + 12.0, body)
}

fn lines_of(lines: &[(String, Vec<(f64, f64)>)]) -> (f64, String) {
    let points = || lines.iter().flat_map(|(_, points)| points);
    let most_x = points().map(|point| point.0).fold(f64::MIN_POSITIVE, f64::max);
    let most_y = points().map(|point| point.1).fold(f64::MIN_POSITIVE, f64::max);
    let left = 80.0;
    let (width, bottom) = (WIDTH - left - RIGHT - 40.0, TOP + LINES_HEIGHT);
    let x = |value: f64| left + width * value / most_x;
    let y = |value: f64| bottom - LINES_HEIGHT * value / most_y;
    let mut body = String::new();
    for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let _ = writeln!(
            body,
            "<line x1=\"{left}\" x2=\"{:.0}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{}</text>\
             <text x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"middle\" fill=\"#555\">{}</text>",
            left + width,
            left - 8.0,
            y(most_y * share) + 4.0,
            figure(most_y * share),
            x(most_x * share),
            bottom + 18.0,
            figure(most_x * share),
            at = y(most_y * share),
        );
    }
    for (index, (name, points)) in lines.iter().enumerate() {
        let color = COLORS[index % COLORS.len()];
        let path: Vec<String> = points
            .iter()
            .map(|&(at, value)| format!("{:.1},{:.1}", x(at), y(value)))
            .collect();
        let end = points.last().copied().unwrap_or_default();
        let _ = writeln!(
            body,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{color}\">{}</text>",
            path.join(" "),
            x(end.0) + 6.0,
            y(end.1) + 4.0 + 14.0 * index as f64,
            escaped(name),
        );
    }
    (bottom + 34.0, body)
}

fn figure(value: f64) -> String {
    if value >= 1_000.0 {
        crate::report::rate(value)
    } else if value >= 10.0 || value == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_values() {
        let plot = Plot {
            title: "claims/s & more".to_owned(),
            shape: Shape::Bars(vec![("a<b".to_owned(), 100.0), ("c".to_owned(), 50.0)]),
        };
        let svg = plot.svg();
        assert!(svg.contains("claims/s &amp; more") && svg.contains("a&lt;b"));
        assert!(svg.contains("width=\"420.0\"") && svg.contains("width=\"210.0\""));
    }
}

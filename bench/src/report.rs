//! What a run found: ratios, tables and plots, on the terminal and in `docs/performance.md`.

use std::{fmt::Write as _, fs, path::Path};

use crate::{
    error::{BenchError, Result},
    plot::Plot,
};

/// The part of the page that a run writes anew lies between these.
const BEGIN: &str = "<!-- bench: begin -->";
const END: &str = "<!-- bench: end -->";

/// Which side of its target a ratio has to be on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// At least.
    AtLeast,
    /// At most.
    AtMost,
}

/// A ratio that has to be reached.
#[derive(Clone, Debug, PartialEq)]
pub struct Ratio {
    /// What it is called.
    pub name: &'static str,
    /// What was measured.
    pub value: f64,
    /// What has to be reached.
    pub target: f64,
    /// From which side.
    pub bound: Bound,
}

impl Ratio {
    /// A ratio that must not be smaller.
    pub fn at_least(name: &'static str, value: f64, target: f64) -> Self {
        Self {
            name,
            value,
            target,
            bound: Bound::AtLeast,
        }
    }

    /// A ratio that must not be larger.
    pub fn at_most(name: &'static str, value: f64, target: f64) -> Self {
        Self {
            bound: Bound::AtMost,
            ..Self::at_least(name, value, target)
        }
    }

    /// Whether it is reached. What was not measured is not.
    pub fn reached(&self) -> bool {
        match self.bound {
            Bound::AtLeast => self.value >= self.target,
            Bound::AtMost => self.value <= self.target,
        }
    }

    fn sign(&self) -> &'static str {
        match self.bound {
            Bound::AtLeast => "≥",
            Bound::AtMost => "≤",
        }
    }

    /// `ratio NAME VALUE TARGET`.
    pub fn line(&self) -> String {
        format!(
            "ratio {} {:.3} {}{}{}",
            self.name,
            self.value,
            self.sign(),
            self.target,
            if self.reached() { "" } else { "  NOT REACHED" }
        )
    }
}

/// Rows of figures under a heading.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// What was done, in a sentence or two.
    pub text: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<String>>,
    /// File name and plot.
    pub plot: Option<(&'static str, Plot)>,
}

impl Section {
    /// A section with a table.
    pub fn new(title: &str, text: impl Into<String>, columns: &[&str]) -> Self {
        Self {
            title: title.to_owned(),
            text: text.into(),
            columns: columns.iter().map(|&column| column.to_owned()).collect(),
            rows: Vec::new(),
            plot: None,
        }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }

    /// With a plot under the table.
    pub fn with_plot(mut self, file: &'static str, plot: Plot) -> Self {
        self.plot = Some((file, plot));
        self
    }

    fn markdown(&self, folder: &str) -> String {
        let mut text = format!("### {}\n\n", self.title);
        if !self.text.is_empty() {
            let _ = writeln!(text, "{}\n", self.text);
        }
        if !self.rows.is_empty() {
            let _ = writeln!(text, "| {} |", self.columns.join(" | "));
            let _ = writeln!(text, "|{}", "---|".repeat(self.columns.len()));
            for row in &self.rows {
                let _ = writeln!(text, "| {} |", row.join(" | "));
            }
            text.push('\n');
        }
        if let Some((file, plot)) = &self.plot {
            let _ = writeln!(text, "![{}]({folder}/{file})\n", plot.title);
        }
        text
    }
}

/// What one measurement found.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// Ratios.
    pub ratios: Vec<Ratio>,
    /// Figures.
    pub sections: Vec<Section>,
}

impl Findings {
    /// Adds those of another measurement.
    pub fn extend(&mut self, other: Self) {
        self.ratios.extend(other.ratios);
        self.sections.extend(other.sections);
    }

    /// For the terminal.
    pub fn print(&self) {
        for section in &self.sections {
            println!("\n{}", section.title);
            for row in std::iter::once(&section.columns).chain(&section.rows) {
                println!("  {}", row.join(" | "));
            }
        }
        for ratio in &self.ratios {
            println!("{}", ratio.line());
        }
    }

    /// Writes the run's part of the page, and the plots beside it in `performance/`.
    pub fn write(&self, page: &Path, about: &str) -> Result<()> {
        let failed = |what: &str| BenchError::io(format!("{what} {}", page.display()));
        let text = fs::read_to_string(page).map_err(failed("read"))?;
        let (Some(begin), Some(end)) = (text.find(BEGIN), text.find(END)) else {
            return Err(BenchError::Invalid(format!(
                "{} lacks the lines {BEGIN} and {END}, between which the figures belong",
                page.display()
            )));
        };
        let folder = page.with_extension("");
        fs::create_dir_all(&folder).map_err(BenchError::io(format!("make {}", folder.display())))?;
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut part = format!("{BEGIN}\n\n{about}\n\n");
        if !self.ratios.is_empty() {
            part.push_str("| ratio | measured | must reach | |\n|---|---|---|---|\n");
            for ratio in &self.ratios {
                let reached = if ratio.reached() { "reached" } else { "**not reached**" };
                let _ = writeln!(
                    part,
                    "| `{}` | {:.2} | {} {} | {reached} |",
                    ratio.name,
                    ratio.value,
                    ratio.sign(),
                    ratio.target
                );
            }
            part.push('\n');
        }
        for section in &self.sections {
            part.push_str(&section.markdown(&name));
            if let Some((file, plot)) = &section.plot {
                let path = folder.join(file);
                fs::write(&path, plot.svg()).map_err(BenchError::io(format!("write {}", path.display())))?;
            }
        }
        let page_text = format!("{}{}{}", &text[..begin], part, &text[end..]);
        fs::write(page, page_text).map_err(failed("write"))
    }
}

/// A rate for people: three significant digits, thousands apart.
pub fn rate(value: f64) -> String {
    let rounded = if value >= 1_000.0 {
        (value / 100.0).round() * 100.0
    } else {
        value.round()
    };
    let digits = format!("{rounded:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_reached_from_its_own_side() {
        assert!(Ratio::at_least("a", 0.55, 0.55).reached());
        assert!(!Ratio::at_least("a", 0.54, 0.55).reached());
        assert!(Ratio::at_most("a", 2.0, 2.0).reached());
        assert!(!Ratio::at_most("a", 2.1, 2.0).reached());
        assert!(!Ratio::at_least("a", f64::NAN, 0.0).reached());
    }

    #[test]
    fn rates_are_rounded_and_grouped() {
        assert_eq!(rate(41_623.0), "41,600");
        assert_eq!(rate(999.4), "999");
        assert_eq!(rate(1_234_567.0), "1,234,600");
    }
}

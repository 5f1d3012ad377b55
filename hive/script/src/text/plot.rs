// SPDX-License-Identifier: Apache-2.0

//! Line plots of Braille characters: two by four dots in each character.

use std::fmt;

/// Lowest and highest bit of each column of dots in a Braille character, from top to bottom.
const DOTS: [[u32; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];
/// The Braille character without dots.
const EMPTY: u32 = 0x2800;

/// A line plot as text.
///
/// ```
/// let text = hive_script::text::Plot::new("x_total", 20, 3).draw(&[0.0, 1.0, 2.0, 4.0]);
/// assert!(text.contains("x_total") && text.contains("4 ┤"));
/// ```
pub struct Plot {
    title: String,
    subtitle: Option<String>,
    width: usize,
    height: usize,
    y_label: Box<dyn Fn(f64) -> String>,
    x_labels: Vec<String>,
}

impl fmt::Debug for Plot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plot")
            .field("title", &self.title)
            .finish_non_exhaustive()
    }
}

impl Plot {
    /// A plot whose drawing is so many characters wide and high.
    pub fn new(title: impl Into<String>, width: usize, height: usize) -> Self {
        Self {
            title: title.into(),
            subtitle: None,
            width: width.max(1),
            height: height.max(1),
            y_label: Box::new(|value| value.to_string()),
            x_labels: Vec::new(),
        }
    }

    /// A line below the title.
    pub fn subtitle(mut self, text: impl Into<String>) -> Self {
        self.subtitle = Some(text.into());
        self
    }

    /// How values are written beside the drawing.
    pub fn y_labels(mut self, label: impl Fn(f64) -> String + 'static) -> Self {
        self.y_label = Box::new(label);
        self
    }

    /// Texts below the drawing, spread from left to right.
    pub fn x_labels(mut self, labels: impl IntoIterator<Item = String>) -> Self {
        self.x_labels = labels.into_iter().collect();
        self
    }

    /// Draws values at equal distances. What is not finite is left out.
    pub fn draw(&self, values: &[f64]) -> String {
        let finite = || values.iter().copied().filter(|value| value.is_finite());
        let low = finite().fold(0.0, f64::min);
        let high = finite().fold(low, f64::max);
        let high = if high > low { high } else { low + 1.0 };
        let canvas = self.canvas(values, low, high);

        let ticks: Vec<(usize, String)> = [0, self.height / 2, self.height - 1]
            .into_iter()
            .map(|row| {
                let part = if self.height > 1 {
                    row as f64 / (self.height - 1) as f64
                } else {
                    0.0
                };
                (row, (self.y_label)(high - (high - low) * part))
            })
            .collect();
        let margin = ticks
            .iter()
            .map(|(_, text)| text.chars().count())
            .max()
            .unwrap_or(0);
        let mut out = String::new();
        for line in [Some(&self.title), self.subtitle.as_ref()].into_iter().flatten() {
            let free = (margin + 2 + self.width).saturating_sub(line.chars().count());
            out.push_str(&format!("{:1$}{line}\n", "", free / 2));
        }
        for (row, cells) in canvas.iter().enumerate() {
            let (label, axis) = match ticks.iter().find(|(tick, _)| *tick == row) {
                Some((_, text)) => (text.as_str(), '┤'),
                None => ("", '│'),
            };
            let drawing: String = cells
                .iter()
                .filter_map(|bits| char::from_u32(EMPTY + bits))
                .collect();
            out.push_str(&format!("{label:>margin$} {axis}{drawing}\n"));
        }
        out.push_str(&format!("{:margin$} └{}\n", "", "─".repeat(self.width)));
        if !self.x_labels.is_empty() {
            out.push_str(&format!("{:1$}{2}\n", "", margin + 2, self.spread_labels()));
        }
        out
    }

    fn spread_labels(&self) -> String {
        let mut line = String::new();
        let last = self.x_labels.len().saturating_sub(1).max(1);
        for (at, label) in self.x_labels.iter().enumerate() {
            let length = label.chars().count();
            let center = self.width * at / last;
            let start = if at == 0 {
                0
            } else {
                center.saturating_sub(if at == last { length } else { length / 2 })
            };
            let used = line.chars().count();
            line.extend(std::iter::repeat_n(' ', start.saturating_sub(used)));
            line.push_str(label);
        }
        line
    }

    /// Bits of every character.
    fn canvas(&self, values: &[f64], low: f64, high: f64) -> Vec<Vec<u32>> {
        let (columns, rows) = (self.width * 2, self.height * 4);
        let mut canvas = vec![vec![0; self.width]; self.height];
        let place = |at: usize, value: f64| {
            let x = if values.len() > 1 {
                at * (columns - 1) / (values.len() - 1)
            } else {
                0
            };
            let y = ((high - value) / (high - low) * (rows - 1) as f64).round() as usize;
            (x, y.min(rows - 1))
        };
        let mut previous: Option<(usize, usize)> = None;
        for (at, value) in values.iter().enumerate() {
            if !value.is_finite() {
                previous = None;
                continue;
            }
            let (x, y) = place(at, *value);
            let (from_x, from_y) = previous.unwrap_or((x, y));
            let steps = (x - from_x).max(y.abs_diff(from_y)).max(1);
            for step in 0..=steps {
                let dot_x = from_x + (x - from_x) * step / steps;
                let dot_y = if y >= from_y {
                    from_y + (y - from_y) * step / steps
                } else {
                    from_y - (from_y - y) * step / steps
                };
                canvas[dot_y / 4][dot_x / 2] |= DOTS[dot_x % 2][dot_y % 4];
            }
            previous = Some((x, y));
        }
        canvas
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_goes_from_corner_to_corner() {
        let text = Plot::new("t", 4, 2)
            .subtitle("[ a=b ]")
            .x_labels(["-1m".to_owned(), "now".to_owned()])
            .draw(&[0.0, 7.0]);

        assert_eq!(text, "   t\n[ a=b ]\n7 ┤⠀⠀⡠⠊\n0 ┤⡠⠊⠀⠀\n  └────\n   -1mnow\n");
    }

    #[test]
    fn odd_values_do_no_harm() {
        for values in [
            &[][..],
            &[1.0],
            &[f64::NAN, f64::INFINITY],
            &[-1.0, -1.0],
            &[1e308, -1e308],
        ] {
            let text = Plot::new("t", 3, 1).draw(values);
            assert!(text.lines().count() >= 3, "{text}");
        }
    }
}

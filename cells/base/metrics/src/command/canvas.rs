// SPDX-License-Identifier: Apache-2.0

//! A plot as text: 80 columns by 10 rows, with a frame, drawn with Braille characters of two by four dots.

use std::fmt;

use crate::render::scale_of;
use crate::sampler::SAMPLES;

const COLUMNS: usize = 80;
const ROWS: usize = 10;
/// The column of the left side of the frame; that of the right side is the last one.
const LEFT: usize = 10;
const RIGHT: usize = COLUMNS - 1;
/// Characters inside the frame, in a row.
const WIDTH: usize = RIGHT - LEFT - 1;
/// Rows inside the frame.
const HEIGHT: usize = ROWS - 3;
/// Widest line of labels below the title.
const LABELS_WIDTH: usize = 64;
const DOTS_WIDE: usize = 2 * WIDTH;
const DOTS_HIGH: usize = 4 * HEIGHT;
/// The row of the lower side of the frame.
const BOTTOM: usize = HEIGHT + 1;
/// Where times are written: the column of the tick, and that of the text.
const TIMES: [(usize, usize); 3] = [(14, 11), (46, 43), (77, 76)];

/// The Braille character without dots.
const BLANK: u32 = 0x2800;
/// Bits of the dots of a Braille character, by column and row.
const DOTS: [[u32; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];

/// A plot of values at equal distances, the oldest first.
pub(super) struct Canvas<'a> {
    /// The line above the plot.
    pub(super) title: String,
    /// Labels of the series; empty if it has none.
    pub(super) labels: &'a str,
    /// `s`, or empty.
    pub(super) unit: &'a str,
    /// Texts below the plot: the oldest time, the middle, the newest.
    pub(super) times: [String; 3],
    /// What is drawn: samples that exist. Values that are not finite have no dot.
    pub(super) values: &'a [Option<f64>; SAMPLES],
}

impl fmt::Display for Canvas<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut centered = |text: &str| {
            let free = (WIDTH / 2).saturating_sub(text.chars().count() / 2);
            writeln!(f, "{:1$}{text}", "", LEFT + 1 + free)
        };
        centered(&self.title)?;
        if !self.labels.is_empty() {
            wrapped(self.labels)
                .iter()
                .try_for_each(|line| centered(&format!("[ {line} ]")))?;
        }
        self.cells()
            .iter()
            .try_for_each(|row| writeln!(f, "{}", row.iter().collect::<String>()))
    }
}

impl Canvas<'_> {
    fn cells(&self) -> Vec<Vec<char>> {
        // 0 where there is no sample.
        let values = || self.values.iter().map(|value| value.unwrap_or_default());
        let finite = || values().filter(|value| value.is_finite());
        let low = finite().reduce(f64::min).unwrap_or_default();
        let high = finite().reduce(f64::max).unwrap_or_default();

        let mut cells = vec![vec![' '; COLUMNS]; ROWS];
        for (row, dots) in self.dots(low, high).iter().enumerate() {
            for (column, bits) in dots.iter().enumerate() {
                cells[row + 1][LEFT + 1 + column] = char::from_u32(BLANK + bits).unwrap_or(' ');
            }
        }
        for (row, [left, right]) in [(0, ['╭', '╮']), (BOTTOM, ['╰', '╯'])] {
            cells[row][LEFT..=RIGHT].fill('─');
            cells[row][LEFT] = left;
            cells[row][RIGHT] = right;
        }
        for row in &mut cells[1..BOTTOM] {
            row[LEFT] = '│';
            row[RIGHT] = '│';
        }
        let (scale, prefix) = scale_of(high);
        for (row, value) in [(1, high), (BOTTOM / 2, f64::midpoint(high, low)), (HEIGHT, low)] {
            let label = format!("{:.1}{prefix}{}", value / scale, self.unit);
            put(&mut cells[row], 1, &format!("{label:>8} ┤"));
        }
        for ((tick, at), text) in TIMES.into_iter().zip(&self.times) {
            cells[BOTTOM][tick] = '┬';
            put(&mut cells[ROWS - 1], at, text);
        }
        cells
    }

    /// Bits of the characters inside the frame: at most one dot in each column of dots.
    fn dots(&self, low: f64, high: f64) -> [[u32; WIDTH]; HEIGHT] {
        let mut dots = [[0; WIDTH]; HEIGHT];
        // Heights are parts of the maximum, or of the range if the minimum is negative.
        let whole = if low < 0.0 { high - low } else { high };
        let whole = if whole == 0.0 { 1e-6 } else { whole };
        for x in 0..DOTS_WIDE {
            let part = self.value(x).map(|value| (value - low) / whole);
            if let Some(part) = part.filter(|part| part.is_finite()) {
                let height = (part * (DOTS_HIGH as f64 - 0.001)).floor() as usize;
                let y = (DOTS_HIGH - 1).saturating_sub(height);
                dots[y / 4][x / 2] |= DOTS[x % 2][y % 4];
            }
        }
        dots
    }

    /// The value at a column of dots: between two samples if both exist.
    fn value(&self, x: usize) -> Option<f64> {
        const LAST: usize = SAMPLES - 1;
        if x == DOTS_WIDE - 1 {
            return self.values[LAST];
        }
        let at = (LAST * x) as f64 / DOTS_WIDE as f64;
        let before = self.values[at as usize]?;
        let after = self.values[at as usize + 1].unwrap_or(before);
        Some(before + (after - before) * at.fract())
    }
}

/// Writes a text from a column on; what goes beyond the canvas is cut.
fn put(row: &mut [char], at: usize, text: &str) {
    for (cell, char) in row.iter_mut().skip(at).zip(text.chars()) {
        *cell = char;
    }
}

/// Lines of whole words which are not wider than labels may be, unless a word is.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= LABELS_WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples, the last of which is the newest one.
    fn samples(values: &[f64]) -> [Option<f64>; SAMPLES] {
        let mut samples = [None; SAMPLES];
        let (_, newest) = samples.split_at_mut(SAMPLES - values.len());
        for (sample, value) in newest.iter_mut().zip(values) {
            *sample = Some(*value);
        }
        samples
    }

    fn draw(values: &[f64], labels: &str) -> String {
        Canvas {
            title: "x_seconds (p50)".to_owned(),
            labels,
            unit: "s",
            times: ["-120min", "-60min", "now"].map(str::to_owned),
            values: &samples(values),
        }
        .to_string()
    }

    #[test]
    fn a_ramp_goes_from_corner_to_corner() {
        let ramp: Vec<f64> = (0..SAMPLES).map(|at| 0.8 * at as f64 / 23.0).collect();

        let text = draw(&ramp, "a=b");

        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2 + ROWS);
        assert_eq!(lines[0], format!("{}x_seconds (p50)", " ".repeat(11 + 34 - 7)));
        assert_eq!(lines[1], format!("{}[ a=b ]", " ".repeat(11 + 34 - 3)));
        for line in &lines[2..] {
            assert_eq!(line.chars().count(), COLUMNS, "{line:?}");
        }
        assert_eq!(lines[2], format!("{}╭{}╮", " ".repeat(10), "─".repeat(68)));
        assert!(lines[3].starts_with("  800.0ms ┤\u{2800}"), "{text}");
        assert!(lines[3].ends_with("⠉│"), "{text}");
        assert!(lines[4].starts_with("          │\u{2800}"), "{text}");
        assert!(lines[6].starts_with("  400.0ms ┤\u{2800}"), "{text}");
        assert!(lines[9].starts_with("    0.0ms ┤⣀"), "{text}");
        let ticks: Vec<usize> = lines[10]
            .chars()
            .enumerate()
            .filter(|(_, char)| *char == '┬')
            .map(|(at, _)| at)
            .collect();
        assert_eq!(ticks, [14, 46, 77]);
        assert_eq!(lines[11].find("-120min"), Some(11));
        assert_eq!(lines[11].find("-60min"), Some(43));
        assert_eq!(lines[11].find("now"), Some(76));
    }

    #[test]
    fn only_samples_that_exist_are_drawn() {
        let dots = |values: &[Option<f64>; SAMPLES]| {
            let canvas = Canvas {
                title: String::new(),
                labels: "",
                unit: "",
                times: Default::default(),
                values,
            };
            canvas.dots(0.0, 1.0)
        };
        let count = |dots: [[u32; WIDTH]; HEIGHT]| -> u32 {
            dots.iter().flatten().map(|bits| bits.count_ones()).sum()
        };

        let one = dots(&samples(&[1.0]));
        assert_eq!((count(one), one[0][WIDTH - 1]), (1, DOTS[1][0]));

        let all = dots(&samples(&[0.0; SAMPLES]));
        assert_eq!(count(all) as usize, DOTS_WIDE);
        assert_eq!(all[HEIGHT - 1][0], DOTS[0][3] | DOTS[1][3]);

        // 22.5 of 23 of the height is below the highest dot: heights are rounded down.
        let mut hole = samples(&[0.999, 1.0, 1.0]);
        hole[SAMPLES - 2] = None;
        let hole = dots(&hole);
        assert_eq!(hole[0][WIDTH - 1], DOTS[1][0]);
        let level: u32 = hole.iter().flatten().map(|bits| bits.count_ones()).sum();
        assert_eq!(level, 7, "as far as the sample reaches, and the newest one");
    }

    #[test]
    fn odd_values_keep_the_canvas_whole() {
        for values in [
            &[][..],
            &[1.0],
            &[f64::NAN, f64::INFINITY],
            &[-1.0, -1.0],
            &[-3.0, 1.0],
            &[1e308, -1e308],
        ] {
            let text = draw(values, "");
            let widths: Vec<usize> = text.lines().skip(1).map(|line| line.chars().count()).collect();
            assert_eq!(widths, [COLUMNS; ROWS], "{text}");
        }
    }

    #[test]
    fn long_labels_are_wrapped() {
        let labels = "module_id=loadbalancer-reconciler op=update source=kubernetes zone=a";

        let text = draw(&[1.0], labels);

        let lines: Vec<&str> = text.lines().skip(1).take(2).collect();
        let first = "[ module_id=loadbalancer-reconciler op=update source=kubernetes ]";
        assert_eq!(lines[0].trim(), first);
        assert_eq!(lines[1], format!("{}[ zone=a ]", " ".repeat(11 + 34 - 5)));
    }
}

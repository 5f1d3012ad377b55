// SPDX-License-Identifier: Apache-2.0

//! Results: a table for people, JSON for programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
    #[serde(default)]
    pub(crate) target: Option<f64>,
    pub(crate) more_is_better: bool,
    #[serde(default)]
    pub(crate) reached: Option<bool>,
}

impl Row {
    fn new(name: impl Into<String>, value: f64, unit: &str, more_is_better: bool) -> Self {
        Self {
            name: name.into(),
            value,
            unit: unit.to_owned(),
            target: None,
            more_is_better,
            reached: None,
        }
    }

    /// A figure that should be high.
    pub(crate) fn rate(name: impl Into<String>, value: f64, unit: &str) -> Self {
        Self::new(name, value, unit, true)
    }

    /// A figure that should be low.
    pub(crate) fn cost(name: impl Into<String>, value: f64, unit: &str) -> Self {
        Self::new(name, value, unit, false)
    }

    pub(crate) fn target(mut self, target: impl Into<Option<f64>>) -> Self {
        self.target = target.into();
        self
    }

    fn judge(&mut self) {
        self.reached = self.target.map(|target| {
            if self.more_is_better {
                self.value >= target
            } else {
                self.value <= target
            }
        });
    }
}

#[derive(Debug, Default)]
pub(crate) struct Report(Vec<Row>);

impl Report {
    pub(crate) fn add(&mut self, mut row: Row) {
        row.judge();
        self.0.push(row);
    }

    /// Adds the figures of earlier runs.
    pub(crate) fn read(&mut self, files: &[PathBuf]) -> anyhow::Result<()> {
        for file in files {
            let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
            let rows: Vec<Row> = serde_json::from_str(&text).with_context(|| file.display().to_string())?;
            rows.into_iter().for_each(|row| self.add(row));
        }
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|row| row.name.as_str())
    }

    pub(crate) fn print(&self) {
        println!(
            "\n{:<66} {:>12} {:<11} {:>9}",
            "measurement", "value", "unit", "target"
        );
        for row in &self.0 {
            let mark = match row.reached {
                Some(true) => "ok",
                Some(false) => "MISSED",
                None => "",
            };
            println!(
                "{:<66} {:>12} {:<11} {:>9} {mark}",
                row.name,
                number(row.value),
                row.unit,
                row.target.map_or("-".to_owned(), number),
            );
        }
    }

    pub(crate) fn write(&self, file: &Path) -> anyhow::Result<()> {
        let mut text = serde_json::to_string_pretty(&self.0)?;
        text.push('\n');
        fs::write(file, text).with_context(|| file.display().to_string())
    }
}

/// A number with about three digits that matter.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        0.0..1.0 => format!("{value:.3}"),
        1.0..100.0 => format!("{value:.2}"),
        100.0..1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The milliseconds that a share of delays is not above; 0 if there are none.
pub(crate) fn quantiles(mut delays: Vec<Duration>) -> impl Fn(f64) -> f64 {
    delays.sort_unstable();
    move |share| {
        let at = (delays.len().saturating_sub(1) as f64 * share) as usize;
        milliseconds(delays.get(at).copied().unwrap_or_default())
    }
}

/// The middle one of some figures; 0 if there are none.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(row: Row) -> Option<bool> {
        let mut report = Report::default();
        report.add(row);
        report.0[0].reached
    }

    #[test]
    fn more_is_better_for_rates_and_worse_for_costs() {
        assert_eq!(judged(Row::rate("rate", 10.0, "1/s").target(9.0)), Some(true));
        assert_eq!(judged(Row::cost("cost", 10.0, "s").target(9.0)), Some(false));
        assert_eq!(judged(Row::rate("rate", 10.0, "1/s")), None);
    }

    #[test]
    fn numbers_are_short() {
        let texts = [0.0, 0.25, 2.5, 123.46, 160_000.4].map(number);
        assert_eq!(texts, ["0", "0.250", "2.50", "123.5", "160000"]);
    }

    #[test]
    fn quantiles_are_of_the_sorted_delays() {
        let at = quantiles([30, 10, 20].map(Duration::from_millis).into());

        assert_eq!([0.0, 0.5, 1.0].map(at), [10.0, 20.0, 30.0]);
        assert_eq!(quantiles(Vec::new())(0.99), 0.0);
    }

    #[test]
    fn median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(Vec::new()), 0.0);
    }
}

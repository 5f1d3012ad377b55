// SPDX-License-Identifier: Apache-2.0

//! `metrics/plot`: samples over time, drawn with Braille characters.

use std::sync::Arc;
use std::time::Duration;

use hive_script::{CommandHandle, Flag, Spec, function};

use super::canvas::Canvas;
use super::{matcher, write_out};
use crate::sampler::{SAMPLES, SampledSeries, SampledValues, Sampler};

pub(super) fn command(sampler: Arc<Sampler>) -> CommandHandle {
    let spec = Spec::new("metrics/plot", "Plot samples of a metric")
        .args("regexp")
        .detail("The first metric by name and labels is plotted that matches the regular expression, written 'name k=v k2=v2'.")
        .flag(Flag::string("out", "", "File to write to instead of the log").short('o'))
        .flag(Flag::bool("rate", "Plot the change per second"));
    function(spec, move |cx, inv| {
        // Without a metric to plot the command says so, and succeeds.
        let Some(pattern) = inv.arg(0) else {
            return write_out(cx, inv, "regexp needed to find metric\n");
        };
        let matches = matcher(Some(pattern))?;
        let series = sampler.series();
        let first = series.iter().find(|series| matches(&series.name, &series.labels));
        let text = match first {
            Some(series) => plots(series, sampler.interval(), inv.bool("rate")).join("\n"),
            None => format!("no metric found matching regexp {pattern:?}"),
        };
        write_out(cx, inv, &text)
    })
}

/// One plot of a number, three of a histogram.
fn plots(series: &SampledSeries, interval: Duration, is_rate: bool) -> Vec<String> {
    let rings: Vec<(&str, &[f32; SAMPLES])> = match &series.values {
        SampledValues::Number(ring) => vec![("", ring)],
        SampledValues::Quantiles { p50, p90, p99 } => vec![(" (p50)", p50), (" (p90)", p90), (" (p99)", p99)],
    };
    rings
        .into_iter()
        .map(|(part, ring)| plot(series, part, ring, interval, is_rate))
        .collect()
}

fn plot(
    series: &SampledSeries,
    part: &str,
    ring: &[f32; SAMPLES],
    interval: Duration,
    is_rate: bool,
) -> String {
    // From old to new, as time goes to the right.
    let mut values = std::array::from_fn(|at| {
        let age = SAMPLES - 1 - at;
        series.exists.has(age).then(|| f64::from(ring[age]))
    });
    let mut title = format!("{}{part}", series.name);
    if is_rate {
        values = rates(&values, interval);
        title.push_str(" (rate per second)");
    }
    let window = interval.saturating_mul(SAMPLES as u32);
    let minutes = |span: Duration| format!("-{}min", span.as_secs() / 60);
    Canvas {
        title,
        labels: &series.labels,
        unit: if series.name.contains("seconds") { "s" } else { "" },
        times: [minutes(window), minutes(window / 2), "now".to_owned()],
        values: &values,
    }
    .to_string()
}

/// The change per second, where there is a sample before.
fn rates(values: &[Option<f64>; SAMPLES], interval: Duration) -> [Option<f64>; SAMPLES] {
    std::array::from_fn(|at| {
        let before = values[at.checked_sub(1)?]?;
        Some((values[at]? - before) / interval.as_secs_f64())
    })
}

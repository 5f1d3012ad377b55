// SPDX-License-Identifier: Apache-2.0

//! `metrics/plot`: samples over time, drawn with Braille characters.

use std::sync::Arc;
use std::time::Duration;

use hive_script::{CommandError, CommandHandle, Flag, Spec, function};

use super::canvas::Canvas;
use super::{matcher, write_out};
use crate::sampler::{SAMPLES, SampledSeries, SampledValues, Sampler};

pub(super) fn command(sampler: Arc<Sampler>) -> CommandHandle {
    let spec = Spec::new("metrics/plot", "Plot samples of metrics")
        .args("regexp")
        .detail("All metrics are plotted whose name and labels, written 'name k=v k2=v2', match the regular expression.")
        .flag(Flag::string("out", "", "File to write to instead of the log").short('o'))
        .flag(Flag::bool("rate", "Plot the change per second"));
    function(spec, move |cx, inv| {
        let pattern = inv
            .arg(0)
            .ok_or_else(|| CommandError::new("regexp needed to find metric"))?;
        let matches = matcher(Some(pattern))?;
        let mut series = sampler.series();
        series.retain(|series| matches(&series.name, &series.labels));
        if series.is_empty() {
            return Err(CommandError::new(format_args!(
                "no metric found matching regexp {pattern:?}"
            )));
        }
        let plots: Vec<String> = series
            .iter()
            .flat_map(|series| plots(series, sampler.interval(), inv.bool("rate")))
            .collect();
        write_out(cx, inv, &plots.join("\n"))
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
    let mut values: Vec<f64> = ring.iter().rev().map(|value| f64::from(*value)).collect();
    let mut title = format!("{}{part}", series.name);
    if is_rate {
        let seconds = interval.as_secs_f64();
        values = values
            .windows(2)
            .map(|pair| (pair[1] - pair[0]) / seconds)
            .collect();
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

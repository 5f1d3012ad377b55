// SPDX-License-Identifier: Apache-2.0

//! `metrics`: current values, or samples.

use std::sync::Arc;
use std::time::Duration;

use hive_script::text::{TabWriter, json, yaml};
use hive_script::{CommandError, CommandHandle, Context, Flag, Invocation, Outcome, Spec, function};
use serde::Serialize;

use super::{Dump, matcher, write_out};
use crate::dump::{MetricValue, number, serialize_number};
use crate::metric::{Labels, Value};
use crate::registry::Registry;
use crate::render::with_prefix;
use crate::sampler::{SampledSeries, Sampler};
use crate::series::{Series, label_text};

/// Multiples of the interval shown of the samples, 1 being the newest.
const SHOWN: [usize; 4] = [1, 6, 12, 24];

pub(super) fn command(registry: Arc<Registry>, sampler: Arc<Sampler>) -> CommandHandle {
    let spec = Spec::new("metrics", "List metrics")
        .args("[regexp]")
        .detail(
            "The regular expression is matched against the name and the labels, written 'name k=v k2=v2'.",
        )
        .detail("With --sampled the samples of the last hours are shown, also of metrics that are disabled.")
        .flag(Flag::string("out", "", "File to write to instead of the log").short('o'))
        .flag(Flag::bool("sampled", "Show samples").short('s'))
        .flag(Flag::string("format", "table", "Format: table, json or yaml").short('f'));
    function(spec, move |cx, inv| {
        let matches = matcher(inv.arg(0))?;
        if inv.bool("sampled") {
            let mut series = sampler.series();
            series.retain(|series| matches(&series.name, &series.labels));
            return show_samples(cx, inv, &sampler, series);
        }
        let mut series = Series::of(registry.metrics());
        series.retain(|series| matches(&series.name, &label_text(&series.labels)));
        show_values(cx, inv, series)
    })
}

fn unknown_format(format: &str) -> CommandError {
    CommandError::new(format_args!(
        "unknown format {format:?}, expected table, yaml or json"
    ))
}

fn show_values(cx: &mut Context<'_>, inv: &Invocation, series: Vec<Series>) -> Result<Outcome, CommandError> {
    let text = match inv.string("format") {
        "table" => value_table(&series),
        "json" => {
            let all: Vec<MetricValue> = series.into_iter().map(MetricValue::from).collect();
            json::indented(&all).map_err(CommandError::new)? + "\n"
        }
        "yaml" => {
            let all: Vec<YamlValue> = series.into_iter().map(YamlValue::from).collect();
            yaml::emit_v3(&all).map_err(CommandError::new)?
        }
        other => return Err(unknown_format(other)),
    };
    write_out(cx, inv, &text)
}

fn value_table(series: &[Series]) -> String {
    let mut lines: Vec<String> = series
        .iter()
        .map(|series| {
            let value = match &series.value {
                Value::Number(number) => format!("{number:.6}"),
                Value::Distribution(distribution) => {
                    let text = |quantile| with_prefix(&series.name, distribution.quantile(quantile));
                    format!("{} / {} / {}", text(0.5), text(0.9), text(0.99))
                }
            };
            format!("{}\t{}\t{value}", series.name, label_text(&series.labels))
        })
        .collect();
    lines.sort();
    table("Metric\tLabels\tValue", &lines)
}

fn table(header: &str, lines: &[String]) -> String {
    let mut table = TabWriter::new();
    table.row(header.split('\t'));
    for line in lines {
        table.row(line.split('\t'));
    }
    table.finish()
}

fn show_samples(
    cx: &mut Context<'_>,
    inv: &Invocation,
    sampler: &Sampler,
    series: Vec<SampledSeries>,
) -> Result<Outcome, CommandError> {
    let text = match inv.string("format") {
        "table" => sample_table(sampler.interval(), &series),
        "json" => json::indented(&Dump::new(sampler, series)).map_err(CommandError::new)? + "\n",
        "yaml" => yaml::emit_v3(&Dump::new(sampler, series)).map_err(CommandError::new)?,
        other => return Err(unknown_format(other)),
    };
    write_out(cx, inv, &text)
}

fn sample_table(interval: Duration, series: &[SampledSeries]) -> String {
    let mut header = "Metric\tLabels".to_owned();
    for multiple in SHOWN {
        header.push('\t');
        header.push_str(&short_duration(interval.saturating_mul(multiple as u32)));
    }
    let mut lines: Vec<String> = series
        .iter()
        .map(|series| {
            let cells: Vec<String> = SHOWN.iter().map(|multiple| series.text(multiple - 1)).collect();
            format!("{}\t{}\t{}", series.name, series.labels, cells.join("\t"))
        })
        .collect();
    lines.sort();
    table(&header, &lines)
}

/// A duration in its largest unit that is not larger than minutes: `5m`, `120m`, `30s`, `500ms`.
fn short_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis > 0 && millis.is_multiple_of(60_000) {
        format!("{}m", millis / 60_000)
    } else {
        hive_script::text::format_duration(duration)
    }
}

#[derive(Serialize)]
struct YamlValue {
    labels: Labels,
    name: String,
    #[serde(serialize_with = "serialize_number")]
    value: f64,
}

impl From<Series> for YamlValue {
    fn from(series: Series) -> Self {
        Self {
            value: number(&series.value),
            labels: series.labels,
            name: series.name,
        }
    }
}

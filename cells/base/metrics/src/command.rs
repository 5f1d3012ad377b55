// SPDX-License-Identifier: Apache-2.0

//! Commands: `metrics`, `metrics/plot`, `metrics/html`.

mod canvas;
mod html;
mod list;
mod plot;

use std::sync::Arc;

use hive::Members;
use hive_script::{CommandError, CommandHandle, Context, Invocation, Outcome, regexp};
use serde::Serialize;

use crate::registry::Registry;
use crate::sampler::{SAMPLES, SampledSeries, SampledValues, Sampler};
use crate::series::search_text;

/// The commands of a registry and its samples.
pub(crate) fn commands(registry: Arc<Registry>, sampler: Arc<Sampler>) -> Members<CommandHandle> {
    Members(vec![
        list::command(registry, sampler.clone()),
        plot::command(sampler.clone()),
        html::command(sampler),
    ])
}

/// Writes to the file of flag `out`, or to the log.
fn write_out(cx: &mut Context<'_>, inv: &Invocation, text: &str) -> Result<Outcome, CommandError> {
    match inv.string("out") {
        "" => cx.log(text),
        file => cx
            .write_file(file, text)
            .map_err(|error| CommandError::io("open", cx.path(file), &error))?,
    }
    Ok(Outcome::Silent)
}

/// Whether a series matches; without a pattern all do.
fn matcher(pattern: Option<&str>) -> Result<impl Fn(&str, &str) -> bool, CommandError> {
    let regex = pattern
        .map(regexp::compile)
        .transpose()
        .map_err(CommandError::new)?;
    Ok(move |name: &str, labels: &str| {
        regex
            .as_ref()
            .is_none_or(|regex| regex.is_match(&search_text(name, labels)))
    })
}

/// Samples as JSON and YAML.
#[derive(Serialize)]
struct Dump {
    nsamples: usize,
    interval_seconds: u64,
    samples: Vec<DumpedSeries>,
}

#[derive(Serialize)]
struct DumpedSeries {
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    labels: String,
    #[serde(rename = "gaugeOrCounter", skip_serializing_if = "Option::is_none")]
    number: Option<DumpedNumber>,
    #[serde(skip_serializing_if = "Option::is_none")]
    histogram: Option<DumpedQuantiles>,
    latest: String,
    /// Which samples exist, bit 0 the newest; for the page alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    exists: Option<u32>,
}

#[derive(Serialize)]
struct DumpedNumber {
    #[serde(serialize_with = "go_floats")]
    samples: [f32; SAMPLES],
}

#[derive(Serialize)]
struct DumpedQuantiles {
    #[serde(serialize_with = "go_floats")]
    p50: [f32; SAMPLES],
    #[serde(serialize_with = "go_floats")]
    p90: [f32; SAMPLES],
    #[serde(serialize_with = "go_floats")]
    p99: [f32; SAMPLES],
}

/// Whole numbers without a fraction, as Go prints floats.
fn go_floats<S: serde::Serializer>(samples: &[f32; SAMPLES], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(samples.iter().map(|&sample| GoFloat(sample)))
}

struct GoFloat(f32);

impl Serialize for GoFloat {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.fract() == 0.0 && self.0.abs() < 1e15 {
            serializer.serialize_i64(self.0 as i64)
        } else {
            serializer.serialize_f32(self.0)
        }
    }
}

impl Dump {
    fn new(sampler: &Sampler, series: Vec<SampledSeries>) -> Self {
        let samples = series.into_iter().map(DumpedSeries::from).collect();
        Self {
            nsamples: SAMPLES,
            interval_seconds: sampler.interval().as_secs(),
            samples,
        }
    }
}

impl From<SampledSeries> for DumpedSeries {
    fn from(series: SampledSeries) -> Self {
        let latest = series.text(0);
        let (number, histogram) = match series.values {
            SampledValues::Number(samples) => (Some(DumpedNumber { samples }), None),
            SampledValues::Quantiles { p50, p90, p99 } => (None, Some(DumpedQuantiles { p50, p90, p99 })),
        };
        Self {
            name: series.name,
            labels: series.labels,
            number,
            histogram,
            latest,
            exists: None,
        }
    }
}

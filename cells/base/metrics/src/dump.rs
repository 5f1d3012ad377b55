// SPDX-License-Identifier: Apache-2.0

//! Metrics as JSON, with the members of Cilium's model.

use serde::{Deserialize, Serialize};

use crate::metric::{Labels, Value};
use crate::series::Series;

/// A series and its value: an element of `GET /v1/metrics/` of Cilium's operator, and of `metrics --format=json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricValue {
    /// Labels.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// The full name.
    pub name: String,
    /// The value; of a histogram what nine in ten observations are below. 0 for one that is not finite: JSON has none.
    #[serde(default, skip_serializing_if = "is_zero", serialize_with = "serialize_number")]
    pub value: f64,
}

impl From<Series> for MetricValue {
    fn from(series: Series) -> Self {
        let value = number(&series.value);
        Self {
            value: if value.is_finite() { value } else { 0.0 },
            labels: series.labels,
            name: series.name,
        }
    }
}

/// The number that stands for a value.
pub(crate) fn number(value: &Value) -> f64 {
    match value {
        Value::Number(number) => *number,
        Value::Distribution(distribution) => distribution.quantile(0.9),
    }
}

/// Whole numbers without a fraction, as Go prints floats.
pub(crate) fn serialize_number<S: serde::Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if number.fract() == 0.0 && number.abs() < 1e15 {
        serializer.serialize_i64(*number as i64)
    } else {
        serializer.serialize_f64(*number)
    }
}

fn is_zero(number: &f64) -> bool {
    *number == 0.0
}

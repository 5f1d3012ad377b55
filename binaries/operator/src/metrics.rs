// SPDX-License-Identifier: Apache-2.0

//! `metrics list`: the metrics of a running operator, from `GET /v1/metrics/`.

use clap::Args;
use hive_script::text::TabWriter;
use regex::Regex;
use skep_base_metrics::MetricValue;
use skep_clustermesh_cli::status::{Format, Server, StatusError, format, get, print};

/// Which metrics, and how.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Address of the API of the operator.
    #[arg(long, short = 's', default_value = "localhost:9234")]
    server_address: String,
    /// Only those whose name matches this regular expression.
    #[arg(long, short = 'p')]
    match_pattern: Option<Regex>,
    /// Print a document: json, yaml or jsonpath=TEMPLATE.
    #[arg(long, short, value_parser = format)]
    output: Option<Format>,
}

/// Asks for the metrics.
pub(crate) fn list(options: &Options) -> Result<String, StatusError> {
    let server = Server {
        name: "the operator",
        title: "",
        host: &options.server_address,
    };
    let model = |cause| StatusError::Model {
        host: options.server_address.clone(),
        cause,
    };
    let body = get(server, "/v1/metrics/")?;
    let mut values: Vec<MetricValue> = serde_json::from_str(&body).map_err(model)?;
    if let Some(pattern) = &options.match_pattern {
        values.retain(|value| pattern.is_match(&value.name));
    }
    match &options.output {
        None => Ok(table(&values)),
        Some(format) => print(&serde_json::to_value(&values).map_err(model)?, format),
    }
}

fn table(values: &[MetricValue]) -> String {
    let mut table = TabWriter::new();
    table.row(["Metric", "Labels", "Value"]);
    for MetricValue { labels, name, value } in values {
        let labels: Vec<String> = labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        table.row([name.clone(), labels.join(" "), format!("{value:.6}")]);
    }
    table.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_a_table() {
        let values: Vec<MetricValue> = serde_json::from_str(
            r#"[{"name":"cilium_operator_x","labels":{"a":"1","b":"2"},"value":0.5},{"name":"cilium_operator_y"}]"#,
        )
        .unwrap();

        assert_eq!(
            table(&values),
            "Metric              Labels    Value\n\
             cilium_operator_x   a=1 b=2   0.500000\n\
             cilium_operator_y             0.000000\n"
        );
    }
}

// SPDX-License-Identifier: Apache-2.0

//! Cell: serves `GET /metrics` for Prometheus. Requires: [`Registry`].

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use hive::config::Faults;
use hive::{Backoff, Cell, Cfg, Job, JobCtx, Jobs, Retry, SpawnError};
use skep_listen::http::{Http1, TowerToHyperService};
use skep_listen::{BindError, Server, Tcp};

use crate::exposition::exposition;
use crate::registry::Registry;

/// The settings of the address, of an agent and an operator.
const SERVE_ADDR: &str = "prometheus-serve-addr";
const OPERATOR_SERVE_ADDR: &str = "operator-prometheus-serve-addr";
/// The format of the answer.
const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Pause between attempts to listen.
const RETRY: Duration = Duration::from_secs(10);

/// Where metrics are served.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = EndpointConfig::check)]
pub struct EndpointConfig {
    /// Address of the Prometheus endpoint, such as `:9962`; empty: disabled.
    #[config(default = "", flag = "prometheus-serve-addr")]
    pub serve_addr: String,
}

impl EndpointConfig {
    fn check(&self, faults: &mut Faults) {
        check(SERVE_ADDR, &self.serve_addr, faults);
    }

    /// Addresses of the endpoint, of which the first that this machine has is served: without a host those of all
    /// interfaces. None if it is off.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        addresses(&self.serve_addr)
    }

    fn endpoint(config: Cfg<Self>) -> Endpoint {
        Endpoint {
            addresses: config.addresses().into(),
            setting: SERVE_ADDR,
        }
    }
}

/// Where metrics of an operator are served. It shares its ConfigMap with the agents.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = OperatorEndpointConfig::check)]
pub struct OperatorEndpointConfig {
    /// Enable the Prometheus endpoint.
    #[config(default = false)]
    pub enable_metrics: bool,
    /// Address of the operator's Prometheus endpoint.
    #[config(default = ":9963")]
    pub operator_prometheus_serve_addr: String,
}

impl OperatorEndpointConfig {
    fn check(&self, faults: &mut Faults) {
        check(OPERATOR_SERVE_ADDR, &self.operator_prometheus_serve_addr, faults);
    }

    fn endpoint(config: Cfg<Self>) -> Endpoint {
        let address = match config.enable_metrics {
            true => config.operator_prometheus_serve_addr.as_str(),
            false => "",
        };
        Endpoint {
            addresses: addresses(address).into(),
            setting: OPERATOR_SERVE_ADDR,
        }
    }
}

fn check(setting: &'static str, address: &str, faults: &mut Faults) {
    if !address.is_empty() && addresses(address).is_empty() {
        faults.add(setting, format!("`{address}` is not an address such as `:9962`"));
    }
}

fn addresses(address: &str) -> Vec<SocketAddr> {
    match address.strip_prefix(':') {
        Some(port) => port.parse().map_or_else(
            |_| Vec::new(),
            |port: u16| {
                vec![
                    (Ipv6Addr::UNSPECIFIED, port).into(),
                    (Ipv4Addr::UNSPECIFIED, port).into(),
                ]
            },
        ),
        None => {
            let address = address.replace("localhost:", "127.0.0.1:");
            address.parse().into_iter().collect()
        }
    }
}

/// Where to listen, and the setting that names them. Without addresses the endpoint is off.
#[derive(Debug, Clone, hive::Value)]
struct Endpoint {
    addresses: Arc<[SocketAddr]>,
    setting: &'static str,
}

hive::catalogue!(cell);
hive::catalogue!(operator_cell);

/// Serves the metrics of [`crate::cell`] to Prometheus.
pub fn cell() -> Cell {
    Cell::module("metrics-endpoint", "Serves metrics to Prometheus")
        .config::<EndpointConfig>()
        .provide_private(EndpointConfig::endpoint)
        .run(serve)
}

/// As [`cell`], at the address of an operator and only with `enable-metrics`.
pub fn operator_cell() -> Cell {
    Cell::module("operator-metrics-endpoint", "Serves metrics to Prometheus")
        .config::<OperatorEndpointConfig>()
        .provide_private(OperatorEndpointConfig::endpoint)
        .run(serve)
}

/// Serves the metrics as long as the hive runs, if an address is configured.
fn serve(endpoint: Endpoint, registry: Arc<Registry>, jobs: Jobs) -> Result<(), SpawnError> {
    let Endpoint { addresses, setting } = endpoint;
    if addresses.is_empty() {
        return Ok(());
    }
    let endpoint = Tcp::first_of(addresses.iter().copied()).setting(setting);
    let job = Job::once("prometheus-endpoint", move |cx: JobCtx| {
        let (endpoint, registry) = (endpoint.clone(), registry.clone());
        async move {
            let listener = endpoint.bind()?;
            let address = listener.address();
            cx.health.ok(format!("Serving on {address}"));
            tracing::info!(%address, "Serving metrics");
            let router = Router::new().route("/metrics", get(move || answer(registry.clone())));
            let service = TowerToHyperService::new(router);
            let server = Server::new("metrics", listener);
            Http1::new().serve_all(server, service, cx.token.clone()).await;
            Ok::<(), BindError>(())
        }
    });
    jobs.spawn(job.retry(Retry::forever().backoff(Backoff::constant(RETRY))))
}

async fn answer(registry: Arc<Registry>) -> ([(axum::http::HeaderName, &'static str); 1], String) {
    ([(CONTENT_TYPE, FORMAT)], exposition(&registry))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(serve_addr: &str) -> EndpointConfig {
        EndpointConfig {
            serve_addr: serve_addr.to_owned(),
        }
    }

    #[test]
    fn addresses_may_lack_the_host() {
        let addresses = |text: &str| -> Vec<String> {
            let addresses = config(text).addresses();
            addresses.iter().map(ToString::to_string).collect()
        };

        assert_eq!(addresses(":9962"), ["[::]:9962", "0.0.0.0:9962"]);
        assert_eq!(addresses("127.0.0.1:1"), ["127.0.0.1:1"]);
        assert_eq!(addresses("localhost:1"), ["127.0.0.1:1"]);
        assert_eq!(addresses(""), [""; 0]);
    }

    #[test]
    fn what_is_no_address_is_a_finding_of_the_plan() {
        for text in ["9962", ":", ":99999", "host:"] {
            let mut faults = Faults::default();

            config(text).check(&mut faults);

            let texts: Vec<_> = faults
                .iter()
                .map(|(flag, text)| format!("{flag}: {text}"))
                .collect();
            assert_eq!(
                texts,
                [format!(
                    "prometheus-serve-addr: `{text}` is not an address such as `:9962`"
                )]
            );
        }
    }
}

// SPDX-License-Identifier: Apache-2.0

//! Configuration of metrics.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hive::config::Faults;

/// Which metrics are shown, where, and how they are sampled.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// Address of the Prometheus endpoint, such as `:9962`. Empty turns it off.
    #[config(default = "", flag = "prometheus-serve-addr")]
    pub serve_addr: String,
    /// Metrics to show or hide: `+name` or `-name`. Others are as they are by default.
    #[config(flag = "metrics")]
    pub metrics: Vec<String>,
    /// Time between two samples of all metrics for the shell.
    #[config(default = "5m", flag = "metrics-sampling-interval")]
    pub sampling_interval: Duration,
}

impl Config {
    fn check(&self, faults: &mut Faults) {
        if !self.serve_addr.is_empty() && self.addresses().is_empty() {
            let text = format!("`{}` is not an address such as `:9962`", self.serve_addr);
            faults.add("prometheus-serve-addr", text);
        }
    }

    /// The addresses of the endpoint, to be tried in turn: without a host those of all interfaces. None if it is off.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        match self.serve_addr.strip_prefix(':') {
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
                let address = self.serve_addr.replace("localhost:", "127.0.0.1:");
                address.parse().into_iter().collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(serve_addr: &str) -> Config {
        Config {
            serve_addr: serve_addr.to_owned(),
            ..<Config as hive::Config>::defaults().unwrap()
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

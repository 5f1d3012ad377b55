// SPDX-License-Identifier: Apache-2.0

//! How many requests there may be on endpoints: `api-rate-limit`, with Cilium's defaults.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use hive::{Cfg, config::Faults};
use skep_base_limiter::{Limiter, LimiterMetrics, NoRecorder, Parameters, Recorder};

/// The setting that errors name.
const SETTING: &str = "api-rate-limit";

/// Limits of requests to the API.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// Parameters of the API rate limiters, over their defaults:
    /// `endpoint-create=rate-limit:2/s,rate-burst:4`, or a JSON object. The limiters are endpoint-create,
    /// endpoint-delete, endpoint-get, endpoint-list and endpoint-patch.
    pub api_rate_limit: BTreeMap<String, String>,
}

impl Config {
    fn check(&self, faults: &mut Faults) {
        for (name, text) in &self.api_rate_limit {
            let Some(defaults) = DEFAULTS.iter().find(|(limiter, _)| limiter == name) else {
                let names: Vec<&str> = DEFAULTS.iter().map(|(limiter, _)| *limiter).collect();
                faults.add(
                    SETTING,
                    format!("unknown limiter `{name}`; there are {}", names.join(", ")),
                );
                continue;
            };
            for error in defaults.1().with(text).err().into_iter().flatten() {
                faults.add(SETTING, format!("{name}: {error}"));
            }
        }
    }

    /// A limiter with its parameters of the setting; they are valid.
    fn limiter(&self, name: &str, defaults: Parameters, recorder: &Arc<dyn Recorder>) -> Limiter {
        let text = self.api_rate_limit.get(name).map_or("", String::as_str);
        let parameters = defaults.with(text).unwrap_or(defaults);
        Limiter::new(name, parameters, recorder.clone())
    }
}

const CREATE: &str = "endpoint-create";
const DELETE: &str = "endpoint-delete";
const GET: &str = "endpoint-get";
const LIST: &str = "endpoint-list";
const PATCH: &str = "endpoint-patch";

type Limited = (&'static str, fn() -> Parameters);

const DEFAULTS: [Limited; 5] = [
    (CREATE, create),
    (DELETE, delete),
    (GET, get),
    (LIST, list),
    (PATCH, patch),
];

fn create() -> Parameters {
    Parameters {
        rate: 0.5,
        burst: 4,
        parallel: 4,
        min_parallel: 2,
        skip_initial: 4,
        max_wait: Duration::from_secs(60),
        ..adjusted(Duration::from_secs(2))
    }
}

fn delete() -> Parameters {
    Parameters {
        parallel: 4,
        min_parallel: 4,
        ..adjusted(Duration::from_millis(200))
    }
}

fn get() -> Parameters {
    Parameters {
        rate: 4.0,
        burst: 4,
        parallel: 4,
        min_parallel: 2,
        skip_initial: 4,
        max_wait: Duration::from_secs(10),
        ..adjusted(Duration::from_millis(200))
    }
}

fn list() -> Parameters {
    Parameters {
        rate: 1.0,
        burst: 4,
        parallel: 2,
        min_parallel: 2,
        ..adjusted(Duration::from_millis(300))
    }
}

fn patch() -> Parameters {
    Parameters {
        rate: 0.5,
        burst: 4,
        parallel: 4,
        skip_initial: 4,
        max_wait: Duration::from_secs(15),
        ..adjusted(Duration::from_secs(1))
    }
}

/// Limits that adjust to requests that should take so long.
fn adjusted(estimated_processing: Duration) -> Parameters {
    Parameters {
        estimated_processing,
        auto_adjust: true,
        ..Parameters::default()
    }
}

#[derive(Debug)]
pub(super) struct Limiters {
    pub(super) create: Limiter,
    pub(super) delete: Limiter,
    pub(super) get: Limiter,
    pub(super) list: Limiter,
    pub(super) patch: Limiter,
}

impl Limiters {
    pub(super) fn new(config: &Cfg<Config>, metrics: Option<Arc<LimiterMetrics>>) -> Self {
        let recorder: Arc<dyn Recorder> = match metrics {
            Some(metrics) => metrics,
            None => Arc::new(NoRecorder),
        };
        Self {
            create: config.limiter(CREATE, create(), &recorder),
            delete: config.limiter(DELETE, delete(), &recorder),
            get: config.limiter(GET, get(), &recorder),
            list: config.limiter(LIST, list(), &recorder),
            patch: config.limiter(PATCH, patch(), &recorder),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(setting: &[(&str, &str)]) -> Vec<String> {
        let pairs = setting
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        let config = Config {
            api_rate_limit: pairs.collect(),
        };
        let mut faults = Faults::default();
        config.check(&mut faults);
        faults
            .iter()
            .map(|(flag, text)| format!("{flag}: {text}"))
            .collect()
    }

    #[test]
    fn everything_that_is_wrong_is_named() {
        assert_eq!(
            faults(&[(CREATE, "rate-limit:5/s,rate-burst:10"), (PATCH, "log:true")]),
            [""; 0]
        );
        assert_eq!(
            faults(&[
                (CREATE, "rate-limit:5,auto-adjust:maybe"),
                ("endpoint-make", "log:true"),
                (GET, "min-wait-duration:20s"),
            ]),
            [
                "api-rate-limit: endpoint-create: rate-limit: `5` is not requests in a time, such as 5/m, 0.5/s or 10/30s",
                "api-rate-limit: endpoint-create: auto-adjust: `maybe` is not true or false",
                "api-rate-limit: endpoint-get: min-wait-duration is longer than max-wait-duration",
                "api-rate-limit: unknown limiter `endpoint-make`; there are endpoint-create, endpoint-delete, \
                 endpoint-get, endpoint-list, endpoint-patch",
            ]
        );
    }

    #[test]
    fn defaults_are_valid() {
        for (name, defaults) in DEFAULTS {
            assert_eq!(defaults().with(""), Ok(defaults()), "{name}");
        }
    }
}

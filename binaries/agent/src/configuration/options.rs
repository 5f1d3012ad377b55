// SPDX-License-Identifier: Apache-2.0

//! Options that change while the agent runs, until it ends.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use hive::Cfg;
use parking_lot::Mutex;
use skep_base_api::{BodyError, BodyModel};
use skep_base_api_types::DaemonConfigurationSpec;
use skep_base_settings::{MonitorConfig, PacketConfig};
use skep_datapath_hooks::{EventOptions, EventSwitch};
use skep_endpoint::Endpoints;
use skep_policy_repository::Repository;

use super::Configuration;

/// Levels of aggregation.
const LEVELS: [&str; 5] = ["None", "Lowest", "Low", "Medium", "Maximum"];
const AGGREGATION: &str = "MonitorAggregationLevel";
/// Options that are on or off.
const SWITCHES: [&str; 9] = [
    "Debug",
    "DebugLB",
    "DebugTagged",
    "DropNotification",
    "PolicyAuditMode",
    "PolicyTracing",
    "PolicyVerdictNotification",
    "SourceIPVerification",
    "TraceNotification",
];
const ENABLED: &str = "Enabled";
const DISABLED: &str = "Disabled";
const ENFORCEMENT: [&str; 3] = ["default", "always", "never"];

/// Name of a level of aggregation.
pub(super) fn level(number: u8) -> &'static str {
    LEVELS.get(usize::from(number)).copied().unwrap_or(LEVELS[0])
}

/// The options in force. What programs report follows them.
pub(crate) struct RuntimeOptions {
    spec: Mutex<DaemonConfigurationSpec>,
    events: Arc<EventSwitch>,
    /// They follow the options.
    endpoints: Option<Endpoints>,
    /// Absent: nothing is enforced.
    policies: Option<Repository>,
}

pub(super) fn runtime_options(
    all: Arc<Configuration>,
    monitor: Cfg<MonitorConfig>,
    packets: Cfg<PacketConfig>,
    events: Arc<EventSwitch>,
    endpoints: Option<Endpoints>,
    policies: Option<Repository>,
) -> Arc<RuntimeOptions> {
    let is_on = |setting: &str| all.get(setting) == "true";
    let switch = |is_on: bool| if is_on { ENABLED } else { DISABLED };
    let options = [
        ("Debug", switch(is_on("debug"))),
        ("DebugLB", DISABLED),
        ("DropNotification", switch(packets.drop_events)),
        (AGGREGATION, level(monitor.aggregation.number())),
        ("PolicyAuditMode", switch(is_on("policy-audit-mode"))),
        ("PolicyTracing", DISABLED),
        ("PolicyVerdictNotification", switch(packets.verdict_events)),
        (
            "SourceIPVerification",
            switch(is_on("enable-source-ip-verification")),
        ),
        ("TraceNotification", switch(packets.trace_events)),
    ];
    let enforcement = Some(all.get("enable-policy")).filter(|mode| !mode.is_empty());
    let spec = DaemonConfigurationSpec {
        options: options
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        policy_enforcement: enforcement.unwrap_or(ENFORCEMENT[0]).to_owned(),
    };
    Arc::new(RuntimeOptions {
        spec: Mutex::new(spec),
        events,
        endpoints,
        policies,
    })
}

/// Why an option is not changed. Texts are Cilium's.
#[derive(Debug, thiserror::Error)]
enum OptionError {
    #[error("unknown option {0:?}")]
    Unknown(String),
    #[error("invalid option value {0}")]
    Value(String),
    #[error("invalid monitor aggregation level {0:?}")]
    Level(String),
}

/// The value of an option in its normal form.
fn normal(name: &str, value: &str) -> Result<&'static str, OptionError> {
    let lower = value.to_lowercase();
    if name.eq_ignore_ascii_case(AGGREGATION) {
        let lower = if lower == "max" { "maximum" } else { &lower };
        let mut levels = LEVELS.iter().enumerate();
        let found =
            levels.find(|(number, level)| level.to_lowercase() == lower || number.to_string() == lower);
        let found = found.map(|(_, level)| *level);
        return found.ok_or_else(|| OptionError::Level(value.to_owned()));
    }
    if !SWITCHES.iter().any(|known| known.eq_ignore_ascii_case(name)) {
        return Err(OptionError::Unknown(name.to_owned()));
    }
    match lower.as_str() {
        "enabled" | "enable" | "true" | "on" | "1" => Ok(ENABLED),
        "disabled" | "disable" | "false" | "off" | "0" => Ok(DISABLED),
        _ => Err(OptionError::Value(value.to_owned())),
    }
}

impl RuntimeOptions {
    pub(super) fn spec(&self) -> DaemonConfigurationSpec {
        self.spec.lock().clone()
    }

    /// Changes all of the options, or none. Policies of all endpoints follow the enforcement mode.
    fn change(&self, wanted: &DaemonConfigurationSpec) -> Result<(), OptionError> {
        let options = wanted.options.iter();
        let normal = options.map(|(name, value)| Ok((name.clone(), normal(name, value)?.to_owned())));
        let normal: BTreeMap<String, String> = normal.collect::<Result<_, _>>()?;
        let mut spec = self.spec.lock();
        let before = spec.clone();
        spec.options.extend(normal);
        if !wanted.policy_enforcement.is_empty() {
            spec.policy_enforcement.clone_from(&wanted.policy_enforcement);
            // Checked when the body was read.
            if let (Ok(mode), Some(policies)) = (wanted.policy_enforcement.parse(), &self.policies)
                && let Err(error) = policies.set_enforcement(mode)
            {
                tracing::warn!(error = %hive::error_chain(&error), "Cannot write policy computations");
            }
        }
        if *spec != before {
            tracing::info!(options = ?spec.options, enforcement = spec.policy_enforcement, "Changed options");
        }
        if spec.options != before.options && !self.change_endpoints(&wanted.options) {
            self.events.set(events(&spec.options));
        }
        Ok(())
    }

    /// Changes the options of all endpoints. Returns false without the host endpoint, whose events are those of the node.
    fn change_endpoints(&self, changes: &BTreeMap<String, String>) -> bool {
        let Some(endpoints) = &self.endpoints else {
            return false;
        };
        endpoints.override_options(changes).unwrap_or_else(|error| {
            tracing::warn!(error = %hive::error_chain(&error), "Cannot change options of endpoints");
            false
        })
    }
}

fn events(options: &BTreeMap<String, String>) -> EventOptions {
    let is_on = |name: &str| options.get(name).is_some_and(|value| value == ENABLED);
    let aggregation = options.get(AGGREGATION).map_or(LEVELS[0], String::as_str);
    let aggregation = LEVELS.iter().position(|level| *level == aggregation);
    EventOptions {
        drops: is_on("DropNotification"),
        traces: is_on("TraceNotification"),
        verdicts: is_on("PolicyVerdictNotification"),
        debug: is_on("Debug"),
        aggregation: aggregation
            .and_then(|level| level.try_into().ok())
            .unwrap_or_default(),
    }
}

const BODY: BodyModel = BodyModel {
    parameter: "configuration",
    name: "DaemonConfigurationSpec",
    fields: &[
        ("options", "models.ConfigurationMap"),
        ("policy-enforcement", "string"),
    ],
};

fn read(headers: &HeaderMap, body: &[u8]) -> Result<DaemonConfigurationSpec, BodyError> {
    let spec: DaemonConfigurationSpec = BODY.required(headers, body)?;
    match spec.policy_enforcement.as_str() {
        "" => Ok(spec),
        mode if ENFORCEMENT.contains(&mode) => Ok(spec),
        _ => Err(BodyError::not_listed(
            "policy-enforcement",
            &ENFORCEMENT.join(" "),
        )),
    }
}

/// Changes options, until the agent ends.
#[utoipa::path(patch, path = "/config", request_body = DaemonConfigurationSpec, responses(
    (status = 200, description = "The options are changed"),
    (status = 400, description = "An option or its value is unknown", body = String),
    (status = 422, description = "The body is missing, or the policy enforcement mode is unknown")))]
pub(super) async fn change(
    State(options): State<Arc<RuntimeOptions>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let wanted = match read(&headers, &body) {
        Ok(wanted) => wanted,
        Err(error) => return error.into_response(),
    };
    match options.change(&wanted) {
        Ok(()) => StatusCode::OK.into_response(),
        Err(error) => {
            let text = format!("invalid configuration option: {error}");
            (StatusCode::BAD_REQUEST, Json(text)).into_response()
        }
    }
}

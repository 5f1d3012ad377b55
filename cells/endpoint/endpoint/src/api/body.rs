// SPDX-License-Identifier: Apache-2.0

//! Bodies of requests, with the errors of Cilium's servers for those that are invalid.

use axum::http::{HeaderMap, header};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, error::Category};

use super::ApiError;

/// Codes of validation errors.
const REQUIRED: u32 = 602;
const NOT_LISTED: u32 = 606;

/// States that a request may name.
const STATES: &str = "waiting-for-identity not-ready waiting-to-regenerate regenerating restoring ready disconnecting \
                      disconnected invalid";

/// What a body is: the name of the parameter, of the Go type, and the Go types of its fields.
pub(super) struct Model {
    pub(super) parameter: &'static str,
    pub(super) name: &'static str,
    pub(super) fields: &'static [(&'static str, &'static str)],
}

pub(super) const ENDPOINT: Model = Model {
    parameter: "endpoint",
    name: "EndpointChangeRequest",
    fields: &[
        ("addressing", "models.AddressPair"),
        ("container-id", "string"),
        ("container-interface-name", "string"),
        ("container-netns-path", "string"),
        ("datapath-configuration", "models.EndpointDatapathConfiguration"),
        ("host-mac", "string"),
        ("id", "int64"),
        ("interface-index", "int64"),
        ("interface-name", "string"),
        ("k8s-namespace", "string"),
        ("k8s-pod-name", "string"),
        ("k8s-uid", "string"),
        ("labels", "models.Labels"),
        ("mac", "string"),
        ("netns-cookie", "string"),
        ("properties", "map[string]interface {}"),
        ("state", "models.EndpointState"),
        ("sync-build-endpoint", "bool"),
    ],
};
pub(super) const DELETION: Model = Model {
    parameter: "endpoint",
    name: "EndpointBatchDeleteRequest",
    fields: &[("container-id", "string")],
};
pub(super) const CONFIGURATION: Model = Model {
    parameter: "endpointConfiguration",
    name: "EndpointConfigurationSpec",
    fields: &[
        ("label-configuration", "models.LabelConfigurationSpec"),
        ("options", "models.ConfigurationMap"),
    ],
};
pub(super) const LABEL_CONFIGURATION: Model = Model {
    parameter: "configuration",
    name: "LabelConfigurationSpec",
    fields: &[("user", "models.Labels")],
};
/// A list, not an object.
pub(super) const LABELS: Model = Model {
    parameter: "labels",
    name: "Labels",
    fields: &[],
};

/// Reads a body that may be missing.
pub(super) fn optional<T: DeserializeOwned>(
    model: &Model,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Option<T>, ApiError> {
    if body.is_empty() {
        return Ok(None);
    }
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let kind = kind.unwrap_or("application/octet-stream");
    if kind.split(';').next().map(str::trim) != Some("application/json") {
        return Err(ApiError::Framework {
            code: 415,
            message: format!("unsupported media type {kind:?}, only [application/json] are allowed"),
        });
    }
    let read = serde_json::from_slice(body);
    let read = read.or_else(|error| match serde_json::from_slice::<IgnoredAny>(body) {
        // Go reads the syntax first.
        Err(syntax) => Err(syntax),
        Ok(_) => without_nulls(body).ok_or(error),
    });
    read.map(Some).map_err(|error| ApiError::Framework {
        code: 400,
        message: format!(
            "parsing {} body from \"\" failed, because {}",
            model.parameter,
            cause(model, body, &error)
        ),
    })
}

/// Reads a body without its fields that are `null`: they are empty.
fn without_nulls<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    let Ok(Value::Object(mut object)) = serde_json::from_slice(body) else {
        return None;
    };
    object.retain(|_, value| !value.is_null());
    serde_json::from_value(object.into()).ok()
}

/// Reads a body.
pub(super) fn required<T: DeserializeOwned>(
    model: &Model,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<T, ApiError> {
    optional(model, headers, body)?.ok_or_else(|| missing(model.parameter))
}

fn missing(what: &str) -> ApiError {
    ApiError::Framework {
        code: REQUIRED,
        message: format!("{what} in body is required"),
    }
}

/// Checks the state that a request names.
pub(super) fn check_state(state: &str) -> Result<(), ApiError> {
    match state {
        "" => Err(missing("state")),
        state if STATES.split(' ').any(|known| known == state) => Ok(()),
        _ => Err(ApiError::Framework {
            code: NOT_LISTED,
            message: format!("state in body should be one of [{STATES}]"),
        }),
    }
}

/// The error as Go's decoder words it.
fn cause(model: &Model, body: &[u8], error: &serde_json::Error) -> String {
    match error.classify() {
        Category::Eof | Category::Io => "unexpected EOF".to_owned(),
        Category::Syntax => {
            let line = body
                .split(|byte| *byte == b'\n')
                .nth(error.line().saturating_sub(1));
            let found = line.and_then(|line| line.get(error.column().saturating_sub(1)));
            let place = match error.to_string().starts_with("key must be a string") {
                true => "looking for beginning of object key string",
                false => "looking for beginning of value",
            };
            let found = char::from(found.copied().unwrap_or_default());
            format!("invalid character {found:?} {place}")
        }
        Category::Data => match serde_json::from_slice(body) {
            Ok(Value::Object(object)) if !model.fields.is_empty() => {
                let wrong = model.fields.iter().find_map(|(field, wanted)| {
                    let found = object.get(*field).filter(|value| !is_of(value, wanted))?;
                    let (kind, name) = (kind(found), model.name);
                    Some(format!(
                        "json: cannot unmarshal {kind} into Go struct field {name}.{field} of type {wanted}"
                    ))
                });
                wrong.unwrap_or_else(|| error.to_string())
            }
            Ok(value) => format!(
                "json: cannot unmarshal {} into Go value of type models.{}",
                kind(&value),
                model.name
            ),
            Err(_) => error.to_string(),
        },
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn is_of(value: &Value, wanted: &str) -> bool {
    match (value, wanted) {
        (Value::Null, _) => true,
        (value, "string" | "models.EndpointState") => value.is_string(),
        (value, "int64") => value.is_i64(),
        (value, "bool") => value.is_boolean(),
        (value, "models.Labels") => value.is_array(),
        (value, _) => value.is_object(),
    }
}

// SPDX-License-Identifier: Apache-2.0

//! Bodies of requests, and the errors of Cilium's servers for invalid ones.

use axum::{
    Json,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Codes of validation errors.
const REQUIRED: u32 = 602;
const NOT_LISTED: u32 = 606;
const UNSUPPORTED: u32 = 415;

/// An invalid body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BodyError {
    code: u32,
    message: String,
}

impl BodyError {
    /// A value that is missing: the body, or a field of it.
    #[must_use]
    pub fn required(what: &str) -> Self {
        Self {
            code: REQUIRED,
            message: format!("{what} in body is required"),
        }
    }

    /// A value of a field that is not in the list of its values, which spaces separate.
    #[must_use]
    pub fn not_listed(field: &str, values: &str) -> Self {
        Self {
            code: NOT_LISTED,
            message: format!("{field} in body should be one of [{values}]"),
        }
    }
}

impl IntoResponse for BodyError {
    fn into_response(self) -> Response {
        let status = match self.code {
            UNSUPPORTED => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            REQUIRED.. => StatusCode::UNPROCESSABLE_ENTITY,
            _ => StatusCode::BAD_REQUEST,
        };
        (
            status,
            Json(json!({ "code": self.code, "message": self.message })),
        )
            .into_response()
    }
}

/// Type of a body, for the texts of errors: name of the parameter, name of the Go type, Go types of the fields. A list has no
/// fields.
#[derive(Clone, Copy, Debug)]
pub struct BodyModel {
    pub parameter: &'static str,
    pub name: &'static str,
    pub fields: &'static [(&'static str, &'static str)],
}

impl BodyModel {
    /// A list of labels.
    pub const LABELS: Self = Self {
        parameter: "labels",
        name: "Labels",
        fields: &[],
    };

    /// Reads a body that may be missing.
    ///
    /// # Errors
    ///
    /// [`BodyError`] for another media type than JSON, and for JSON of another type.
    pub fn optional<T: DeserializeOwned>(
        &self,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<Option<T>, BodyError> {
        if body.is_empty() {
            return Ok(None);
        }
        let kind = headers
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok());
        let kind = kind.unwrap_or("application/octet-stream");
        if kind.split(';').next().map(str::trim) != Some("application/json") {
            return Err(BodyError {
                code: UNSUPPORTED,
                message: format!("unsupported media type {kind:?}, only [application/json] are allowed"),
            });
        }
        self.parse(body).map(Some)
    }

    /// Reads a body.
    ///
    /// # Errors
    ///
    /// As for [`Self::optional`], and for an empty body.
    pub fn required<T: DeserializeOwned>(&self, headers: &HeaderMap, body: &[u8]) -> Result<T, BodyError> {
        self.optional(headers, body)?
            .ok_or_else(|| BodyError::required(self.parameter))
    }

    fn parse<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, BodyError> {
        let failed = |cause: String| BodyError {
            code: 400,
            message: format!(
                "parsing {} body from \"\" failed, because {cause}",
                self.parameter
            ),
        };
        let value: Value = serde_json::from_slice(body).map_err(|error| failed(syntax(body, &error)))?;
        if let Some(cause) = self.mismatch(&value) {
            return Err(failed(format!("json: cannot unmarshal {cause}")));
        }
        let value = match value {
            Value::Null if self.fields.is_empty() => json!([]),
            Value::Null => json!({}),
            value => without_nulls(value),
        };
        serde_json::from_value(value).map_err(|error| failed(error.to_string()))
    }

    /// The first value of another type.
    fn mismatch(&self, value: &Value) -> Option<String> {
        let is_list = self.fields.is_empty();
        let name = self.name;
        match value {
            Value::Object(object) if !is_list => self.fields.iter().find_map(|(field, wanted)| {
                let (found, wanted) = wrong(object.get(*field)?, wanted)?;
                Some(format!(
                    "{} into Go struct field {name}.{field} of type {wanted}",
                    kind(found)
                ))
            }),
            Value::Array(list) if is_list => {
                let found = list.iter().find(|value| !is_of(value, "string"))?;
                Some(format!("{} into Go value of type string", kind(found)))
            }
            Value::Null => None,
            value => Some(format!("{} into Go value of type models.{name}", kind(value))),
        }
    }
}

/// A syntax error in the words of Go's decoder.
fn syntax(body: &[u8], error: &serde_json::Error) -> String {
    if !error.is_syntax() {
        return "unexpected EOF".to_owned();
    }
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

/// A value without members that are `null`: they are empty.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(object) => {
            let kept = object.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key, without_nulls(value))).collect())
        }
        value => value,
    }
}

/// A value that is not of a Go type, or the first such value in it, with the type that it should have.
fn wrong<'a>(value: &'a Value, wanted: &'a str) -> Option<(&'a Value, &'a str)> {
    if !is_of(value, wanted) {
        return Some((value, wanted));
    }
    let element = match wanted {
        "models.ConfigurationMap" | "models.Labels" => "string",
        "models.EndpointDatapathConfiguration" => "bool",
        _ => return None,
    };
    let mut values: Box<dyn Iterator<Item = &Value>> = match value {
        Value::Object(object) => Box::new(object.values()),
        Value::Array(list) => Box::new(list.iter()),
        _ => return None,
    };
    let found = values.find(|value| !is_of(value, element))?;
    Some((found, element))
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const MODEL: BodyModel = BodyModel {
        parameter: "configuration",
        name: "Spec",
        fields: &[("options", "models.ConfigurationMap"), ("mode", "string")],
    };

    #[derive(serde::Deserialize, Default, Debug)]
    #[serde(default)]
    struct Spec {
        options: BTreeMap<String, String>,
        mode: String,
    }

    #[test]
    fn errors_are_worded_as_by_gos_decoder() {
        let json = HeaderMap::from_iter([(header::CONTENT_TYPE, "application/json".parse().unwrap())]);
        let cause = |body: &str| {
            let error = MODEL
                .required::<Spec>(&json, body.as_bytes())
                .unwrap_err()
                .to_string();
            let prefix = "parsing configuration body from \"\" failed, because ";
            error.strip_prefix(prefix).map_or(error.clone(), str::to_owned)
        };

        assert_eq!(cause(""), "configuration in body is required");
        assert_eq!(cause("{"), "unexpected EOF");
        assert_eq!(cause("x"), "invalid character 'x' looking for beginning of value");
        assert_eq!(
            cause("[]"),
            "json: cannot unmarshal array into Go value of type models.Spec"
        );
        let field = "into Go struct field Spec.options of type";
        assert_eq!(
            cause(r#"{"options":[]}"#),
            format!("json: cannot unmarshal array {field} models.ConfigurationMap")
        );
        assert_eq!(
            cause(r#"{"options":{"a":1}}"#),
            format!("json: cannot unmarshal number {field} string")
        );
        for valid in [r#"{"options":null,"more":1}"#, "null"] {
            let read = MODEL.required::<Spec>(&json, valid.as_bytes()).unwrap();
            assert!(read.options.is_empty() && read.mode.is_empty(), "{read:?}");
        }
        let none = MODEL.required::<Spec>(&HeaderMap::new(), b"{}").unwrap_err();
        assert_eq!(none.code, UNSUPPORTED);
    }
}

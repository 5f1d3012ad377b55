// SPDX-License-Identifier: Apache-2.0

//! Failures as the API reports them: a `Status` object with code, reason, message and details.

use serde_json::{Value, json};

use crate::gvr::Gvr;

/// Why a request failed, in the words and with the code that a Kubernetes API server uses.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status code.
    pub code: u16,
    /// Machine readable reason, such as `NotFound`; empty when there is none.
    pub reason: &'static str,
    /// What went wrong, for people.
    pub message: String,
    /// The object it is about, causes and the time to wait before a retry, as `Status.details`.
    pub details: Option<Box<Value>>,
    /// A token to go on with, if a page of a list has expired.
    pub continue_token: Option<String>,
}

/// One fault of an object that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Path of the field, such as `spec.ports[0].port`.
    pub field: String,
    /// Kind of fault, such as `FieldValueRequired`.
    pub reason: &'static str,
    /// What is wrong, without the path.
    pub detail: String,
}

impl Fault {
    /// A field that must be there is missing.
    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        let detail = if detail.is_empty() {
            "Required value".into()
        } else {
            format!("Required value: {detail}")
        };
        Fault {
            field: field.into(),
            reason: "FieldValueRequired",
            detail,
        }
    }

    /// A field has a value that it must not have.
    pub fn invalid(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        Fault {
            field: field.into(),
            reason: "FieldValueInvalid",
            detail: format!("Invalid value: {}: {detail}", shown(value)),
        }
    }

    /// A field has a value outside of the ones that are supported.
    pub fn not_supported(field: impl Into<String>, value: &Value, supported: &[&str]) -> Self {
        let list: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
        Fault {
            field: field.into(),
            reason: "FieldValueNotSupported",
            detail: format!(
                "Unsupported value: {}: supported values: {}",
                shown(value),
                list.join(", ")
            ),
        }
    }

    /// A value appears twice where it must be unique.
    pub fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        Fault {
            field: field.into(),
            reason: "FieldValueDuplicate",
            detail: format!("Duplicate value: {}", shown(value)),
        }
    }

    /// A field must not be used here.
    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Fault {
            field: field.into(),
            reason: "FieldValueForbidden",
            detail: format!("Forbidden: {detail}"),
        }
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(s) => format!("{s:?}"),
        other => other.to_string(),
    }
}

impl ApiError {
    fn new(code: u16, reason: &'static str, message: String) -> Self {
        ApiError {
            code,
            reason,
            message,
            details: None,
            continue_token: None,
        }
    }

    fn about(mut self, gvr: &Gvr, name: &str) -> Self {
        let mut details = json!({ "name": name, "kind": gvr.resource.as_str() });
        if !gvr.group.is_empty() {
            details["group"] = gvr.group.as_str().into();
        }
        self.details = Some(Box::new(details));
        self
    }

    /// 404: no such object.
    pub fn not_found(gvr: &Gvr, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} {name:?} not found", gvr.qualified())).about(gvr, name)
    }

    /// 404: no such path, group, version or resource.
    pub fn no_resource() -> Self {
        let mut error = Self::new(
            404,
            "NotFound",
            "the server could not find the requested resource".to_owned(),
        );
        error.details = Some(Box::new(json!({})));
        error
    }

    /// 409: an object of this name exists.
    pub fn already_exists(gvr: &Gvr, name: &str) -> Self {
        Self::new(
            409,
            "AlreadyExists",
            format!("{} {name:?} already exists", gvr.qualified()),
        )
        .about(gvr, name)
    }

    /// 409: the object changed since it was read.
    pub fn modified(gvr: &Gvr, name: &str) -> Self {
        Self::conflict(
            gvr,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 409: another version of the object is stored; as the fake client words it.
    pub(crate) fn other_version(gvr: &Gvr, name: &str, current: &str, got: &str) -> Self {
        let detail = format!(
            "the object has been modified; resource version mismatch, current {current:?}, got {got:?}"
        );
        Self::conflict(gvr, name, &detail)
    }

    /// 409: the operation does not fit the state of the object.
    pub fn conflict(gvr: &Gvr, name: &str, detail: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {name:?}: {detail}",
            gvr.qualified()
        );
        Self::new(409, "Conflict", message).about(gvr, name)
    }

    /// 409: fields of a server-side apply belong to other managers. `conflicts` holds manager text and field path.
    pub fn apply_conflict(conflicts: &[(String, String)]) -> Self {
        let lines: Vec<String> = conflicts
            .iter()
            .map(|(manager, field)| format!("conflict with {manager}: {field}"))
            .collect();
        let message = if lines.len() == 1 {
            format!("Apply failed with 1 conflict: {}", lines[0])
        } else {
            let mut managers: Vec<(&String, Vec<&String>)> = Vec::new();
            for (manager, field) in conflicts {
                match managers.iter_mut().find(|(m, _)| *m == manager) {
                    Some((_, fields)) => fields.push(field),
                    None => managers.push((manager, vec![field])),
                }
            }
            let parts: Vec<String> = managers
                .iter()
                .map(|(manager, fields)| {
                    let fields: Vec<String> = fields.iter().map(|f| format!("- {f}")).collect();
                    format!("conflicts with {manager}:\n{}", fields.join("\n"))
                })
                .collect();
            format!(
                "Apply failed with {} conflicts: {}",
                conflicts.len(),
                parts.join("\n")
            )
        };
        let causes: Vec<Value> = conflicts
            .iter()
            .map(|(manager, field)| {
                json!({ "reason": "FieldManagerConflict", "message": format!("conflict with {manager}"), "field": field })
            })
            .collect();
        let mut error = Self::new(409, "Conflict", message);
        error.details = Some(Box::new(json!({ "causes": causes })));
        error
    }

    /// 400: the request makes no sense.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message.into())
    }

    /// 403: not allowed in the state that things are in.
    pub fn forbidden(gvr: &Gvr, name: &str, detail: &str) -> Self {
        Self::new(
            403,
            "Forbidden",
            format!("{} {name:?} is forbidden: {detail}", gvr.qualified()),
        )
        .about(gvr, name)
    }

    /// 401: no or wrong credentials.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized".to_owned())
    }

    /// 405: the resource has no such verb.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        let mut error = Self::new(405, "MethodNotAllowed", message.to_owned());
        error.details = Some(Box::new(json!({})));
        error
    }

    /// 501: what only a node can do, on a server that reaches none. `instead` says what to do.
    pub fn no_nodes(what: &str, instead: &str) -> Self {
        let mut message = format!("pods/{what} is not served: this API server does not reach into nodes");
        if !instead.is_empty() {
            message = format!("{message}; {instead}");
        }
        let mut error = Self::new(501, "NotImplemented", message);
        error.details = Some(Box::new(json!({})));
        error
    }

    /// 406: the client accepts nothing that is served.
    pub fn not_acceptable() -> Self {
        let message =
            "only the following media types are accepted: application/json, application/yaml".to_owned();
        Self::new(406, "NotAcceptable", message)
    }

    /// 410: the revision is not kept any more.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message.into())
    }

    /// 413: the body is larger than `limit` bytes.
    pub fn too_large(limit: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit}");
        Self::new(413, "RequestEntityTooLarge", message)
    }

    /// 415: the body has a type that is not understood; `accepted` lists the ones that are.
    pub fn unsupported_media_type(accepted: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {accepted}"
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// 422: the object has `faults`.
    pub fn invalid(group: &str, kind: &str, name: &str, faults: &[Fault]) -> Self {
        let lines: Vec<String> = faults
            .iter()
            .map(|f| format!("{}: {}", f.field, f.detail))
            .collect();
        let text = if lines.len() == 1 {
            lines[0].clone()
        } else {
            format!("[{}]", lines.join(", "))
        };
        let qualified = if group.is_empty() {
            kind.to_owned()
        } else {
            format!("{kind}.{group}")
        };
        let causes: Vec<Value> = faults
            .iter()
            .map(|f| json!({ "reason": f.reason, "message": f.detail, "field": f.field }))
            .collect();
        let mut error = Self::new(422, "Invalid", format!("{qualified} {name:?} is invalid: {text}"));
        let mut details = json!({ "name": name, "kind": kind, "causes": causes });
        if !group.is_empty() {
            details["group"] = group.into();
        }
        error.details = Some(Box::new(details));
        error
    }

    /// 422: the patch could not be applied to the object.
    pub fn patch_failed(message: impl Into<String>) -> Self {
        Self::new(
            422,
            "Invalid",
            format!(
                "the server rejected our request due to an error in our request: {}",
                message.into()
            ),
        )
    }

    /// 429: too many requests; retry after `seconds`.
    pub fn too_many_requests(message: &str, seconds: u32) -> Self {
        let mut error = Self::new(429, "TooManyRequests", message.to_owned());
        error.details = Some(Box::new(json!({ "retryAfterSeconds": seconds })));
        error
    }

    /// 500: a fault of this server.
    pub fn internal(message: &str) -> Self {
        let mut error = Self::new(
            500,
            "InternalError",
            format!("Internal error occurred: {message}"),
        );
        error.details = Some(Box::new(json!({ "causes": [{ "message": message }] })));
        error
    }

    /// 504: the revision asked for lies in the future.
    pub fn revision_too_large(asked: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let mut error = Self::new(504, "Timeout", message);
        error.details = Some(Box::new(json!({
            "causes": [{ "reason": "ResourceVersionTooLarge", "message": "Too large resource version" }],
            "retryAfterSeconds": 1,
        })));
        error
    }

    /// The `Status` object that reports this failure to clients.
    pub fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        if let Some(details) = &self.details {
            status["details"] = (**details).clone();
        }
        if let Some(token) = &self.continue_token {
            status["metadata"]["continue"] = token.as_str().into();
        }
        status["code"] = self.code.into();
        status
    }

    /// True if the object or resource does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code == 404
    }

    /// True if the object changed since it was read.
    pub fn is_conflict(&self) -> bool {
        self.reason == "Conflict"
    }

    /// True if the revision asked for is gone, so that the client must list again.
    pub fn is_expired(&self) -> bool {
        self.code == 410
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_carries_code_and_details() {
        let status = ApiError::not_found(&Gvr::new("apps", "v1", "deployments"), "web").status();

        assert_eq!(status["code"], 404);
        assert_eq!(status["reason"], "NotFound");
        assert_eq!(
            status["details"],
            json!({ "name": "web", "kind": "deployments", "group": "apps" })
        );
    }
}

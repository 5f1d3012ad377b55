// SPDX-License-Identifier: Apache-2.0

//! Label and field selectors of requests.

use serde_json::Value;
use skep_k8s_types::selector;
use skep_k8s_types::slim::{self, Labels};

use crate::error::ApiError;
use crate::kinds::Kind;
use crate::object;

/// A label selector such as `app=web,tier in (front,back),!old`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(selector::Selector);

impl LabelSelector {
    /// Reads the text form.
    ///
    /// # Errors
    /// If a requirement is malformed.
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        let parsed: Result<_, selector::SelectorError> = text.parse();
        parsed
            .map(Self)
            .map_err(|error| ApiError::bad_request(format!("unable to parse requirement: {error}")))
    }

    /// Reads the form of `spec.selector` of workloads: `matchLabels` and `matchExpressions`.
    pub fn of_object(selector: &Value) -> Self {
        let read: Option<slim::LabelSelector> = serde_json::from_value(selector.clone()).ok();
        let selector = read.and_then(|selector| selector::Selector::try_from(&selector).ok());
        Self(selector.unwrap_or_default())
    }

    /// Reads the form of `spec.selector` of services: labels that must all be there.
    pub fn of_map(labels: Option<&Value>) -> Self {
        Self::of_object(&serde_json::json!({ "matchLabels": labels }))
    }

    /// True if it selects everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if the labels of `object` fulfil it.
    pub fn matches(&self, object: &Value) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let labels = object::at(object, &["metadata", "labels"]).and_then(Value::as_object);
        let labels = labels.into_iter().flatten();
        let labels: Labels = labels
            .filter_map(|(key, value)| Some((key, value.as_str()?)))
            .collect();
        self.0.matches(&labels)
    }

    /// The text form, as a scale sub-resource shows it.
    pub fn to_text(&self) -> String {
        self.0.to_string()
    }
}

/// A field selector such as `metadata.name=web,spec.nodeName!=n1`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(selector::FieldSelector);

impl FieldSelector {
    /// Reads the text form.
    ///
    /// # Errors
    /// If a term is malformed.
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        let parsed: Result<_, selector::SelectorError> = text.parse();
        parsed
            .map(Self)
            .map_err(|error| ApiError::bad_request(format!("invalid selector: {error}")))
    }

    /// Fails with the field that objects of `kind` cannot be selected by.
    ///
    /// # Errors
    /// If there is such a field.
    pub fn check(&self, kind: &Kind) -> Result<(), ApiError> {
        match self.0.paths().find(|field| !is_selectable(kind, field)) {
            Some(field) => Err(ApiError::bad_request(format!(
                "field label not supported: {field}"
            ))),
            None => Ok(()),
        }
    }

    /// True if it selects everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if the fields of `object` fulfil it.
    pub fn matches(&self, object: &Value) -> bool {
        self.0.matches(|field| Some(field_text(object, field).into()))
    }
}

impl From<selector::Selector> for LabelSelector {
    fn from(selector: selector::Selector) -> Self {
        Self(selector)
    }
}

impl From<selector::FieldSelector> for FieldSelector {
    fn from(selector: selector::FieldSelector) -> Self {
        Self(selector)
    }
}

fn field_text(object: &Value, field: &str) -> String {
    let field = match field {
        "source" if object.get("involvedObject").is_some() => "source.component",
        other => other,
    };
    let path: Vec<&str> = field.trim_start_matches('.').split('.').collect();
    match object::at(object, &path) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => match field {
            "spec.unschedulable" | "spec.hostNetwork" => "false".to_owned(),
            "status.replicas" | "status.successful" => "0".to_owned(),
            _ => String::new(),
        },
        Some(other) => other.to_string(),
    }
}

fn is_selectable(kind: &Kind, field: &str) -> bool {
    if matches!(field, "metadata.name" | "metadata.namespace") {
        return true;
    }
    if let Some(custom) = &kind.custom {
        return custom
            .selectable_fields
            .iter()
            .any(|f| f.trim_start_matches('.') == field);
    }
    let fields: &[&str] = match (kind.gvr.group.as_str(), kind.gvr.resource.as_str()) {
        ("", "pods") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ],
        ("", "nodes") => &["spec.unschedulable"],
        ("", "namespaces") => &["status.phase"],
        ("", "services") => &["spec.clusterIP", "spec.type"],
        ("", "secrets") => &["type"],
        ("", "events") => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        ("apps", "replicasets") | ("", "replicationcontrollers") => &["status.replicas"],
        ("batch", "jobs") => &["status.successful"],
        ("certificates.k8s.io", _) => &["spec.signerName"],
        // Kinds without a description (the fake client) can be selected by anything.
        _ if matches!(kind.shape, crate::schema::Shape::Any) => return true,
        _ => &[],
    };
    fields.contains(&field)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn labelled(labels: Value) -> Value {
        json!({ "metadata": { "name": "a", "labels": labels } })
    }

    #[test]
    fn matches_equality_and_sets() {
        let object = labelled(json!({ "app": "web", "tier": "front", "size": "5" }));
        let cases = [
            ("", true),
            ("app==web,tier!=back", true),
            ("app notin (web)", false),
            ("size>5", false),
        ];
        for (text, expected) in cases {
            assert_eq!(
                LabelSelector::parse(text).unwrap().matches(&object),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn matches_fields() {
        let object = json!({ "metadata": { "name": "a", "namespace": "b" }, "spec": { "nodeName": "n1" } });
        let cases = [
            ("metadata.name=a", true),
            ("metadata.name==a,metadata.namespace!=c", true),
            ("spec.nodeName=n1", true),
            ("spec.nodeName!=n1", false),
            ("spec.unschedulable=false", true),
        ];
        for (text, expected) in cases {
            assert_eq!(
                FieldSelector::parse(text).unwrap().matches(&object),
                expected,
                "{text}"
            );
        }
        assert!(FieldSelector::parse("nonsense").is_err());
    }
}

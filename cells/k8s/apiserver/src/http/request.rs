// SPDX-License-Identifier: Apache-2.0

//! Parts of a request: path and query.

use std::collections::HashMap;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use serde_json::Value;
use skep_k8s_memory::{
    ApiError, DeleteOptions, Fault, FieldSelector, FieldValidation, Gvr, LabelSelector, ListOptions,
    Propagation, VersionMatch, WriteOptions, object,
};

/// A path below a group and version.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) gvr: Gvr,
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    pub(super) subresource: String,
}

/// Reads the segments after the version: `namespaces/shop/services/web/status`.
pub(super) fn target(group: &str, version: &str, segments: &[String]) -> Option<Target> {
    let make = |namespace: Option<&String>, rest: &[String]| {
        let [resource, rest @ ..] = rest else { return None };
        if rest.len() > 2 {
            return None;
        }
        Some(Target {
            gvr: Gvr::new(group, version, resource),
            namespace: namespace.cloned(),
            name: rest.first().cloned().unwrap_or_default(),
            subresource: rest.get(1).cloned().unwrap_or_default(),
        })
    };
    match segments {
        [namespaces, _, sub]
            if namespaces == "namespaces" && group.is_empty() && (sub == "status" || sub == "finalize") =>
        {
            make(None, segments)
        }
        [namespaces, namespace, rest @ ..] if namespaces == "namespaces" && !rest.is_empty() => {
            make(Some(namespace), rest)
        }
        _ => make(None, segments),
    }
}

/// The query of a request.
#[derive(Debug, Default)]
pub(super) struct Query(HashMap<String, String>);

impl Query {
    pub(super) fn parse(text: &str) -> Self {
        Query(
            text.split('&')
                .filter(|part| !part.is_empty())
                .map(|part| part.split_once('=').unwrap_or((part, "")))
                .map(|(key, value)| (decode_percent(key, true), decode_percent(value, true)))
                .collect(),
        )
    }

    /// All values of a key that may be repeated.
    pub(super) fn all(text: &str, key: &str) -> Vec<String> {
        let parts = text.split('&').filter_map(|part| part.split_once('='));
        parts
            .filter(|(found, _)| decode_percent(found, true) == key)
            .map(|(_, value)| decode_percent(value, true))
            .collect()
    }

    pub(super) fn text(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }

    /// True if the key is there, with a value or without.
    pub(super) fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    pub(super) fn flag(&self, key: &str) -> bool {
        // As Go's conversion of query values: anything but these is true.
        self.0
            .get(key)
            .is_some_and(|value| !matches!(value.as_str(), "false" | "0" | "f" | "F" | "FALSE" | "False"))
    }

    pub(super) fn number<N: std::str::FromStr>(&self, key: &str) -> Result<Option<N>, ApiError> {
        match self.text(key) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                ApiError::bad_request(format!("invalid query parameter {key}: {text:?} is not a number"))
            }),
        }
    }

    pub(super) fn list_options(&self) -> Result<ListOptions, ApiError> {
        let version = self.text("resourceVersion");
        let resource_version = match version {
            "" => None,
            text => Some(text.parse::<u64>().map_err(|_| {
                ApiError::bad_request(format!("invalid resource version {text:?}: it is not a number"))
            })?),
        };
        let version_match = match self.text("resourceVersionMatch") {
            "" => None,
            "Exact" => Some(VersionMatch::Exact),
            "NotOlderThan" => Some(VersionMatch::NotOlderThan),
            other => {
                let value = Value::from(other);
                let fault = Fault::not_supported("resourceVersionMatch", &value, &["Exact", "NotOlderThan"]);
                return Err(ApiError::invalid("meta.k8s.io", "ListOptions", "", &[fault]));
            }
        };
        Ok(ListOptions {
            labels: LabelSelector::parse(self.text("labelSelector"))?,
            fields: FieldSelector::parse(self.text("fieldSelector"))?,
            limit: self.number("limit")?.unwrap_or(0),
            continue_token: self.text("continue").to_owned(),
            resource_version,
            version_match,
            bookmarks: self.flag("allowWatchBookmarks"),
            send_initial_events: self.flag("sendInitialEvents"),
            timeout: self
                .number("timeoutSeconds")?
                .filter(|s| *s > 0)
                .map(Duration::from_secs),
        })
    }

    fn dry_run(&self) -> Result<bool, ApiError> {
        match self.text("dryRun") {
            "" => Ok(false),
            "All" => Ok(true),
            other => Err(ApiError::bad_request(format!(
                "Invalid value: {other:?}: dryRun: Unsupported value: supported values: \"All\""
            ))),
        }
    }

    pub(super) fn write_options(&self, user_agent: &str) -> Result<WriteOptions, ApiError> {
        let validation = match self.text("fieldValidation") {
            "Ignore" => FieldValidation::Ignore,
            "" | "Warn" => FieldValidation::Warn,
            "Strict" => FieldValidation::Strict,
            other => {
                return Err(ApiError::bad_request(format!(
                    "fieldValidation: Unsupported value: {other:?}: supported values: \"Ignore\", \"Strict\", \"Warn\""
                )));
            }
        };
        let manager = match self.text("fieldManager") {
            "" => user_agent.split('/').next().unwrap_or_default(),
            named => named,
        };
        if manager.len() > 128 && !self.text("fieldManager").is_empty() {
            return Err(ApiError::bad_request(
                "fieldManager: Too long: may not be more than 128 bytes",
            ));
        }
        let field_manager = manager.chars().filter(|c| !c.is_control()).take(128).collect();
        Ok(WriteOptions {
            field_manager,
            dry_run: self.dry_run()?,
            validation,
            force: self.flag("force"),
        })
    }

    /// Deletions take their options from the body, and from the query if there is no body.
    pub(super) fn delete_options(&self, body: Option<&Value>) -> Result<DeleteOptions, ApiError> {
        let mut options = DeleteOptions {
            grace_seconds: self.number("gracePeriodSeconds")?,
            dry_run: self.dry_run()?,
            ..DeleteOptions::default()
        };
        let Some(body) = body else {
            options.propagation = propagation(self.text("propagationPolicy"), None)?;
            return Ok(options);
        };
        options.propagation = propagation(
            object::text(body, &["propagationPolicy"]),
            object::at(body, &["orphanDependents"]).and_then(Value::as_bool),
        )?;
        if let Some(seconds) = body.get("gracePeriodSeconds").and_then(Value::as_i64) {
            options.grace_seconds = Some(seconds);
        }
        options.dry_run |= object::items(body, &["dryRun"]).iter().any(|v| v == "All");
        let precondition = |key: &str| {
            object::at(body, &["preconditions", key])
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        options.uid = precondition("uid");
        options.resource_version = precondition("resourceVersion");
        Ok(options)
    }
}

/// What a deletion says about owned objects: a policy, or as in old times whether they stay.
fn propagation(policy: &str, orphan: Option<bool>) -> Result<Option<Propagation>, ApiError> {
    let fault = match (policy, orphan) {
        ("", None) => return Ok(None),
        ("", Some(true)) => return Ok(Some(Propagation::Orphan)),
        ("", Some(false)) => return Ok(Some(Propagation::Background)),
        (policy, None) => match Propagation::parse(policy) {
            Some(known) => return Ok(Some(known)),
            None => Fault::not_supported(
                "propagationPolicy",
                &policy.into(),
                &["Background", "Foreground", "Orphan"],
            ),
        },
        (policy, Some(_)) => Fault::invalid(
            "propagationPolicy",
            &policy.into(),
            "orphanDependents and deletionPropagation cannot be both set",
        ),
    };
    Err(ApiError::invalid("meta.k8s.io", "DeleteOptions", "", &[fault]))
}

/// Undoes percent encoding. What is not valid UTF-8 is replaced.
pub(super) fn decode_percent(text: &str, plus_is_space: bool) -> String {
    let spaced;
    let text = if plus_is_space && text.contains('+') {
        spaced = text.replace('+', " ");
        &spaced
    } else {
        text
    };
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(path: &str) -> Option<Target> {
        let segments: Vec<String> = path.split('/').map(str::to_owned).collect();
        target("", "v1", &segments)
    }

    #[test]
    fn reads_paths() {
        let services = parse("namespaces/shop/services/web/status").unwrap();
        assert_eq!(services.gvr, Gvr::new("", "v1", "services"));
        assert_eq!(
            (services.namespace.as_deref(), services.name.as_str()),
            (Some("shop"), "web")
        );
        assert_eq!(services.subresource, "status");
        let namespace = parse("namespaces/shop/finalize").unwrap();
        assert_eq!(
            (namespace.name.as_str(), namespace.subresource.as_str()),
            ("shop", "finalize")
        );
        assert_eq!(parse("namespaces/shop").unwrap().name, "shop");
        assert_eq!(parse("nodes").unwrap().namespace, None);
        assert_eq!(parse("namespaces/a/b/c/d/e"), None);
    }

    #[test]
    fn undoes_percent_encoding() {
        assert_eq!(decode_percent("a%3Db%2Cc+d", true), "a=b,c d");
        assert_eq!(decode_percent("100%", true), "100%");
        assert_eq!(decode_percent("%zz%4", true), "%zz%4");
        assert_eq!(decode_percent("%+1", false), "%+1");
        assert_eq!(decode_percent("%ff", true), "\u{fffd}");
    }
}

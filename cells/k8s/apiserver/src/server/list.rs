// SPDX-License-Identifier: Apache-2.0

//! Lists: selectors, pages, and which version of the list is given.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::options::{ListOptions, VersionMatch};
use super::{ApiServer, present};
use crate::error::ApiError;
use crate::gvr::Gvr;
use crate::kinds::Kind;
use crate::object;

/// A list, or a page of one.
#[derive(Clone, Debug)]
pub struct List {
    /// The kind of the objects.
    pub kind: Arc<Kind>,
    /// The objects, ordered by namespace and name.
    pub items: Vec<Arc<Value>>,
    /// Resource version of the list: a watch from here misses nothing.
    pub resource_version: u64,
    /// Where the next page starts; empty if this is the last one.
    pub continue_token: String,
    /// Objects on the pages after this one, if known.
    pub remaining: Option<usize>,
}

impl List {
    /// The metadata of the list object.
    pub fn metadata(&self) -> Value {
        let mut metadata = json!({ "resourceVersion": self.resource_version.to_string() });
        if !self.continue_token.is_empty() {
            metadata["continue"] = self.continue_token.as_str().into();
            if let Some(remaining) = self.remaining {
                metadata["remainingItemCount"] = remaining.into();
            }
        }
        metadata
    }
}

struct Continue {
    revision: Option<u64>,
    start: String,
}

impl Continue {
    fn parse(token: &str) -> Result<Self, ApiError> {
        let invalid = || ApiError::bad_request("continue key is not valid");
        let bytes = URL_SAFE_NO_PAD
            .decode(token.trim_end_matches('='))
            .map_err(|_| invalid())?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|_| invalid())?;
        let start = value
            .get("start")
            .and_then(Value::as_str)
            .ok_or_else(invalid)?
            .to_owned();
        let revision = value.get("rv").and_then(Value::as_i64).ok_or_else(invalid)?;
        Ok(Continue {
            revision: u64::try_from(revision).ok(),
            start,
        })
    }

    fn token(revision: i128, start: &str) -> String {
        let token = json!({ "v": "meta.k8s.io/v1", "rv": revision as i64, "start": start });
        URL_SAFE_NO_PAD.encode(token.to_string())
    }
}

fn place(object: &Value) -> String {
    format!("{}/{}", object::namespace(object), object::name(object))
}

impl ApiServer {
    /// Lists objects of a namespace, or of all.
    pub fn list(&self, gvr: &Gvr, namespace: Option<&str>, options: &ListOptions) -> Result<List, ApiError> {
        let kind = self.kind(gvr)?;
        options.fields.check(&kind)?;
        self.check_list(&kind, options)?;
        let domain = self.domain(&kind);
        let stored = kind.stored();
        self.tracker().note(domain, &stored);
        let (mut items, current) = self.tracker().list(domain, &stored, namespace);
        let mut revision = current;
        let mut start = String::new();
        if options.continue_token.is_empty() {
            if let Some(asked) = options.resource_version.filter(|asked| *asked > 0) {
                if asked > current {
                    return Err(ApiError::revision_too_large(asked, current));
                }
                if options.version_match == Some(VersionMatch::Exact)
                    || (options.limit > 0 && options.version_match.is_none())
                {
                    revision = asked;
                }
            }
        } else {
            let token = Continue::parse(&options.continue_token)?;
            start = token.start;
            revision = token.revision.unwrap_or(current).min(current);
        }
        if revision < current {
            let log = self.tracker().log(domain, &stored);
            items = match log.rewind(items, current, revision) {
                Ok(items) => items
                    .into_iter()
                    .filter(|o| namespace.is_none_or(|n| object::namespace(o) == n))
                    .collect(),
                Err(_) if options.continue_token.is_empty() => {
                    return Err(ApiError::expired(
                        "The resourceVersion for the provided list is too old.",
                    ));
                }
                Err(_) => return Err(expired_page(&start)),
            };
        }
        let total: Vec<Arc<Value>> = items
            .into_iter()
            .filter(|o| start.is_empty() || place(o).as_str() > start.as_str())
            .filter(|o| options.labels.matches(o) && options.fields.matches(o))
            .collect();
        let mut items = total;
        let (mut continue_token, mut remaining) = (String::new(), None);
        if options.limit > 0 && items.len() > options.limit {
            let left = items.len() - options.limit;
            items.truncate(options.limit);
            if let Some(last) = items.last() {
                continue_token = Continue::token(i128::from(revision), &place(last));
            }
            // As etcd does: what selectors leave is not known in advance.
            remaining = (options.labels.is_empty() && options.fields.is_empty()).then_some(left);
        }
        let items = items.into_iter().map(|object| present(&kind, object)).collect();
        Ok(List {
            kind,
            items,
            resource_version: revision,
            continue_token,
            remaining,
        })
    }

    fn check_list(&self, kind: &Kind, options: &ListOptions) -> Result<(), ApiError> {
        use crate::error::Fault;
        let fault = |field: &str, detail: &str| {
            let faults = [Fault::forbidden(field, detail)];
            Err(ApiError::invalid("meta.k8s.io", "ListOptions", "", &faults))
        };
        let _ = kind;
        if options.version_match.is_some()
            && options.resource_version.is_none()
            && !options.send_initial_events
        {
            return fault(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            );
        }
        if options.send_initial_events {
            return fault("sendInitialEvents", "sendInitialEvents is forbidden for list");
        }
        if options.version_match.is_some() && !options.continue_token.is_empty() {
            return fault(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden when continue is provided",
            );
        }
        if options.resource_version.is_some_and(|v| v > 0) && !options.continue_token.is_empty() {
            return Err(ApiError::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        if options.version_match == Some(VersionMatch::Exact) && options.resource_version == Some(0) {
            return fault(
                "resourceVersionMatch",
                "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            );
        }
        Ok(())
    }
}

/// The answer to a continue token of a list that is gone. It carries a token for the rest as it is now.
fn expired_page(start: &str) -> ApiError {
    let mut error = ApiError::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list \
         without the continue parameter, or use the continue token in this response to retrieve the remainder of \
         the results. Continuing with the provided token results in an inconsistent list - objects that were \
         created, modified, or deleted between the time the first chunk was returned and now may show up in the \
         list.",
    );
    error.continue_token = Some(Continue::token(-1, start));
    error
}

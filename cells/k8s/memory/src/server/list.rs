// SPDX-License-Identifier: Apache-2.0

//! Lists: selectors, pages, and which version of the list is given.

use std::borrow::Cow;
use std::cmp::Ordering::{Equal, Greater, Less};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::options::{ListOptions, VersionMatch};
use super::{ApiServer, present};
use crate::error::ApiError;
use crate::gvr::Gvr;
use crate::kinds::Kind;
use crate::tracker::Objects;

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
    /// The version of the list; `None` for the newest.
    revision: Option<u64>,
    /// Place of the last object of the page before.
    start: String,
    /// Objects from there on, if known: they are counted once a list.
    left: Option<usize>,
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
        let left = value.get("left").and_then(Value::as_u64);
        Ok(Continue {
            revision: u64::try_from(revision).ok(),
            start,
            left: left.and_then(|left| usize::try_from(left).ok()),
        })
    }

    fn token(&self) -> String {
        let revision = self
            .revision
            .map_or(-1, |revision| i64::try_from(revision).unwrap_or(i64::MAX));
        let mut token = json!({ "v": "meta.k8s.io/v1", "rv": revision, "start": self.start });
        if let Some(left) = self.left {
            token["left"] = left.into();
        }
        URL_SAFE_NO_PAD.encode(token.to_string())
    }
}

/// An object with its place in lists: `<namespace>/<name>`.
type Placed<'a> = (Cow<'a, str>, &'a Arc<Value>);

/// The objects of a former version: those that are there now, but where they were changed since as they were then. Both are
/// ordered by place.
fn restored<'a>(
    now: impl Iterator<Item = Placed<'a>>,
    changed: impl Iterator<Item = (&'a String, &'a Option<Arc<Value>>)>,
) -> impl Iterator<Item = Placed<'a>> {
    let (mut now, mut changed) = (now.peekable(), changed.peekable());
    std::iter::from_fn(move || {
        loop {
            let Some((place, then)) = changed.peek().copied() else {
                return now.next();
            };
            match now.peek().map_or(Less, |(at, _)| place.as_str().cmp(at)) {
                Greater => return now.next(),
                Equal => drop(now.next()),
                Less => {}
            }
            changed.next();
            if let Some(object) = then {
                return Some((Cow::Borrowed(place), object));
            }
        }
    })
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
        let now = self.tracker().snapshot();
        let current = now.revision();
        let mut page = Continue {
            revision: Some(current),
            start: String::new(),
            left: None,
        };
        if options.continue_token.is_empty() {
            if let Some(asked) = options.resource_version.filter(|asked| *asked > 0) {
                if asked > current {
                    return Err(ApiError::revision_too_large(asked, current));
                }
                if options.version_match == Some(VersionMatch::Exact)
                    || (options.limit > 0 && options.version_match.is_none())
                {
                    page.revision = Some(asked);
                }
            }
        } else {
            page = Continue::parse(&options.continue_token)?;
        }
        let start = page.start;
        let revision = page.revision.unwrap_or(current).min(current);
        let changed = match self.tracker().log(domain, &stored).before(current, revision) {
            Ok(changed) => changed,
            Err(_) if options.continue_token.is_empty() => {
                return Err(ApiError::expired(
                    "The resourceVersion for the provided list is too old.",
                ));
            }
            Err(_) => return Err(expired_page(start)),
        };
        let is_in = |place: &str| match namespace {
            Some(namespace) => place
                .strip_prefix(namespace)
                .is_some_and(|rest| rest.starts_with('/')),
            None => true,
        };
        let is_after = |place: &str| start.is_empty() || place > start.as_str();
        let changed = changed
            .iter()
            .filter(|(place, _)| is_in(place) && is_after(place));
        let listed = Objects::new(domain, &stored, namespace);
        let now = now
            .objects(&listed, &start)
            .filter(|(place, _)| is_after(place))
            .map(|(place, object)| (Cow::Borrowed(place), object));
        // Only the page is looked at: of a list with many pages each one would otherwise cost as much as all of it.
        let mut found = restored(now, changed)
            .filter(|(_, object)| options.labels.matches(object) && options.fields.matches(object));
        let limit = if options.limit > 0 {
            options.limit
        } else {
            usize::MAX
        };
        let mut last = String::new();
        let mut items = Vec::new();
        for (place, object) in found.by_ref().take(limit) {
            if items.len() + 1 == limit {
                last = place.into_owned();
            }
            items.push(object.clone());
        }
        let (mut continue_token, mut remaining) = (String::new(), None);
        if found.next().is_some() {
            // As etcd does: what selectors leave is not known in advance.
            if options.labels.is_empty() && options.fields.is_empty() {
                let left = page.left.and_then(|left| left.checked_sub(items.len()));
                remaining = left.or_else(|| Some(1 + found.count()));
            }
            continue_token = Continue {
                revision: Some(revision),
                start: last,
                left: remaining,
            }
            .token();
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
fn expired_page(start: String) -> ApiError {
    let mut error = ApiError::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list \
         without the continue parameter, or use the continue token in this response to retrieve the remainder of \
         the results. Continuing with the provided token results in an inconsistent list - objects that were \
         created, modified, or deleted between the time the first chunk was returned and now may show up in the \
         list.",
    );
    let rest = Continue {
        revision: None,
        start,
        left: None,
    };
    error.continue_token = Some(rest.token());
    error
}

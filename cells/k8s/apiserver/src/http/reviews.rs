// SPDX-License-Identifier: Apache-2.0

//! Reviews: objects that are answered, not stored. Everybody may do everything here.

use serde_json::{Value, json};

use crate::kinds::Kind;
use crate::object;

/// Answers a review.
pub(super) fn answer(kind: &Kind, mut review: Value) -> Value {
    let user = json!({ "username": "system:admin", "groups": ["system:masters", "system:authenticated"] });
    let status = match kind.kind.as_str() {
        "SelfSubjectReview" => json!({ "userInfo": user }),
        "TokenReview" => json!({ "authenticated": true, "user": user }),
        "SelfSubjectRulesReview" => json!({
            "resourceRules": [{ "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"] }],
            "nonResourceRules": [{ "verbs": ["*"], "nonResourceURLs": ["*"] }],
            "incomplete": false,
        }),
        _ => json!({ "allowed": true, "reason": "everything is allowed" }),
    };
    object::metadata_mut(&mut review)
        .entry("creationTimestamp")
        .or_insert(Value::Null);
    if let Some(map) = review.as_object_mut() {
        map.insert("status".to_owned(), status);
    }
    object::with_type(review, &kind.api_version(), &kind.kind)
}

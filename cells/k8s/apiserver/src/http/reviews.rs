// SPDX-License-Identifier: Apache-2.0

//! Reviews: objects that are answered, not stored. Everybody who is known may do everything here.

use serde_json::{Value, json};
use skep_k8s_memory::{ApiError, ApiServer, Kind, TokenError, object};

use super::user::User;

/// Who a token stands for, and which of `audiences` it is for. `secret` is the static token of the server; empty if it
/// has none.
pub(super) fn authenticate(
    api: &ApiServer,
    secret: &str,
    token: &str,
    audiences: &[String],
) -> Result<(User, Vec<String>), TokenError> {
    if !secret.is_empty() && token == secret {
        return Ok((User::administrator(), audiences.to_vec()));
    }
    let (token, audiences) = api.authenticate(token, audiences)?;
    Ok((User::of_account(&token), audiences))
}

/// Answers a review.
pub(super) fn answer(
    kind: &Kind,
    mut review: Value,
    api: &ApiServer,
    secret: &str,
    user: &User,
) -> Result<Value, ApiError> {
    let status = match kind.kind.as_str() {
        "SelfSubjectReview" => json!({ "userInfo": user.value() }),
        "TokenReview" => token_review(&review, api, secret)?,
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
    Ok(object::with_type(review, &kind.api_version(), &kind.kind))
}

fn token_review(review: &Value, api: &ApiServer, secret: &str) -> Result<Value, ApiError> {
    let token = object::text(review, &["spec", "token"]);
    if token.is_empty() {
        return Err(ApiError::bad_request(
            "token is required for TokenReview in authentication",
        ));
    }
    let audiences = object::items(review, &["spec", "audiences"]).iter();
    let audiences: Vec<String> = audiences.filter_map(Value::as_str).map(str::to_owned).collect();
    Ok(match authenticate(api, secret, token, &audiences) {
        Ok((user, audiences)) => {
            let mut status = json!({ "authenticated": true, "user": user.value() });
            if !audiences.is_empty() {
                status["audiences"] = audiences.into();
            }
            status
        }
        Err(error) => json!({ "user": {}, "error": error.to_string() }),
    })
}

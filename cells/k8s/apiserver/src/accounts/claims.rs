// SPDX-License-Identifier: Apache-2.0

//! What a token claims.

use serde::{Deserialize, Serialize};

/// The claims of a token. Times are seconds since 1970.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Claims {
    /// Who may accept the token.
    pub(crate) aud: Vec<String>,
    /// When it expires.
    pub(crate) exp: i64,
    /// When it was issued.
    pub(crate) iat: i64,
    /// Who issued it.
    pub(crate) iss: String,
    /// Its own id.
    pub(crate) jti: String,
    /// What it is bound to.
    #[serde(rename = "kubernetes.io")]
    pub(crate) bound: Bound,
    /// When it becomes valid.
    pub(crate) nbf: i64,
    /// The name of the user.
    pub(crate) sub: String,
}

/// The objects that a token is bound to: it is invalid once one of them is gone.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Bound {
    /// Namespace of the account.
    pub(crate) namespace: String,
    /// The node, or that of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<Reference>,
    /// The pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<Reference>,
    /// The secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) secret: Option<Reference>,
    /// The account.
    pub(crate) serviceaccount: Reference,
}

/// An object by name and UID.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Reference {
    /// Its name.
    pub(crate) name: String,
    /// Its UID; empty if it did not exist.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) uid: String,
}

// SPDX-License-Identifier: Apache-2.0

//! Users: who a request comes from.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Claims;

/// Who a request comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct User {
    /// Name of the user.
    pub(crate) name: String,
    /// UID of the service account; empty for other users.
    pub(crate) uid: String,
    /// Groups of the user.
    pub(crate) groups: Vec<String>,
    /// What else the token says, such as the pod that it is bound to.
    pub(crate) extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// Who shows the static token of the server, or nothing where nothing is required.
    pub(crate) fn administrator() -> Self {
        Self {
            name: "system:admin".to_owned(),
            groups: ["system:masters", "system:authenticated"]
                .map(str::to_owned)
                .to_vec(),
            ..Self::default()
        }
    }

    /// The service account that a token stands for.
    pub(crate) fn of_account(claims: &Claims) -> Self {
        let bound = &claims.bound;
        let namespace = &bound.namespace;
        let mut extra = BTreeMap::from([("credential-id", format!("JTI={}", claims.jti))]);
        if let Some(pod) = &bound.pod {
            extra.insert("pod-name", pod.name.clone());
            extra.insert("pod-uid", pod.uid.clone());
        }
        if let Some(node) = &bound.node {
            extra.insert("node-name", node.name.clone());
            if !node.uid.is_empty() {
                extra.insert("node-uid", node.uid.clone());
            }
        }
        Self {
            name: account_name(namespace, &bound.serviceaccount.name),
            uid: bound.serviceaccount.uid.clone(),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".to_owned(),
            ],
            extra: extra
                .into_iter()
                .map(|(key, value)| (format!("authentication.kubernetes.io/{key}"), vec![value]))
                .collect(),
        }
    }

    /// `UserInfo` of reviews.
    pub(crate) fn value(&self) -> Value {
        let mut value = json!({ "username": self.name });
        if !self.uid.is_empty() {
            value["uid"] = self.uid.as_str().into();
        }
        value["groups"] = self.groups.clone().into();
        if !self.extra.is_empty() {
            value["extra"] = json!(self.extra);
        }
        value
    }
}

/// Name of a service account as a user.
pub(crate) fn account_name(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

/// Why a token is refused, in the words of a real server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokenError {
    /// Not signed by this server, or not issued by it: another one may know it.
    #[error("invalid bearer token")]
    Unknown,
    /// Request a new one.
    #[error("service account token has expired")]
    Expired,
    /// The clock of whoever signed it is ahead.
    #[error("service account token is not valid yet")]
    NotYet,
    /// Request one for the audience.
    #[error("token audiences {token:?} is invalid for the target audiences {wanted:?}")]
    Audience {
        /// Who may accept the token.
        token: Vec<String>,
        /// Who was asked to.
        wanted: Vec<String>,
    },
    /// The account was deleted.
    #[error("serviceaccounts {0:?} not found")]
    NoAccount(String),
    /// The account was deleted a while ago, and goes when its finalizers are done.
    #[error("service account {namespace}/{name} has been deleted")]
    Deleted {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// The account, pod, secret or node was deleted and made again.
    #[error("{what} UID ({found}) does not match {reference} ({claimed})")]
    Uid {
        /// What it is.
        what: &'static str,
        /// Its UID now.
        found: String,
        /// How the claim is called.
        reference: &'static str,
        /// The UID when the token was issued.
        claimed: String,
    },
    /// What it is bound to is gone.
    #[error("service account token has been invalidated")]
    Invalidated,
}

impl TokenError {
    /// What a `TokenReview` says.
    pub(crate) fn review(&self) -> String {
        match self {
            Self::Unknown => self.to_string(),
            _ => format!("[{}, {self}]", Self::Unknown),
        }
    }
}

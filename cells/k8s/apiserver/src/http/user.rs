// SPDX-License-Identifier: Apache-2.0

//! Users: who a request comes from.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use skep_k8s_memory::Token;

/// Who a request comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct User {
    /// Name of the user.
    pub(super) name: String,
    /// UID of the service account; empty for other users.
    pub(super) uid: String,
    /// Groups of the user.
    pub(super) groups: Vec<String>,
    /// What else the token says, such as the pod that it is bound to.
    pub(super) extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// Who shows the static token of the server, or nothing where nothing is required.
    pub(super) fn administrator() -> Self {
        Self {
            name: "system:admin".to_owned(),
            groups: ["system:masters", "system:authenticated"]
                .map(str::to_owned)
                .to_vec(),
            ..Self::default()
        }
    }

    /// The service account that a token stands for.
    pub(super) fn of_account(token: &Token) -> Self {
        let bound = &token.bound;
        let namespace = &bound.namespace;
        let mut extra = BTreeMap::from([("credential-id", format!("JTI={}", token.id))]);
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
            name: format!("system:serviceaccount:{namespace}:{}", bound.service_account.name),
            uid: bound.service_account.uid.clone(),
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
    pub(super) fn value(&self) -> Value {
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

// SPDX-License-Identifier: Apache-2.0

//! Service accounts: what every namespace has of them, and what pods get of theirs.

use rand::Rng as _;
use serde_json::{Map, Value, json};

use super::ApiServer;
use crate::error::ApiError;
use crate::gvr::Gvr;
use crate::kinds::Kind;
use crate::object;
use crate::tracker::Transaction;

/// Name of the account that every namespace has, and that pods use which name none.
const DEFAULT: &str = "default";
/// ConfigMap of every namespace with the certificate that verifies the API server.
const ROOT_CA: &str = "kube-root-ca.crt";
/// Where pods find the token of their account.
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// What the names of the volumes with tokens start with.
const VOLUME: &str = "kube-api-access-";
/// Lifetime of the tokens in pods, in seconds: an hour, unlike what users ask for.
const LIFETIME: i64 = 3607;
/// On the ConfigMap with the certificate.
const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.";
/// On pods that mirror a static pod of a node: they are as their node says.
const MIRROR: &str = "kubernetes.io/config.mirror";

impl ApiServer {
    /// Makes the default account of a namespace, and the certificate by which its pods verify the API server.
    pub(super) fn populate_namespace(&self, tx: &mut Transaction<'_>, namespace: &str) {
        self.put_in_namespace(
            tx,
            "serviceaccounts",
            namespace,
            json!({ "metadata": { "name": DEFAULT } }),
        );
        if let Some(certificate) = &self.0.root_ca {
            let annotations = json!({ "kubernetes.io/description": DESCRIPTION });
            let config = json!({
                "metadata": { "name": ROOT_CA, "annotations": annotations },
                "data": { "ca.crt": certificate },
            });
            self.put_in_namespace(tx, "configmaps", namespace, config);
        }
    }

    /// Makes again what every namespace has, when it was deleted and its namespace stays.
    pub(super) fn restore_in_namespace(
        &self,
        tx: &mut Transaction<'_>,
        kind: &Kind,
        namespace: &str,
        name: &str,
    ) {
        let is_kept = kind.gvr.group.is_empty()
            && matches!(
                (kind.gvr.resource.as_str(), name),
                ("serviceaccounts", DEFAULT) | ("configmaps", ROOT_CA)
            );
        if !is_kept {
            return;
        }
        let found = tx.get(
            crate::tracker::Domain::Core,
            &Gvr::new("", "v1", "namespaces"),
            "",
            namespace,
        );
        if found.is_some_and(|found| !object::is_terminating(&found)) {
            self.populate_namespace(tx, namespace);
        }
    }

    /// Stores an object unless there is one of this name.
    fn put_in_namespace(&self, tx: &mut Transaction<'_>, resource: &str, namespace: &str, object: Value) {
        let Ok(kind) = self.kind(&Gvr::new("", "v1", resource)) else {
            return;
        };
        let domain = self.domain(&kind);
        if tx
            .get(domain, &kind.stored(), namespace, object::name(&object))
            .is_some()
        {
            return;
        }
        let mut object = object::with_type(object, &kind.api_version(), &kind.kind);
        object::set_metadata(&mut object, "namespace", namespace);
        object::set_metadata(&mut object, "uid", &uuid::Uuid::new_v4().to_string());
        object::set_metadata(&mut object, "creationTimestamp", &object::now());
        tx.put(domain, &kind, object);
    }

    /// Sets the service account of a new pod, and adds a volume with its token.
    pub(super) fn admit_pod(
        &self,
        tx: &Transaction<'_>,
        kind: &Kind,
        namespace: &str,
        pod: &mut Value,
    ) -> Result<(), ApiError> {
        if !self.0.admits_service_accounts || object::at(pod, &["metadata", "annotations", MIRROR]).is_some()
        {
            return Ok(());
        }
        let named = object::text(pod, &["spec", "serviceAccountName"]);
        let name = if named.is_empty() { DEFAULT } else { named }.to_owned();
        let accounts = self.kind(&Gvr::new("", "v1", "serviceaccounts"))?;
        let account = tx.get(self.domain(&accounts), &accounts.stored(), namespace, &name);
        let account = account.ok_or_else(|| {
            let detail = format!(
                "error looking up service account {namespace}/{name}: serviceaccount {name:?} not found"
            );
            ApiError::forbidden(&kind.gvr, object::name(pod), &detail)
        })?;
        let mounts = |object: &Value| {
            object
                .get("automountServiceAccountToken")
                .and_then(Value::as_bool)
        };
        let spec = object::map_mut(pod, "spec");
        for key in ["serviceAccountName", "serviceAccount"] {
            spec.insert(key.to_owned(), name.as_str().into());
        }
        let pulls = object::items(&account, &["imagePullSecrets"]);
        if !pulls.is_empty() && spec.get("imagePullSecrets").is_none_or(is_empty) {
            spec.insert("imagePullSecrets".to_owned(), pulls.into());
        }
        let own = spec.get("automountServiceAccountToken").and_then(Value::as_bool);
        if own.or_else(|| mounts(&account)).unwrap_or(true) {
            mount_token(spec);
        }
        Ok(())
    }
}

fn is_empty(list: &Value) -> bool {
    list.as_array().is_none_or(Vec::is_empty)
}

/// Mounts the token in every container that has nothing mounted at its place.
fn mount_token(spec: &mut Map<String, Value>) {
    let volumes = spec.get("volumes").and_then(Value::as_array);
    let existing = volumes
        .into_iter()
        .flatten()
        .map(|volume| object::text(volume, &["name"]))
        .find(|name| name.starts_with(VOLUME))
        .map(str::to_owned);
    let volume = existing.clone().unwrap_or_else(new_name);
    let mut is_mounted = false;
    for list in ["initContainers", "containers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let Some(container) = container.as_object_mut() else {
                continue;
            };
            let mounts = container.entry("volumeMounts").or_insert_with(|| json!([]));
            let Some(mounts) = mounts.as_array_mut() else {
                continue;
            };
            let is_taken = mounts
                .iter()
                .any(|mount| object::text(mount, &["mountPath"]).trim_end_matches('/') == MOUNT_PATH);
            if !is_taken {
                mounts.push(json!({ "name": volume, "readOnly": true, "mountPath": MOUNT_PATH }));
                is_mounted = true;
            }
        }
    }
    if !is_mounted || existing.is_some() {
        return;
    }
    let volumes = spec.entry("volumes").or_insert_with(|| json!([]));
    if let Some(volumes) = volumes.as_array_mut() {
        let namespace = json!({ "apiVersion": "v1", "fieldPath": "metadata.namespace" });
        volumes.push(
            json!({ "name": volume, "projected": { "defaultMode": 420, "sources": [
            { "serviceAccountToken": { "expirationSeconds": LIFETIME, "path": "token" } },
            { "configMap": { "name": ROOT_CA, "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
            { "downwardAPI": { "items": [{ "path": "namespace", "fieldRef": namespace }] } },
        ] } }),
        );
    }
}

/// A name for a volume that no other one has.
fn new_name() -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut random = rand::rng();
    let suffix = (0..5).map(|_| char::from(LETTERS[random.random_range(0..LETTERS.len())]));
    format!("{VOLUME}{}", suffix.collect::<String>())
}

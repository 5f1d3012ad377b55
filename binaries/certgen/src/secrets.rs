// SPDX-License-Identifier: Apache-2.0

//! Reads and writes Secrets.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use skep_k8s_client::{ApiError, Client, Subresource, WriteOptions};
use skep_k8s_types::Kind;

use crate::{
    authority::{Authority, AuthorityError},
    config::{ConfigError, Options},
};

/// Why certificates are not renewed. The job is repeated.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// Fix the list.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The API server does not answer, or rights are missing.
    #[error("Secret {secret}")]
    Api {
        /// Namespace and name.
        secret: String,
        /// Cause.
        #[source]
        cause: ApiError,
    },
    /// Set `--ca-generate`, or store a valid authority.
    #[error("authority in Secret {secret}")]
    Authority {
        /// Namespace and name.
        secret: String,
        /// Cause.
        #[source]
        cause: AuthorityError,
    },
    /// A name or a key is invalid. Fix the list.
    #[error("certificate {name}")]
    Certificate {
        /// Name of its Secret.
        name: String,
        /// Cause.
        #[source]
        cause: rcgen::Error,
    },
}

/// Creates or renews all certificates of the list; returns what was done, a line each.
///
/// # Errors
///
/// [`GenerateError`]. What was written before stays.
pub async fn generate(client: &Arc<dyn Client>, options: &Options) -> Result<Vec<String>, GenerateError> {
    let certificates = options.certificates()?;
    let longest = match options.ca_enforce_validity_throughout_leaves_duration {
        true => certificates
            .iter()
            .map(|one| one.validity)
            .max()
            .unwrap_or_default(),
        false => Duration::ZERO,
    };
    let mut lines = Vec::new();
    let authority = authority(client, options, longest, &mut lines).await?;
    let owner = owner(client).await;
    for wanted in &certificates {
        let signed = authority
            .sign(wanted)
            .map_err(|cause| GenerateError::Certificate {
                name: wanted.name.clone(),
                cause,
            })?;
        let data = json!({
            "ca.crt": encoded(&authority.certificate),
            "tls.crt": encoded(&signed.certificate),
            "tls.key": encoded(&signed.key),
        });
        let kind = "kubernetes.io/tls";
        let mut metadata = json!({ "namespace": wanted.namespace, "name": wanted.name });
        if let Some((_, reference)) = owner
            .as_ref()
            .filter(|(namespace, _)| *namespace == wanted.namespace)
        {
            metadata["ownerReferences"] = json!([reference]);
        }
        let done = write(client, metadata, kind, data).await?;
        let hours = wanted.validity.as_secs() / 3600;
        lines.push(format!(
            "{done} Secret {}/{}: certificate of {}, valid for {hours}h",
            wanted.namespace, wanted.name, wanted.common_name
        ));
    }
    Ok(lines)
}

async fn authority(
    client: &Arc<dyn Client>,
    options: &Options,
    longest: Duration,
    lines: &mut Vec<String>,
) -> Result<Authority, GenerateError> {
    let (namespace, name) = (&options.ca_secret_namespace, &options.ca_secret_name);
    let secret = format!("{namespace}/{name}");
    let refused = |cause| GenerateError::Authority {
        secret: secret.clone(),
        cause,
    };
    // Without --ca-generate the authority is always that of the Secret.
    if options.ca_reuse_secret || !options.ca_generate {
        let found = client.get(&Kind::SECRET, namespace, name).await;
        let found = match found {
            // What cannot be read is no authority.
            Ok(found) => found.to_value().unwrap_or_default(),
            Err(error) if error.is_not_found() => Arc::default(),
            Err(cause) => {
                return Err(GenerateError::Api {
                    secret: secret.clone(),
                    cause,
                });
            }
        };
        let part = |key: &str| decoded(&found["data"][key]);
        let stored = Authority::stored(&part("ca.crt"), &part("ca.key"), longest);
        match stored {
            Ok(authority) => {
                lines.push(format!("Using the authority of Secret {secret}"));
                return Ok(authority);
            }
            Err(cause) if !options.ca_generate => return Err(refused(cause)),
            Err(_) if found.is_null() => {}
            Err(cause) => lines.push(format!("Replacing the authority of Secret {secret}: {cause}")),
        }
    }
    let new = Authority::new(&options.ca_common_name, options.ca_validity_duration);
    let new = new.map_err(|cause| refused(cause.into()))?;
    let data = json!({ "ca.crt": encoded(&new.certificate), "ca.key": encoded(&new.key) });
    // Other clusters may trust the authority: it has no owner and outlives the installation.
    let metadata = json!({ "namespace": namespace, "name": name });
    let done = write(client, metadata, "Opaque", data).await?;
    lines.push(format!(
        "{done} Secret {secret}: authority {}",
        options.ca_common_name
    ));
    Ok(new)
}

/// The ServiceAccount of this program: certificates are deleted with it. Asking needs no right of a role.
/// API servers before Kubernetes 1.28 do not answer: certificates then have no owner and stay.
async fn owner(client: &Arc<dyn Client>) -> Option<(String, Value)> {
    let (group, version) = ("authentication.k8s.io", "v1");
    let kind = Kind::new(group, version, "SelfSubjectReview", "selfsubjectreviews", false);
    let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
    let answer = client.create(&kind, "", review, &WriteOptions::default()).await;
    reference(&answer.ok()?.to_value().ok()?["status"]["userInfo"])
}

/// Namespace of a user that is a ServiceAccount, and the reference to it.
fn reference(user: &Value) -> Option<(String, Value)> {
    let account = user["username"]
        .as_str()?
        .strip_prefix("system:serviceaccount:")?;
    let (namespace, name) = account.split_once(':')?;
    let uid = user["uid"].as_str()?;
    let reference = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "name": name, "uid": uid });
    Some((namespace.to_owned(), reference))
}

/// Creates or replaces a Secret.
async fn write(
    client: &Arc<dyn Client>,
    metadata: Value,
    kind: &str,
    data: Value,
) -> Result<&'static str, GenerateError> {
    let name = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
    let (namespace, name) = (name("namespace"), name("name"));
    let object = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": kind,
        "data": data,
    });
    let options = WriteOptions::default();
    let created = client
        .create(&Kind::SECRET, &namespace, object.clone(), &options)
        .await;
    let written = match created {
        Ok(_) => Ok("Created"),
        Err(error) if error.is_already_exists() => client
            .update(&Kind::SECRET, &namespace, Subresource::None, object, &options)
            .await
            .map(|_| "Updated"),
        Err(error) => Err(error),
    };
    written.map_err(|cause| GenerateError::Api {
        secret: format!("{namespace}/{name}"),
        cause,
    })
}

fn encoded(text: &str) -> String {
    BASE64_STANDARD.encode(text)
}

fn decoded(value: &Value) -> String {
    let bytes = BASE64_STANDARD.decode(value.as_str().unwrap_or_default());
    String::from_utf8(bytes.unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_owned_by_service_accounts_only() {
        let account = json!({ "username": "system:serviceaccount:kube-system:certgen", "uid": "u" });
        let (namespace, owner) = reference(&account).unwrap();
        assert_eq!(
            (namespace.as_str(), &owner["name"], &owner["uid"]),
            ("kube-system", &json!("certgen"), &json!("u"))
        );
        assert_eq!(reference(&json!({ "username": "admin", "uid": "u" })), None);
        assert_eq!(reference(&Value::Null), None);
    }
}

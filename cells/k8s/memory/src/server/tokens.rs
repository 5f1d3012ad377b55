// SPDX-License-Identifier: Apache-2.0

//! Tokens of service accounts: issued by TokenRequests, and checked against what they are bound to. A token is a random
//! text; it ends with the server.

use std::collections::HashMap;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::ApiServer;
use crate::error::{ApiError, Fault};
use crate::gvr::Gvr;
use crate::object;
use crate::schema::{Shape, decode};

const API_VERSION: &str = "authentication.k8s.io/v1";
const KIND: &str = "TokenRequest";
/// Lifetime of a token if the request does not say, and the shortest and longest that it may ask for, in seconds.
const LIFETIME: i64 = 3600;
const SHORTEST: i64 = 600;
const LONGEST: i64 = 1 << 32;
/// How far clocks may be apart, and how long what is being deleted is still there, in seconds.
const LEEWAY: i64 = 60;

/// The audience of the API server.
const AUDIENCE: &str = "https://kubernetes.default.svc";

/// The tokens that were issued.
#[derive(Default)]
pub(super) struct Tokens(Mutex<HashMap<String, Token>>);

/// A token of a service account.
#[derive(Clone, Debug)]
pub struct Token {
    /// Who may accept it.
    pub audiences: Vec<String>,
    /// The objects that it is bound to.
    pub bound: Bound,
    /// End of its validity, in seconds since 1970.
    pub expires: i64,
    /// Its id, which is no secret.
    pub id: String,
}

/// The objects that a token is bound to: it is invalid once one of them is gone.
#[derive(Clone, Debug, Default)]
pub struct Bound {
    /// Namespace of the account.
    pub namespace: String,
    /// The node, or that of the pod.
    pub node: Option<Reference>,
    /// The pod.
    pub pod: Option<Reference>,
    /// The secret.
    pub secret: Option<Reference>,
    /// The account.
    pub service_account: Reference,
}

/// An object by name and UID.
#[derive(Clone, Debug, Default)]
pub struct Reference {
    /// Its name.
    pub name: String,
    /// Its UID; empty if it did not exist.
    pub uid: String,
}

/// Why a token is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not issued by this server: another one may know it.
    #[error("invalid bearer token")]
    Unknown,
    /// Request a new one.
    #[error("service account token has expired")]
    Expired,
    /// Request one for the audience.
    #[error("token audiences {token:?} is invalid for the target audiences {wanted:?}")]
    Audience {
        /// Who may accept the token.
        token: Vec<String>,
        /// Who was asked to.
        wanted: Vec<String>,
    },
    /// The account, pod, secret or node that it is bound to is gone.
    #[error("service account token has been invalidated")]
    Invalidated,
}

impl ApiServer {
    /// Issues a token of the service account `name`: what a TokenRequest asks for.
    ///
    /// # Errors
    /// When the account or the object to bind to does not exist, or the request is invalid.
    pub fn request_token(&self, namespace: &str, name: &str, mut request: Value) -> Result<Value, ApiError> {
        receive(&mut request)?;
        let account = self.get(&core("serviceaccounts"), namespace, name)?;
        for (key, sent, wanted) in [
            ("name", object::name(&request), name),
            ("namespace", object::namespace(&request), namespace),
        ] {
            if !sent.is_empty() && sent != wanted {
                return Err(ApiError::bad_request(format!(
                    "the {key} of the provided object ({sent}) does not match the {key} on the URL ({wanted})"
                )));
            }
        }
        let spec = request.get("spec").cloned().unwrap_or_default();
        let lifetime = spec.get("expirationSeconds").and_then(Value::as_i64);
        let lifetime = lifetime.unwrap_or(LIFETIME);
        let refused = |why: &str| {
            let fault = Fault::invalid("spec.expirationSeconds", &lifetime.into(), why);
            Err(ApiError::invalid("authentication.k8s.io", KIND, "", &[fault]))
        };
        if lifetime < SHORTEST {
            return refused("may not specify a duration less than 10 minutes");
        }
        if lifetime > LONGEST {
            return refused("may not specify a duration larger than 2^32 seconds");
        }
        let bound = self.bind_token(&account, object::at(&spec, &["boundObjectRef"]))?;
        let mut audiences = texts(object::items(&spec, &["audiences"]));
        if audiences.is_empty() {
            audiences.push(AUDIENCE.to_owned());
        }
        let now = jiff::Timestamp::now().as_second();
        let token = Token {
            audiences: audiences.clone(),
            bound,
            expires: now + lifetime,
            id: uuid::Uuid::new_v4().to_string(),
        };
        let expires = jiff::Timestamp::from_second(token.expires).map(|time| time.to_string());
        let secret = format!(
            "{}{}",
            uuid::Uuid::new_v4().simple(),
            uuid::Uuid::new_v4().simple()
        );
        let mut tokens = self.0.tokens.0.lock();
        tokens.retain(|_, token| token.expires >= now - LEEWAY);
        tokens.insert(secret.clone(), token);
        let mut answered = json!({ "audiences": audiences, "expirationSeconds": lifetime });
        if let Some(reference) = object::at(&spec, &["boundObjectRef"]) {
            answered["boundObjectRef"] = reference.clone();
        }
        Ok(json!({
            "kind": KIND,
            "apiVersion": API_VERSION,
            "metadata": { "name": name, "namespace": namespace, "creationTimestamp": object::now() },
            "spec": answered,
            "status": { "token": secret, "expirationTimestamp": expires.unwrap_or_default() },
        }))
    }

    /// What a token of `account` is bound to.
    fn bind_token(&self, account: &Value, reference: Option<&Value>) -> Result<Bound, ApiError> {
        let (namespace, name) = (object::namespace(account), object::name(account));
        let mut bound = Bound {
            namespace: namespace.to_owned(),
            service_account: reference_to(account),
            ..Bound::default()
        };
        let Some(reference) = reference else {
            return Ok(bound);
        };
        let text = |key: &str| object::text(reference, &[key]);
        let (kind, to) = (text("kind"), text("name"));
        let in_core = matches!(text("apiVersion"), "" | "v1");
        let found = match kind {
            "Pod" if in_core => {
                let pod = self.get(&core("pods"), namespace, to)?;
                if object::text(&pod, &["spec", "serviceAccountName"]) != name {
                    return Err(ApiError::bad_request(format!(
                        "cannot bind token for serviceaccount {name:?} to pod running with different serviceaccount name."
                    )));
                }
                let node = object::text(&pod, &["spec", "nodeName"]);
                if !node.is_empty() {
                    let stored = self.get(&core("nodes"), "", node);
                    bound.node = Some(Reference {
                        name: node.to_owned(),
                        uid: stored.map_or(String::new(), |node| object::uid(&node).to_owned()),
                    });
                }
                bound.pod = Some(reference_to(&pod));
                pod
            }
            "Node" if in_core => {
                let node = self.get(&core("nodes"), "", to)?;
                bound.node = Some(reference_to(&node));
                node
            }
            "Secret" if in_core => {
                let secret = self.get(&core("secrets"), namespace, to)?;
                bound.secret = Some(reference_to(&secret));
                secret
            }
            _ => {
                let (group, version) = crate::gvr::split_api_version(text("apiVersion"));
                return Err(ApiError::bad_request(format!(
                    "cannot bind token to object of type {group}/{version}, Kind={kind}"
                )));
            }
        };
        let uid = text("uid");
        if !uid.is_empty() && uid != object::uid(&found) {
            let detail = format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
            );
            return Err(ApiError::conflict(&Gvr::new("", "v1", kind), to, &detail));
        }
        Ok(bound)
    }

    /// The token, and those of `audiences` that may accept it. No audiences: the API server.
    ///
    /// # Errors
    /// If the token is unknown or expired, or an object that it is bound to is gone.
    pub fn authenticate(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<(Token, Vec<String>), TokenError> {
        let found = self.0.tokens.0.lock().get(token).cloned();
        let found = found.ok_or(TokenError::Unknown)?;
        let own = [AUDIENCE.to_owned()];
        let wanted = if audiences.is_empty() { &own } else { audiences };
        let accepted: Vec<String> = wanted
            .iter()
            .filter(|audience| found.audiences.contains(audience))
            .cloned()
            .collect();
        if accepted.is_empty() {
            return Err(TokenError::Audience {
                token: found.audiences,
                wanted: wanted.to_vec(),
            });
        }
        let now = jiff::Timestamp::now().as_second();
        if found.expires < now - LEEWAY {
            return Err(TokenError::Expired);
        }
        if self.is_valid(&found.bound, now) {
            Ok((found, accepted))
        } else {
            Err(TokenError::Invalidated)
        }
    }

    /// Whether the objects that a token is bound to exist.
    fn is_valid(&self, bound: &Bound, now: i64) -> bool {
        let exists = |resource: &str, namespace: &str, claimed: &Reference| {
            let found = self.get(&core(resource), namespace, &claimed.name);
            found.is_ok_and(|found| object::uid(&found) == claimed.uid && !is_deleted(&found, now))
        };
        let namespace = bound.namespace.as_str();
        // The node of a pod is information: the pod stands for it.
        let node = bound.node.as_ref().filter(|_| bound.pod.is_none());
        exists("serviceaccounts", namespace, &bound.service_account)
            && (bound.secret.iter()).all(|secret| exists("secrets", namespace, secret))
            && (bound.pod.iter()).all(|pod| exists("pods", namespace, pod))
            && (node.iter()).all(|node| exists("nodes", "", node))
    }
}

fn core(resource: &str) -> Gvr {
    Gvr::new("", "v1", resource)
}

fn reference_to(object: &Value) -> Reference {
    Reference {
        name: object::name(object).to_owned(),
        uid: object::uid(object).to_owned(),
    }
}

fn texts(values: &[Value]) -> Vec<String> {
    values
        .iter()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

/// True if the object has been terminating for longer than clocks are apart.
fn is_deleted(object: &Value, now: i64) -> bool {
    let since: Option<jiff::Timestamp> = object::text(object, &["metadata", "deletionTimestamp"])
        .parse()
        .ok();
    since.is_some_and(|since| since.as_second() < now - LEEWAY)
}

/// Decodes what a client sent.
fn receive(request: &mut Value) -> Result<(), ApiError> {
    let refuse = |why: String| {
        ApiError::bad_request(format!(
            "{KIND} in version \"v1\" cannot be handled as a {KIND}: {why}"
        ))
    };
    if !request.is_object() {
        return Err(refuse("the body is not an object".to_owned()));
    }
    let (kind, api_version) = (
        object::text(request, &["kind"]),
        object::text(request, &["apiVersion"]),
    );
    if !matches!(kind, "" | KIND) || !matches!(api_version, "" | API_VERSION) {
        return Err(refuse(format!("it is a {kind} of {api_version:?}")));
    }
    decode(&Shape::Named("authentication.v1.TokenRequest"), request, KIND)
        .map(drop)
        .map_err(|problem| refuse(problem.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::server;
    use crate::{DeleteOptions, WriteOptions};

    fn token(api: &ApiServer, account: &str, spec: Value) -> String {
        let made = api.request_token("default", account, json!({ "spec": spec }));
        made.unwrap()["status"]["token"].as_str().unwrap().to_owned()
    }

    #[test]
    fn tokens_are_valid_for_their_time_and_audience_only() {
        let api = server();
        let own = token(&api, "default", json!({}));
        let other = token(&api, "default", json!({ "audiences": ["vault"] }));
        let check = |token: &str, audiences: &[String]| {
            api.authenticate(token, audiences).map(|(_, accepted)| accepted)
        };

        assert_eq!(check(&own, &[]), Ok(vec![AUDIENCE.to_owned()]));
        assert!(matches!(check(&other, &[]), Err(TokenError::Audience { .. })));
        let vault = ["else".to_owned(), "vault".to_owned()];
        assert_eq!(check(&other, &vault), Ok(vec!["vault".to_owned()]));
        assert_eq!(check("forged", &[]), Err(TokenError::Unknown));
        api.0.tokens.0.lock().get_mut(&own).unwrap().expires -= 3600 + LEEWAY + 1;
        assert_eq!(check(&own, &[]), Err(TokenError::Expired));
        token(&api, "default", json!({}));
        assert_eq!(
            check(&own, &[]),
            Err(TokenError::Unknown),
            "forgotten with the next request"
        );
    }

    #[test]
    fn a_token_ends_with_what_it_is_bound_to() {
        let api = server();
        let create = |resource: &str, namespace: &str, object: Value| {
            let made = api.create(&core(resource), namespace, object, &WriteOptions::default());
            made.unwrap();
        };
        let delete = |resource: &str, namespace: &str, name: &str| {
            let now = DeleteOptions {
                grace_seconds: Some(0),
                ..DeleteOptions::default()
            };
            api.delete(&core(resource), namespace, name, &now).unwrap();
        };
        let bound = |kind: &str, name: &str| {
            let reference = json!({ "apiVersion": "v1", "kind": kind, "name": name });
            token(&api, "default", json!({ "boundObjectRef": reference }))
        };
        let pod = json!({
            "metadata": { "name": "p" },
            "spec": { "nodeName": "n", "containers": [{ "name": "web", "image": "i" }] },
        });
        create("nodes", "", json!({ "metadata": { "name": "n" } }));
        create("pods", "default", pod.clone());
        create("secrets", "default", json!({ "metadata": { "name": "s" } }));
        let (of_pod, of_secret, of_node) = (bound("Pod", "p"), bound("Secret", "s"), bound("Node", "n"));
        let of_account = token(&api, "default", json!({}));

        for (resource, namespace, name, token) in [
            ("nodes", "", "n", &of_node),
            ("pods", "default", "p", &of_pod),
            ("secrets", "default", "s", &of_secret),
            ("serviceaccounts", "default", "default", &of_account),
        ] {
            assert!(api.authenticate(token, &[]).is_ok(), "{resource}");
            delete(resource, namespace, name);
            assert_eq!(
                api.authenticate(token, &[]).map(drop),
                Err(TokenError::Invalidated),
                "{resource}"
            );
        }
        // Another pod of the same name is another pod.
        create("pods", "default", pod);
        assert_eq!(
            api.authenticate(&of_pod, &[]).map(drop),
            Err(TokenError::Invalidated)
        );
    }

    #[test]
    fn what_has_been_terminating_for_long_is_gone() {
        let at = |time: &str| json!({ "metadata": { "deletionTimestamp": time } });
        let now = jiff::Timestamp::now().as_second();

        assert!(is_deleted(&at("2020-01-01T00:00:00Z"), now));
        assert!(!is_deleted(&at(&object::now()), now));
        assert!(!is_deleted(&json!({ "metadata": {} }), now));
    }
}

// SPDX-License-Identifier: Apache-2.0

//! Tokens of service accounts: issued by TokenRequests, and checked against what they are bound to.

use std::sync::Arc;

use serde_json::{Value, json};

use super::ApiServer;
use crate::accounts::{Bound, Claims, Reference, SigningKey, TokenError, User, account_name};
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
            audiences.push(self.issuer().to_owned());
        }
        let now = jiff::Timestamp::now().as_second();
        let claims = Claims {
            aud: audiences.clone(),
            exp: now + lifetime,
            iat: now,
            iss: self.issuer().to_owned(),
            jti: uuid::Uuid::new_v4().to_string(),
            bound,
            nbf: now,
            sub: account_name(namespace, name),
        };
        let expires = jiff::Timestamp::from_second(claims.exp).map(|time| time.to_string());
        let mut answered = json!({ "audiences": audiences, "expirationSeconds": lifetime });
        if let Some(reference) = object::at(&spec, &["boundObjectRef"]) {
            answered["boundObjectRef"] = reference.clone();
        }
        Ok(json!({
            "kind": KIND,
            "apiVersion": API_VERSION,
            "metadata": { "name": name, "namespace": namespace, "creationTimestamp": object::now() },
            "spec": answered,
            "status": { "token": self.signing_key().sign(&claims), "expirationTimestamp": expires.unwrap_or_default() },
        }))
    }

    /// What a token of `account` is bound to.
    fn bind_token(&self, account: &Value, reference: Option<&Value>) -> Result<Bound, ApiError> {
        let (namespace, name) = (object::namespace(account), object::name(account));
        let mut bound = Bound {
            namespace: namespace.to_owned(),
            serviceaccount: reference_to(account),
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

    /// Who a token stands for, and which of `audiences` it is for. No audiences: those of the API server.
    pub(crate) fn authenticate(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<(User, Vec<String>), TokenError> {
        let claims: Claims = self.signing_key().verify(token).ok_or(TokenError::Unknown)?;
        if claims.iss != self.issuer() {
            return Err(TokenError::Unknown);
        }
        let own = [self.issuer().to_owned()];
        let wanted = if audiences.is_empty() { &own } else { audiences };
        let accepted: Vec<String> = wanted
            .iter()
            .filter(|audience| claims.aud.contains(audience))
            .cloned()
            .collect();
        if accepted.is_empty() {
            return Err(TokenError::Audience {
                token: claims.aud,
                wanted: wanted.to_vec(),
            });
        }
        let now = jiff::Timestamp::now().as_second();
        if claims.exp < now - LEEWAY {
            return Err(TokenError::Expired);
        }
        if claims.nbf > now + LEEWAY {
            return Err(TokenError::NotYet);
        }
        self.check_bound(&claims.bound, now)?;
        Ok((User::of_account(&claims), accepted))
    }

    /// A token is worth nothing once what it is bound to is gone.
    fn check_bound(&self, bound: &Bound, now: i64) -> Result<(), TokenError> {
        let (namespace, name) = (&bound.namespace, &bound.serviceaccount.name);
        let account = self.stored("serviceaccounts", namespace, name);
        let account = account.ok_or_else(|| TokenError::NoAccount(name.clone()))?;
        if is_deleted(&account, now) {
            return Err(TokenError::Deleted {
                namespace: namespace.clone(),
                name: name.clone(),
            });
        }
        let same = |what, reference, found: &Value, claimed: &Reference| {
            if object::uid(found) == claimed.uid {
                return Ok(());
            }
            Err(TokenError::Uid {
                what,
                found: object::uid(found).to_owned(),
                reference,
                claimed: claimed.uid.clone(),
            })
        };
        same("service account", "claim", &account, &bound.serviceaccount)?;
        // The node of a pod is said, not demanded: the pod stands for it.
        let node = bound.node.as_ref().filter(|_| bound.pod.is_none());
        for (what, reference, resource, namespace, claimed) in [
            (
                "secret",
                "service account secret ref claim",
                "secrets",
                namespace.as_str(),
                bound.secret.as_ref(),
            ),
            (
                "pod",
                "service account pod ref claim",
                "pods",
                namespace,
                bound.pod.as_ref(),
            ),
            ("node", "service account node ref claim", "nodes", "", node),
        ] {
            let Some(claimed) = claimed else { continue };
            let found = self.stored(resource, namespace, &claimed.name);
            let found = found.filter(|found| !is_deleted(found, now));
            let found = found.ok_or(TokenError::Invalidated)?;
            same(what, reference, &found, claimed)?;
        }
        Ok(())
    }

    /// An object of the core group, if the kind is served and the object is there.
    fn stored(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.get(&core(resource), namespace, name).ok()
    }

    /// Who issues tokens; also the audience of the API server.
    pub(crate) fn issuer(&self) -> &str {
        &self.0.issuer
    }

    /// The key of this server; made when it is first used, if none was given.
    pub(crate) fn signing_key(&self) -> &SigningKey {
        self.0.signing_key.get_or_init(SigningKey::generate)
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
    use crate::{Manner, Registry, Rows, Settings, Tracker, WriteOptions};

    fn server() -> ApiServer {
        let tracker = Tracker::new(Rows::new(&statedb::Db::new()).unwrap(), 100, false);
        ApiServer::new(tracker, Registry::builtin(), Manner::Real(Settings::default()))
    }

    /// A token of the default account with other times.
    fn dated(api: &ApiServer, change: impl FnOnce(&mut Claims)) -> String {
        let made = api.request_token("default", "default", json!({}));
        let token = made.unwrap()["status"]["token"].as_str().unwrap().to_owned();
        let mut claims: Claims = api.signing_key().verify(&token).unwrap();
        change(&mut claims);
        api.signing_key().sign(&claims)
    }

    #[test]
    fn tokens_are_valid_for_their_time_only() {
        let api = server();
        let now = jiff::Timestamp::now().as_second();
        let check = |token: &str| api.authenticate(token, &[]).map(drop);

        assert_eq!(check(&dated(&api, |_| ())), Ok(()));
        assert_eq!(check(&dated(&api, |claims| claims.exp = now - 30)), Ok(()));
        assert_eq!(
            check(&dated(&api, |claims| claims.exp = now - 90)),
            Err(TokenError::Expired)
        );
        assert_eq!(
            check(&dated(&api, |claims| claims.nbf = now + 90)),
            Err(TokenError::NotYet)
        );
        assert_eq!(
            check(&dated(&api, |claims| claims.iss = "https://elsewhere".to_owned())),
            Err(TokenError::Unknown)
        );
    }

    #[test]
    fn tokens_of_what_has_been_terminating_for_long_are_refused() {
        let api = server();
        let gone = json!({ "metadata": { "deletionTimestamp": "2020-01-01T00:00:00Z" } });
        let recent = json!({ "metadata": { "deletionTimestamp": object::now() } });
        let now = jiff::Timestamp::now().as_second();

        assert!(is_deleted(&gone, now));
        assert!(!is_deleted(&recent, now));
        assert!(!is_deleted(&json!({ "metadata": {} }), now));
        // Deleted with a finalizer, an account is there and is no account any more.
        let accounts = core("serviceaccounts");
        let robot = json!({ "metadata": { "name": "robot", "finalizers": ["x.y/z"] } });
        api.create(&accounts, "default", robot, &WriteOptions::default())
            .unwrap();
        let made = api.request_token("default", "robot", json!({}));
        let token = made.unwrap()["status"]["token"].as_str().unwrap().to_owned();
        api.delete(&accounts, "default", "robot", &crate::DeleteOptions::default())
            .unwrap();
        assert!(api.authenticate(&token, &[]).is_ok());
        let bound = Bound {
            namespace: "default".to_owned(),
            serviceaccount: reference_to(&api.get(&accounts, "default", "robot").unwrap()),
            ..Bound::default()
        };
        assert!(matches!(
            api.check_bound(&bound, now + 120),
            Err(TokenError::Deleted { .. })
        ));
    }
}

// SPDX-License-Identifier: Apache-2.0

//! From paths and methods to the API.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response};
use serde_json::{Value, json};
use skep_k8s_memory::{
    ApiError, ApiServer, DeleteOptions, Deleted, Fault, Gvr, Kind, Patch, Subresource, VERSION, object,
    platform, read_scale, scale_patch, schema::Shape,
};
use tokio_util::sync::CancellationToken;

use super::audit::Audit;
use super::negotiate::{Accept, Form, decode};
use super::pods::{self, PodCall};
use super::request::{Query, Target, decode_percent, target};
use super::respond::{self, Body};
use super::user::User;
use super::{discovery, openapi, protobuf, reviews};
use crate::pods::PodRuntime;
use crate::print::Include;

/// Answers requests.
pub(super) struct Router {
    pub(super) api: ApiServer,
    /// Credential that clients must show; empty: none.
    pub(super) token: String,
    /// Address in discovery documents.
    pub(super) address: String,
    /// Who runs the pods.
    pub(super) pods: Option<Arc<dyn PodRuntime>>,
    /// What to do instead of reaching into pods.
    pub(super) pods_hint: String,
    /// Ends watches.
    pub(super) stop: CancellationToken,
    /// Requests so far.
    pub(super) audit: Audit,
}

type Answer = Result<Response<Body>, ApiError>;

fn header<'a>(parts: &'a Parts, name: &http::HeaderName) -> &'a str {
    parts
        .headers
        .get(name)
        .and_then(|v| v.to_str().ok())
        .unwrap_or_default()
}

impl Router {
    /// Answers a request whose body has been read. Never fails: failures are answers.
    pub(super) fn answer(&self, parts: &Parts, body: &Bytes) -> Response<Body> {
        self.route(parts, body)
            .unwrap_or_else(|error| respond::error(&error))
    }

    /// The call that a request is, if it goes to whoever runs the pods.
    pub(super) fn pod_call<B>(&self, request: &Request<B>) -> Result<Option<PodCall>, ApiError> {
        let Some(runtime) = &self.pods else {
            return Ok(None);
        };
        let segments = segments(request.uri());
        let names: Vec<&str> = segments.iter().map(String::as_str).collect();
        let [
            "api",
            "v1",
            "namespaces",
            namespace,
            "pods",
            name,
            what @ ("exec" | "log"),
        ] = names[..]
        else {
            return Ok(None);
        };
        self.authenticate(request.headers())?;
        let pod = self.api.get(&Gvr::new("", "v1", "pods"), namespace, name)?;
        match what {
            "log" => pods::log_call(runtime.clone(), pod, request).map(Some),
            _ => pods::exec_call(runtime.clone(), pod, request).map(Some),
        }
    }

    /// Who sent a request. Without credentials, where none are required, that is the administrator.
    fn authenticate(&self, headers: &HeaderMap) -> Result<User, ApiError> {
        let shown = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let bearer = shown
            .and_then(|text| text.split_once(' '))
            .and_then(|(scheme, token)| scheme.eq_ignore_ascii_case("bearer").then(|| token.trim()));
        match bearer {
            None if self.token.is_empty() => Ok(User::administrator()),
            None => Err(ApiError::unauthorized()),
            Some(token) => match reviews::authenticate(&self.api, &self.token, token, &[]) {
                Ok((user, _)) => Ok(user),
                Err(error) => {
                    tracing::debug!(error = %error, "Rejected bearer token");
                    Err(ApiError::unauthorized())
                }
            },
        }
    }

    fn route(&self, parts: &Parts, body: &Bytes) -> Answer {
        let segments = segments(&parts.uri);
        let names: Vec<&str> = segments.iter().map(String::as_str).collect();
        // Probes come without credentials.
        if let ["healthz" | "readyz" | "livez", ..] = names[..] {
            return Ok(respond::text(200, &probe(&names, &parts.uri)));
        }
        let user = self.authenticate(&parts.headers)?;
        let accept_text = header(parts, &ACCEPT);
        let registry = self.api.registry();
        let plain = |value: Value| -> Answer {
            let accept = Accept::parse(accept_text, true)?;
            Ok(respond::value(200, &value, accept.yaml))
        };
        let found = |value: Option<Value>| plain(value.ok_or_else(ApiError::no_resource)?);
        let aggregated = |core: bool, otherwise: Value| -> Answer {
            let accept = Accept::parse(accept_text, true)?;
            match accept.form {
                Form::Discovery(version) => Ok(respond::discovery(
                    &discovery::aggregated(registry, core, &version),
                    &version,
                )),
                _ => Ok(respond::value(200, &otherwise, accept.yaml)),
            }
        };
        match names[..] {
            [] => plain(json!({ "paths": [
                    "/api", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version",
                ] })),
            ["version"] => plain(version()),
            ["debug", "audit"] => plain(self.audit.value()),
            ["api"] => aggregated(true, discovery::core_versions(&self.address)),
            ["apis"] => aggregated(false, discovery::group_list(registry)),
            ["openapi", "v3"] => plain(openapi::index(registry)),
            ["openapi", "v3", "api", version] => found(openapi::document(registry, "", version)),
            ["openapi", "v3", "apis", group, version] => found(openapi::document(registry, group, version)),
            ["api", version] => found(discovery::resource_list(registry, "", version)),
            ["apis", group] => found(discovery::group(registry, group)),
            ["apis", group, version] => found(discovery::resource_list(registry, group, version)),
            ["api", version, ..] => self.resource(user, parts, body, target("", version, &segments[2..])),
            ["apis", group, version, ..] => {
                self.resource(user, parts, body, target(group, version, &segments[3..]))
            }
            _ => Ok(respond::text(404, "404 page not found\n")),
        }
    }

    fn resource(&self, user: User, parts: &Parts, body: &Bytes, target: Option<Target>) -> Answer {
        let mut target = target.ok_or_else(ApiError::no_resource)?;
        // The old path of what `pods/<name>/binding` is today: the name is in the body.
        let is_binding = target.gvr == Gvr::new("", "v1", "bindings") && target.name.is_empty();
        if is_binding {
            target.gvr.resource = "pods".into();
        }
        let kind = self.api.kind(&target.gvr)?;
        if target.namespace.is_some() != kind.namespaced
            && !(target.namespace.is_none() && target.name.is_empty())
        {
            return Err(ApiError::no_resource());
        }
        self.audit
            .record(&user, header(parts, &USER_AGENT), parts, &target);
        let request = Call {
            api: &self.api,
            token: &self.token,
            user,
            kind,
            query: Query::parse(parts.uri.query().unwrap_or_default()),
            accept: Accept::parse(header(parts, &ACCEPT), false)?,
            content_type: header(parts, &CONTENT_TYPE),
            user_agent: header(parts, &USER_AGENT),
            namespace: target.namespace.as_deref().unwrap_or_default(),
            target: &target,
            body,
        };
        match (&parts.method, target.name.is_empty(), target.subresource.as_str()) {
            (&Method::POST, true, _) if is_binding => request.bind(),
            _ if is_binding => Err(ApiError::method_not_allowed()),
            (&Method::POST, false, "binding") if request.kind.gvr.resource == "pods" => request.bind(),
            (&Method::POST, true, _) if discovery::is_review(&request.kind) => request.review(),
            _ if discovery::is_review(&request.kind) => Err(ApiError::method_not_allowed()),
            (&Method::GET, true, _) => request.list_or_watch(&self.stop),
            (&Method::POST, true, _) => request.create(),
            (&Method::DELETE, true, _) => request.delete_collection(),
            (&Method::GET, false, "") => request.get(),
            (&Method::PUT, false, "") => request.update(Subresource::None),
            (&Method::PATCH, false, "") => request.patch(Subresource::None),
            (&Method::DELETE, false, "") => request.delete(),
            (method, false, "status") if request.kind.has_status => match *method {
                Method::GET => request.get(),
                Method::PUT => request.update(Subresource::Status),
                Method::PATCH => request.patch(Subresource::Status),
                _ => Err(ApiError::method_not_allowed()),
            },
            (&Method::PUT, false, "finalize") => request.update(Subresource::Finalize),
            (method, false, "scale") if request.kind.scale.is_some() => request.scale(method),
            (&Method::POST, false, "token") if request.kind.gvr.resource == "serviceaccounts" => {
                request.issue_token()
            }
            (_, false, "token") if request.kind.gvr.resource == "serviceaccounts" => {
                Err(ApiError::method_not_allowed())
            }
            (&Method::POST, false, "eviction") if request.kind.gvr.resource == "pods" => request.evict(),
            (_, false, "attach" | "exec" | "log" | "portforward" | "proxy")
                if request.kind.gvr.resource == "pods" =>
            {
                request.get()?;
                Err(ApiError::no_nodes(&target.subresource, &self.pods_hint))
            }
            (_, _, "") => Err(ApiError::method_not_allowed()),
            _ => Err(ApiError::no_resource()),
        }
    }
}

/// The parts of a path.
fn segments(uri: &http::Uri) -> Vec<String> {
    uri.path()
        .split('/')
        .filter(|s| !s.is_empty())
        .map(|s| decode_percent(s, false))
        .collect()
}

/// What a probe says: one word, or with `verbose` every check by name.
fn probe(names: &[&str], uri: &http::Uri) -> String {
    let query = Query::parse(uri.query().unwrap_or_default());
    match names {
        [probe] if query.has("verbose") => format!("[+]ping ok\n{probe} check passed\n"),
        _ => "ok".to_owned(),
    }
}

fn version() -> Value {
    let (major, minor) = VERSION
        .trim_start_matches('v')
        .split_once('.')
        .map_or(("1", "0"), |(major, rest)| {
            (major, rest.split('.').next().unwrap_or("0"))
        });
    json!({
        "major": major,
        "minor": minor,
        "gitVersion": format!("{}+skep", VERSION),
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": platform(),
    })
}

/// The `Status` object that answers a deletion which left nothing behind.
fn deleted_status(gvr: &Gvr, name: &str, uid: &str) -> Value {
    let mut details = json!({ "name": name, "kind": gvr.resource.as_str(), "uid": uid });
    if !gvr.group.is_empty() {
        details["group"] = gvr.group.as_str().into();
    }
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details })
}

/// One call of the API.
struct Call<'a> {
    api: &'a ApiServer,
    token: &'a str,
    user: User,
    kind: Arc<Kind>,
    query: Query,
    accept: Accept,
    content_type: &'a str,
    user_agent: &'a str,
    namespace: &'a str,
    target: &'a Target,
    body: &'a Bytes,
}

impl Call<'_> {
    fn include(&self) -> Include {
        match self.query.text("includeObject") {
            "None" => Include::Nothing,
            "Object" => Include::Object,
            _ => Include::Metadata,
        }
    }

    fn respond(&self, code: u16, object: &Value) -> Answer {
        Ok(respond::object(
            code,
            &self.kind,
            object,
            &self.accept,
            self.include(),
        ))
    }

    fn sent(&self) -> Result<Value, ApiError> {
        match self.content_type.split(';').next().unwrap_or_default().trim() {
            "" | "application/json" | "application/yaml" => decode(self.content_type, self.body),
            protobuf::MEDIA_TYPE => {
                protobuf::decode(self.body, |api_version, kind| match (api_version, kind) {
                    (_, "DeleteOptions") => Some(Shape::Named("meta.v1.DeleteOptions")),
                    ("v1", "Binding") => Some(Shape::Named("core.v1.Binding")),
                    ("policy/v1", "Eviction") => Some(Shape::Named("policy.v1.Eviction")),
                    ("authentication.k8s.io/v1", "TokenRequest") => {
                        Some(Shape::Named("authentication.v1.TokenRequest"))
                    }
                    ("autoscaling/v1", "Scale") => Some(Shape::Named("autoscaling.v1.Scale")),
                    // Custom resources have no numbers.
                    _ => (self.api.registry().by_kind(api_version, kind))
                        .map(|kind| kind.shape.clone())
                        .filter(|shape| matches!(shape, Shape::Named(_))),
                })
            }
            _ => Err(ApiError::unsupported_media_type(
                "application/json, application/yaml",
            )),
        }
    }

    fn list_or_watch(&self, stop: &CancellationToken) -> Answer {
        let mut options = self.query.list_options()?;
        let namespace = self.target.namespace.as_deref();
        if self.query.flag("watch") {
            // As real servers: watches end some time, not all at once.
            options
                .timeout
                .get_or_insert_with(|| Duration::from_secs(1800 + rand::random_range(0..1800)));
            let watch = self.api.watch(&self.target.gvr, namespace, &options)?;
            return Ok(respond::watch(
                watch,
                self.accept.clone(),
                self.include(),
                stop.clone(),
            ));
        }
        let list = self.api.list(&self.target.gvr, namespace, &options)?;
        Ok(respond::list(&list, &self.accept, self.include()))
    }

    fn get(&self) -> Answer {
        let object = self
            .api
            .get(&self.target.gvr, self.namespace, &self.target.name)?;
        self.respond(200, &object)
    }

    fn create(&self) -> Answer {
        if self.kind.namespaced && self.target.namespace.is_none() {
            return Err(ApiError::method_not_allowed());
        }
        let options = self.query.write_options(self.user_agent)?;
        let written = self
            .api
            .create(&self.target.gvr, self.namespace, self.sent()?, &options)?;
        let mut response = self.respond(201, &written.object)?;
        respond::warn(&mut response, &written.warnings);
        Ok(response)
    }

    fn update(&self, subresource: Subresource) -> Answer {
        let options = self.query.write_options(self.user_agent)?;
        let (gvr, name) = (&self.target.gvr, &self.target.name);
        let written = self
            .api
            .update(gvr, self.namespace, name, subresource, self.sent()?, &options)?;
        let mut response = self.respond(if written.created { 201 } else { 200 }, &written.object)?;
        respond::warn(&mut response, &written.warnings);
        Ok(response)
    }

    fn read_patch(&self) -> Result<Patch, ApiError> {
        let media = self.content_type.split(';').next().unwrap_or_default().trim();
        let make: fn(Value) -> Patch = match media {
            "application/json-patch+json" => Patch::Json,
            "application/merge-patch+json" => Patch::Merge,
            "application/strategic-merge-patch+json" => Patch::Strategic,
            "application/apply-patch+yaml" => Patch::Apply,
            _ => {
                return Err(ApiError::unsupported_media_type(
                    "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, application/apply-patch+yaml",
                ));
            }
        };
        Ok(make(decode(media, self.body)?))
    }

    fn patch(&self, subresource: Subresource) -> Answer {
        let patch = self.read_patch()?;
        let options = self.query.write_options(self.user_agent)?;
        if options.force && !matches!(patch, Patch::Apply(_)) {
            let fault = Fault::forbidden("force", "may not be specified for non-apply patch");
            return Err(ApiError::invalid("meta.k8s.io", "PatchOptions", "", &[fault]));
        }
        let mut options = options;
        if matches!(patch, Patch::Apply(_)) {
            // Appliers must say who they are.
            options.field_manager = self.query.text("fieldManager").to_owned();
        }
        let (gvr, name) = (&self.target.gvr, &self.target.name);
        let written = self
            .api
            .patch(gvr, self.namespace, name, subresource, &patch, &options)?;
        let mut response = self.respond(if written.created { 201 } else { 200 }, &written.object)?;
        respond::warn(&mut response, &written.warnings);
        Ok(response)
    }

    fn delete_options(&self) -> Result<DeleteOptions, ApiError> {
        let body = if self.body.is_empty() {
            None
        } else {
            Some(self.sent()?)
        };
        if body.as_ref().is_some_and(|b| !b.is_object() && !b.is_null()) {
            return Err(ApiError::bad_request("DeleteOptions must be an object"));
        }
        self.query.delete_options(body.as_ref())
    }

    fn delete(&self) -> Answer {
        let options = self.delete_options()?;
        match self
            .api
            .delete(&self.target.gvr, self.namespace, &self.target.name, &options)?
        {
            // Pods answer with themselves, as all kinds that end gracefully.
            Deleted::Gone(last) if self.kind.gvr.resource == "pods" => self.respond(200, &last),
            Deleted::Gone(last) => {
                let status = deleted_status(&self.target.gvr, object::name(&last), object::uid(&last));
                Ok(respond::value(200, &status, self.accept.yaml))
            }
            Deleted::Terminating(object) => self.respond(200, &object),
        }
    }

    fn delete_collection(&self) -> Answer {
        if self.kind.namespaced && self.target.namespace.is_none() {
            return Err(ApiError::method_not_allowed());
        }
        let options = self.delete_options()?;
        let select = self.query.list_options()?;
        let list = self.api.delete_collection(
            &self.target.gvr,
            self.target.namespace.as_deref(),
            &select,
            &options,
        )?;
        Ok(respond::list(&list, &self.accept, self.include()))
    }

    fn review(&self) -> Answer {
        let review = self.sent()?;
        if !review.is_object() {
            return Err(ApiError::bad_request("a review must be an object"));
        }
        let answer = reviews::answer(&self.kind, review, self.api, self.token, &self.user)?;
        Ok(respond::value(201, &answer, self.accept.yaml))
    }

    fn issue_token(&self) -> Answer {
        let issued = self
            .api
            .request_token(self.namespace, &self.target.name, self.sent()?)?;
        Ok(respond::value(201, &issued, self.accept.yaml))
    }

    fn scale(&self, method: &Method) -> Answer {
        let Some(scale) = &self.kind.scale else {
            return Err(ApiError::no_resource());
        };
        let (gvr, name) = (&self.target.gvr, &self.target.name);
        let current = self.api.get(gvr, self.namespace, name)?;
        let wanted = match *method {
            Method::GET => {
                return Ok(respond::value(
                    200,
                    &read_scale(scale, &current),
                    self.accept.yaml,
                ));
            }
            Method::PUT => self.sent()?,
            Method::PATCH => {
                let shape = Shape::Any;
                let patch = match self.read_patch()? {
                    // A scale has no lists, so that both merge alike.
                    Patch::Strategic(value) => Patch::Merge(value),
                    other => other,
                };
                patch.change(&shape, &read_scale(scale, &current))?
            }
            _ => return Err(ApiError::method_not_allowed()),
        };
        let patch = Patch::Merge(scale_patch(&self.kind, &wanted)?);
        let options = self.query.write_options(self.user_agent)?;
        let written = self
            .api
            .patch(gvr, self.namespace, name, Subresource::None, &patch, &options)?;
        Ok(respond::value(
            200,
            &read_scale(scale, &written.object),
            self.accept.yaml,
        ))
    }

    fn bind(&self) -> Answer {
        let binding = self.sent()?;
        let name = match self.target.name.as_str() {
            "" => object::name(&binding),
            name => name,
        };
        let options = self.query.write_options(self.user_agent)?;
        let written = self.api.bind(self.namespace, name, &binding, &options)?;
        Ok(respond::value(201, &written.object, self.accept.yaml))
    }

    fn evict(&self) -> Answer {
        let eviction = self.sent()?;
        let options = self.query.delete_options(eviction.get("deleteOptions"))?;
        self.api
            .delete(&self.target.gvr, self.namespace, &self.target.name, &options)?;
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201,
        });
        Ok(respond::value(201, &status, self.accept.yaml))
    }
}

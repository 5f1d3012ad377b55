// SPDX-License-Identifier: Apache-2.0

//! The API server of a cluster: contexts as kubectl has them, objects as JSON.

use std::path::PathBuf;

use clap::Args;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

/// Which cluster.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ClusterOptions {
    /// Context of the kubeconfig.
    #[arg(long, global = true)]
    pub(crate) context: Option<String>,
    /// Kubeconfig; default: KUBECONFIG, ~/.kube/config, or the service account of a pod.
    #[arg(long, global = true)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Namespace of the installation.
    #[arg(
        short,
        long,
        global = true,
        env = "CILIUM_NAMESPACE",
        default_value = "kube-system"
    )]
    pub(crate) namespace: String,
    /// User to impersonate.
    #[arg(long = "as", global = true, value_name = "USER")]
    pub(crate) as_user: Option<String>,
    /// Groups to impersonate.
    #[arg(long, global = true, value_name = "GROUP")]
    pub(crate) as_group: Vec<String>,
    /// Name of the Helm release; default: that of ConfigMap cilium-config, else cilium.
    #[arg(long, global = true)]
    pub(crate) helm_release_name: Option<String>,
}

/// Why the API server did not answer as wanted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AccessError {
    /// Set `--kubeconfig` or `--context`.
    #[error("no cluster to connect to")]
    Config(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The kubeconfig has no usable credentials.
    #[error("credentials of context `{context}`")]
    Credentials {
        /// Context.
        context: String,
        /// Cause.
        #[source]
        cause: kube::Error,
    },
    /// The server is not reachable. Check network and address.
    #[error("{method} {path}")]
    Unreachable {
        /// Method.
        method: Method,
        /// Path.
        path: String,
        /// Cause.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server refuses.
    #[error("{method} {path}: {message}")]
    Refused {
        /// Method.
        method: Method,
        /// Path.
        path: String,
        /// Status of the answer.
        status: u16,
        /// Message of the server.
        message: String,
    },
}

impl AccessError {
    /// Whether there is no such object or kind.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { status: 404, .. })
    }

    /// Whether there is one already.
    pub(crate) fn is_already_exists(&self) -> bool {
        matches!(self, Self::Refused { status: 409, .. })
    }
}

/// A connection to a cluster.
#[derive(Clone)]
pub(crate) struct Access {
    pub(crate) client: Client,
    /// Context in use; empty in a pod.
    pub(crate) context: String,
    /// Name of the cluster in the kubeconfig.
    pub(crate) cluster: String,
    /// Options that led here; those of Helm, too.
    pub(crate) options: ClusterOptions,
    /// Options as they were given.
    given: ClusterOptions,
}

const SEGMENT: AsciiSet = NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// A text as a part of a path or of a query.
pub(crate) fn escaped(text: &str) -> String {
    utf8_percent_encode(text, &SEGMENT).to_string()
}

impl Access {
    /// Reads the kubeconfig. Sends nothing.
    ///
    /// # Errors
    ///
    /// [`AccessError`] if there is no such cluster.
    pub(crate) async fn connect(options: &ClusterOptions) -> Result<Self, AccessError> {
        let read = match &options.kubeconfig {
            Some(path) => Some(Kubeconfig::read_from(path)),
            None => match Kubeconfig::read() {
                // In a pod.
                Err(_) if options.context.is_none() && Config::incluster().is_ok() => None,
                read => Some(read),
            },
        };
        let (mut config, context, cluster) = match read {
            None => {
                let config = Config::incluster().map_err(|error| AccessError::Config(error.into()))?;
                (config, String::new(), String::new())
            }
            Some(read) => {
                let kubeconfig = read.map_err(|error| AccessError::Config(error.into()))?;
                let context = options.context.clone().or(kubeconfig.current_context.clone());
                let context = context.unwrap_or_default();
                let named = kubeconfig.contexts.iter().find(|named| named.name == context);
                let cluster = named.and_then(|named| named.context.as_ref());
                let cluster = cluster.map(|found| found.cluster.clone()).unwrap_or_default();
                let choice = KubeConfigOptions {
                    context: options.context.clone(),
                    ..KubeConfigOptions::default()
                };
                let config = Config::from_custom_kubeconfig(kubeconfig, &choice).await;
                let config = config.map_err(|error| AccessError::Config(error.into()))?;
                (config, context, cluster)
            }
        };
        if config.cluster_url.scheme_str() == Some("http") {
            // Otherwise those of the system are read, and it is an error if there are none.
            config.root_cert.get_or_insert_default();
        }
        config.auth_info.impersonate = options.as_user.clone().or(config.auth_info.impersonate);
        if !options.as_group.is_empty() {
            config.auth_info.impersonate_groups = Some(options.as_group.clone());
        }
        let client = Client::try_from(config).map_err(|cause| AccessError::Credentials {
            context: context.clone(),
            cause,
        })?;
        Ok(Self {
            client,
            context,
            cluster,
            options: options.clone(),
            given: options.clone(),
        })
    }

    /// The same user's access to another context.
    pub(crate) async fn other(&self, context: &str) -> Result<Self, AccessError> {
        let options = ClusterOptions {
            context: Some(context.to_owned()),
            ..self.given.clone()
        };
        Self::connect(&options).await?.with_release().await
    }

    /// Finds the Helm release: its name is an annotation of its objects.
    pub(crate) async fn with_release(mut self) -> Result<Self, AccessError> {
        if self.options.helm_release_name.is_none() {
            let settings = self.settings().await?;
            let name = settings.0["metadata"]["annotations"]["meta.helm.sh/release-name"].as_str();
            self.options.helm_release_name = name.map(str::to_owned);
        }
        Ok(self)
    }

    /// Name of the Helm release.
    pub(crate) fn release(&self) -> &str {
        self.options.helm_release_name.as_deref().unwrap_or("cilium")
    }

    /// Namespace of the installation.
    pub(crate) fn namespace(&self) -> &str {
        &self.options.namespace
    }

    /// `/api/v1/namespaces/NAMESPACE/RESOURCE` of the installation.
    pub(crate) fn core(&self, resource: &str) -> String {
        format!("/api/v1/namespaces/{}/{resource}", self.namespace())
    }

    /// `/apis/apps/v1/namespaces/NAMESPACE/RESOURCE` of the installation.
    pub(crate) fn apps(&self, resource: &str) -> String {
        format!("/apis/apps/v1/namespaces/{}/{resource}", self.namespace())
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        content: &str,
        body: Vec<u8>,
    ) -> Result<Vec<u8>, AccessError> {
        let unreachable = |cause: Box<dyn std::error::Error + Send + Sync>| AccessError::Unreachable {
            method: method.clone(),
            path: path.to_owned(),
            cause,
        };
        let request = Request::builder().method(method.clone()).uri(path);
        let request = request
            .header("Content-Type", content)
            .header("Accept", "application/json, */*");
        let request = request
            .body(Body::from(body))
            .map_err(|error| unreachable(error.into()))?;
        let answer = self.client.send(request).await;
        let answer = answer.map_err(|error| unreachable(error.into()))?;
        let status = answer.status();
        let body = answer.into_body().collect().await;
        let body = body.map_err(|error| unreachable(error.into()))?.to_bytes();
        if status.is_success() {
            return Ok(body.to_vec());
        }
        Err(AccessError::Refused {
            method,
            path: path.to_owned(),
            status: status.as_u16(),
            message: message(status, &body),
        })
    }

    pub(crate) async fn json(
        &self,
        method: Method,
        path: &str,
        content: &str,
        body: &Value,
    ) -> Result<Value, AccessError> {
        let body = match body {
            Value::Null => Vec::new(),
            body => body.to_string().into_bytes(),
        };
        let answer = self.send(method, path, content, body).await?;
        Ok(serde_json::from_slice(&answer).unwrap_or_default())
    }

    /// An object; `None` if there is none.
    pub(crate) async fn get(&self, path: &str) -> Result<Option<Value>, AccessError> {
        match self
            .json(Method::GET, path, "application/json", &Value::Null)
            .await
        {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Objects; none if there is no such kind.
    pub(crate) async fn list(&self, path: &str) -> Result<Vec<Value>, AccessError> {
        let found = self.get(path).await?.unwrap_or_default();
        Ok(items(&found).to_vec())
    }

    /// Creates an object.
    pub(crate) async fn create(&self, path: &str, object: &Value) -> Result<Value, AccessError> {
        self.json(Method::POST, path, "application/json", object).await
    }

    /// Creates an object below `path`, or merges it into the one that there is.
    pub(crate) async fn apply(&self, path: &str, object: &Value) -> Result<Value, AccessError> {
        match self.create(path, object).await {
            Err(error) if error.is_already_exists() => {
                let name = text(object, "/metadata/name");
                self.merge(&format!("{path}/{name}"), object).await
            }
            done => done,
        }
    }

    /// Merges a patch into an object (RFC 7386).
    pub(crate) async fn merge(&self, path: &str, patch: &Value) -> Result<Value, AccessError> {
        self.json(Method::PATCH, path, "application/merge-patch+json", patch)
            .await
    }

    /// Deletes an object; whether there was one.
    pub(crate) async fn delete(&self, path: &str) -> Result<bool, AccessError> {
        match self
            .json(Method::DELETE, path, "application/json", &Value::Null)
            .await
        {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The log of a container.
    pub(crate) async fn log(&self, pod: &Pod, container: &str, query: &str) -> Result<String, AccessError> {
        let path = format!(
            "/api/v1/namespaces/{}/pods/{}/log?container={}{query}",
            pod.namespace,
            pod.name,
            escaped(container)
        );
        let text = self
            .send(Method::GET, &path, "application/json", Vec::new())
            .await?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Pods of a namespace with these labels.
    pub(crate) async fn pods(&self, namespace: &str, labels: &str) -> Result<Vec<Pod>, AccessError> {
        let path = format!(
            "/api/v1/namespaces/{namespace}/pods?labelSelector={}",
            escaped(labels)
        );
        Ok(self.list(&path).await?.into_iter().map(Pod::from).collect())
    }

    /// The agents, by node.
    pub(crate) async fn agents(&self) -> Result<Vec<Pod>, AccessError> {
        let mut pods = self.pods(self.namespace(), "k8s-app=cilium").await?;
        pods.sort_by(|one, other| (&one.node, &one.name).cmp(&(&other.node, &other.name)));
        Ok(pods)
    }

    /// Settings of the installation: ConfigMap `cilium-config`.
    pub(crate) async fn settings(&self) -> Result<Settings, AccessError> {
        let found = self.get(&self.core("configmaps/cilium-config")).await?;
        Ok(Settings(found.unwrap_or_default()))
    }
}

/// ConfigMap `cilium-config`; null if there is none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings(pub Value);

impl Settings {
    /// A setting; empty if it is missing.
    pub(crate) fn text(&self, key: &str) -> &str {
        self.0["data"][key].as_str().unwrap_or_default()
    }

    /// Whether a setting is `true`.
    pub(crate) fn is_true(&self, key: &str) -> bool {
        self.text(key) == "true"
    }
}

/// A pod.
#[derive(Debug, Clone)]
pub(crate) struct Pod {
    /// Namespace.
    pub(crate) namespace: String,
    /// Name.
    pub(crate) name: String,
    /// Its node; empty before it is scheduled.
    pub(crate) node: String,
    /// The object.
    pub(crate) object: Value,
}

impl From<Value> for Pod {
    fn from(object: Value) -> Self {
        Self {
            namespace: text(&object, "/metadata/namespace").to_owned(),
            name: text(&object, "/metadata/name").to_owned(),
            node: text(&object, "/spec/nodeName").to_owned(),
            object,
        }
    }
}

impl Pod {
    /// Whether its first container has an image of this project.
    pub(crate) fn is_ours(&self) -> bool {
        let image = self
            .object
            .pointer("/spec/containers/0/image")
            .and_then(Value::as_str);
        image.is_some_and(|image| image.contains("skep"))
    }

    /// The agent's command.
    pub(crate) fn command(&self) -> &'static str {
        if self.is_ours() { "skep" } else { "cilium" }
    }

    /// Phase.
    pub(crate) fn phase(&self) -> &str {
        text(&self.object, "/status/phase")
    }

    /// Whether condition `Ready` is true.
    pub(crate) fn is_ready(&self) -> bool {
        let conditions = self.object["status"]["conditions"].as_array();
        conditions
            .into_iter()
            .flatten()
            .any(|condition| text(condition, "/type") == "Ready" && text(condition, "/status") == "True")
    }

    /// Addresses.
    pub(crate) fn addresses(&self) -> Vec<String> {
        let all = self.object["status"]["podIPs"].as_array();
        let all: Vec<String> = all
            .into_iter()
            .flatten()
            .map(|address| text(address, "/ip").to_owned())
            .collect();
        match text(&self.object, "/status/podIP") {
            one if all.is_empty() && !one.is_empty() => vec![one.to_owned()],
            _ => all,
        }
    }

    /// Names of its containers.
    pub(crate) fn containers(&self) -> Vec<&str> {
        let all = self.object["spec"]["containers"].as_array();
        all.into_iter()
            .flatten()
            .map(|container| text(container, "/name"))
            .collect()
    }
}

/// The text at a JSON pointer; empty if there is none.
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The number at a JSON pointer; 0 if there is none.
pub(crate) fn number(value: &Value, pointer: &str) -> i64 {
    value.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

/// The items of a list.
pub(crate) fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map_or(&[], Vec::as_slice)
}

fn message(status: StatusCode, body: &[u8]) -> String {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    match value["message"].as_str() {
        Some(message) => message.to_owned(),
        None => format!("{status} {}", String::from_utf8_lossy(body))
            .trim()
            .to_owned(),
    }
}

// SPDX-License-Identifier: Apache-2.0

//! Sessions of programs with a running lab: they create objects, and run calls and commands in pods.

use std::{
    ffi::OsString,
    process::{Output, Stdio},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};
use skep_k8s_client::{ApiError, Client, DeleteOptions, Patch, Subresource, WriteOptions};
use skep_k8s_crds::redirectpolicy::CiliumLocalRedirectPolicy;
use skep_k8s_types::{Kind, Resource as _};
use tokio::process::{Child, Command};

use crate::{
    command::{self, CommandError},
    control_plane,
    echo::{Outcome, Transport},
    pod::{ECHO_IMAGE, IDLE_IMAGE},
    process::own_program,
    state::{State, StateError},
};

/// Why an operation of a session failed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The lab does not run, or has no such node or pod.
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error(transparent)]
    State(#[from] StateError),
    /// The API server returned an error.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The address of the API server is invalid.
    #[error(transparent)]
    Target(#[from] skep_k8s_client::remote::TargetError),
    #[error("the lab has no cluster called `{cluster}`")]
    NoCluster { cluster: String },
    /// A kind that the session cannot write.
    #[error("objects of kind `{kind}` are not supported")]
    Kind { kind: String },
    /// A program did not run, or printed something unexpected.
    #[error("{what}: {said}")]
    Program { what: String, said: String },
    /// A condition did not hold in time.
    #[error("not within {} s: {what}", within.as_secs())]
    Late { what: String, within: Duration },
}

/// One cluster of a running lab.
pub struct Session {
    name: String,
    client: Arc<dyn Client>,
}

#[derive(Debug, Clone, Copy)]
pub struct CallMode {
    pub transport: Transport,
    pub keeps: bool,
}

impl CallMode {
    pub const TCP: Self = Self {
        transport: Transport::Tcp,
        keeps: false,
    };
    pub const UDP: Self = Self {
        transport: Transport::Udp,
        keeps: false,
    };

    /// With one socket for all calls.
    #[must_use]
    pub fn kept(self) -> Self {
        Self { keeps: true, ..self }
    }
}

impl Session {
    /// A session with a cluster of the lab called `name`.
    pub fn open(name: &str, cluster: &str) -> Result<Self, SessionError> {
        let state = State::read(name)?;
        let kubeconfig = state.kubeconfig(cluster).ok_or_else(|| SessionError::NoCluster {
            cluster: cluster.to_owned(),
        })?;
        Ok(Self {
            name: name.to_owned(),
            client: control_plane::client(&kubeconfig)?,
        })
    }

    #[must_use]
    pub fn client(&self) -> &dyn Client {
        &*self.client
    }

    pub fn state(&self) -> Result<State, SessionError> {
        Ok(State::read(&self.name)?)
    }

    /// Creates an object in its namespace; returns it as stored.
    pub async fn create(&self, object: Value) -> Result<Arc<Value>, SessionError> {
        let (kind, namespace, _) = identity(&object)?;
        let created = self
            .client
            .create(&kind, &namespace, object, &WriteOptions::default())
            .await?;
        created.to_value().map_err(|err| SessionError::Program {
            what: "creating".into(),
            said: err.to_string(),
        })
    }

    /// Merges `change` into an object.
    pub async fn merge(&self, object: &Value, part: Subresource, change: Value) -> Result<(), SessionError> {
        let (kind, namespace, name) = identity(object)?;
        let options = WriteOptions::default();
        self.client
            .patch(&kind, &namespace, &name, part, &Patch::Merge(change), &options)
            .await?;
        Ok(())
    }

    pub async fn delete(&self, object: &Value) -> Result<(), SessionError> {
        let (kind, namespace, name) = identity(object)?;
        Ok(self
            .client
            .delete(&kind, &namespace, &name, &DeleteOptions::default())
            .await?)
    }

    /// Waits until `done`, at most 90 s: 50 pods are started on a machine that does other things, too.
    pub async fn wait<F: Future<Output = bool>>(
        &self,
        what: &str,
        done: impl Fn() -> F,
    ) -> Result<(), SessionError> {
        let within = Duration::from_secs(90);
        let deadline = tokio::time::Instant::now() + within;
        while !done().await {
            if tokio::time::Instant::now() > deadline {
                return Err(SessionError::Late {
                    what: what.to_owned(),
                    within,
                });
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        Ok(())
    }

    fn caller(&self, from: &str, to: &str, mode: CallMode, more: &[String]) -> Result<Command, SessionError> {
        let transport = match mode.transport {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
        };
        let mut program: Vec<OsString> = vec![own_program()];
        program.extend(["call", to, "--transport", transport, "--json"].map(OsString::from));
        program.extend(mode.keeps.then(|| "--keep".into()));
        program.extend(more.iter().map(OsString::from));
        let mut command = command::in_place(&self.name, from, program)?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Ok(command)
    }

    /// Calls an echo server `count` times from a pod or node.
    ///
    /// # Errors
    /// When the caller cannot run. Calls that fail are counted.
    pub async fn call(
        &self,
        from: &str,
        to: &str,
        mode: CallMode,
        count: u32,
    ) -> Result<Outcome, SessionError> {
        let mut command = self.caller(from, to, mode, &["--count".to_owned(), count.to_string()])?;
        outcome(to, command.output().await)
    }

    /// Starts calling for some time; [`finish`] returns the results.
    pub fn keep_calling(
        &self,
        from: &str,
        to: &str,
        mode: CallMode,
        time: Duration,
    ) -> Result<Child, SessionError> {
        let more = ["--seconds", &time.as_secs_f64().to_string(), "--pause", "2"].map(str::to_owned);
        let mut command = self.caller(from, to, mode, &more)?;
        command.spawn().map_err(|err| SessionError::Program {
            what: format!("calling {to}"),
            said: err.to_string(),
        })
    }

    /// Runs a program on a node or in a pod; what it prints.
    pub async fn run(&self, place: &str, program: &[&str]) -> Result<String, SessionError> {
        let what = program.join(" ");
        let arguments = program.iter().map(OsString::from).collect();
        let mut command = command::in_place(&self.name, place, arguments)?;
        let output = command.stdin(Stdio::null()).output().await;
        let output = output.map_err(|err| SessionError::Program {
            what: what.clone(),
            said: err.to_string(),
        })?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(text);
        }
        Err(SessionError::Program {
            what,
            said: format!("{text}{}", String::from_utf8_lossy(&output.stderr)),
        })
    }
}

/// Waits for calls started by [`Session::keep_calling`].
pub async fn finish(calls: Child) -> Result<Outcome, SessionError> {
    outcome("calls", calls.wait_with_output().await)
}

fn outcome(what: &str, output: std::io::Result<Output>) -> Result<Outcome, SessionError> {
    let failed = |said: String| SessionError::Program {
        what: format!("calling {what}"),
        said,
    };
    let output = output.map_err(|err| failed(err.to_string()))?;
    serde_json::from_slice(&output.stdout)
        .map_err(|_| failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

fn identity(object: &Value) -> Result<(Kind, String, String), SessionError> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let kind = match object["kind"].as_str().unwrap_or_default() {
        "Pod" => Kind::POD,
        "Service" => Kind::SERVICE,
        "Node" => Kind::NODE,
        "Namespace" => Kind::NAMESPACE,
        "ConfigMap" => Kind::CONFIG_MAP,
        "CiliumLocalRedirectPolicy" => CiliumLocalRedirectPolicy::kind(),
        "NetworkPolicy" => Kind::new(
            "networking.k8s.io",
            "v1",
            "NetworkPolicy",
            "networkpolicies",
            true,
        ),
        "CiliumNetworkPolicy" => Kind::new(
            "cilium.io",
            "v2",
            "CiliumNetworkPolicy",
            "ciliumnetworkpolicies",
            true,
        ),
        "EndpointSlice" => Kind::new("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", true),
        other => {
            return Err(SessionError::Kind {
                kind: other.to_owned(),
            });
        }
    };
    let namespace = match (kind.namespaced, text(&object["metadata"]["namespace"])) {
        (true, namespace) if namespace.is_empty() => "default".to_owned(),
        (_, namespace) => namespace,
    };
    Ok((kind, namespace, text(&object["metadata"]["name"])))
}

/// `address:port`, with brackets where IPv6 needs them.
#[must_use]
pub fn at(address: &str, port: u64) -> String {
    if address.contains(':') {
        format!("[{address}]:{port}")
    } else {
        format!("{address}:{port}")
    }
}

/// A pod with an echo server on port 8080, TCP and UDP, labelled `app=<app>`.
#[must_use]
pub fn echo_pod(name: &str, app: &str, node: &str) -> Value {
    let ports =
        json!([{"containerPort": 8080, "protocol": "TCP"}, {"containerPort": 8080, "protocol": "UDP"}]);
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": app}},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": ECHO_IMAGE, "ports": ports}]},
    })
}

/// A pod to run commands in.
#[must_use]
pub fn client_pod(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": IDLE_IMAGE}]},
    })
}

/// A dual-stack service for the pods labelled `app=<name>`: port 80 by TCP and UDP; `more` is merged into its
/// specification.
#[must_use]
pub fn dual_stack_service(name: &str, more: &Value) -> Value {
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "selector": {"app": name}, "ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"],
            "ports": [
                {"name": "web", "protocol": "TCP", "port": 80, "targetPort": 8080},
                {"name": "dns", "protocol": "UDP", "port": 80, "targetPort": 8080},
            ],
        },
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        service["spec"][key] = value.clone();
    }
    service
}

#[must_use]
pub fn cluster_ips(service: &Value) -> Vec<String> {
    let all = service["spec"]["clusterIPs"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    all.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Node port of a service's port by this protocol; 0 if it has none.
#[must_use]
pub fn node_port(service: &Value, protocol: &str) -> u64 {
    let ports = service["spec"]["ports"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    ports
        .iter()
        .find(|port| port["protocol"] == protocol)
        .and_then(|port| port["nodePort"].as_u64())
        .unwrap_or_default()
}

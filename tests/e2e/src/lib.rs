// SPDX-License-Identifier: Apache-2.0

//! End-to-end tests in labs of network namespaces.
//!
//! Each test has a lab and takes it down, also when it fails; they run side by side. Checks that change neither agents
//! nor settings share the lab of one test. The programs must
//! be built first: `cargo build --bins --examples`, as `make test` does.

mod capture;
mod iperf;
mod place;

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use skep_k8s_client::ListOptions;
use skep_k8s_types::Kind;
use skep_lab::{
    command,
    echo::Outcome,
    lab_options::LabOptions,
    plan::{BEYOND, OUTSIDE},
    process,
    session::{CallMode, Session, dual_stack_service},
};

pub use capture::{Capture, Seen};
pub use iperf::Iperf;
pub use place::{Answer, Place, ask, ask_udp, transfer};

/// Setting of agents: services are translated at the packets of pods, not at their sockets.
pub const AT_PACKETS: &str = "bpf-lb-sock-hostns-only=true";

/// Address of the machine behind the router, [`BEYOND`].
///
/// # Panics
/// Never: it has one of each family.
#[must_use]
pub fn beyond_address(is_ipv4: bool) -> IpAddr {
    let mut addresses = skep_lab::plan::BEYOND_NETWORK
        .into_iter()
        .map(|(_, address, _)| address);
    addresses
        .find(|address| address.is_ipv4() == is_ipv4)
        .expect("the machine has an address of each family")
}

/// A lab that is taken down with this value.
pub struct TestLab {
    name: String,
    pub session: Session,
    /// What [`TestLab::clear`] deletes.
    created: Mutex<Vec<Value>>,
}

impl TestLab {
    /// Brings up a lab of one cluster with `nodes` nodes; `config` are further settings of every agent.
    ///
    /// # Panics
    /// When it does not come up.
    pub async fn up(test: &str, nodes: u8, config: &[&str]) -> Self {
        // With a real API server where there is one.
        let assets = std::env::var_os("KUBEBUILDER_ASSETS");
        Self::up_with(test, lab_options(nodes, config, assets)).await
    }

    /// Brings up a lab of this shape.
    ///
    /// # Panics
    /// When it does not come up.
    pub async fn up_with(test: &str, lab_options: LabOptions) -> Self {
        process::use_program(program("skep-lab").into());
        let name = format!("{test}-{}", std::process::id());
        match command::up(&name, &lab_options, |_| ()).await {
            Ok(_) => {}
            Err(err) => {
                let logs = skep_lab::plan::folder_of(&name).join("logs");
                let text = hive::error_chain(&err);
                let _ = command::down(&name);
                panic!("lab {name}: {text} (logs were in {})", logs.display());
            }
        }
        let session = match Session::open(&name, "c1") {
            Ok(session) => session,
            Err(err) => {
                let _ = command::down(&name);
                panic!("lab {name}: {err}");
            }
        };
        Self {
            name,
            session,
            created: Mutex::default(),
        }
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The endpoints of the pods on a node, once there are so many and all are ready.
    ///
    /// # Panics
    /// When they do not come.
    pub async fn endpoints(&self, node: &str, count: usize) -> Vec<Value> {
        let program = ["skep", "endpoint", "list", "-o", "json"];
        let list = || async {
            let text = self.session.run(node, &program).await.unwrap_or_default();
            let mut found: Vec<Value> = serde_json::from_str(&text).unwrap_or_default();
            found.retain(|endpoint| {
                let pod = &endpoint["status"]["external-identifiers"]["k8s-pod-name"];
                pod.as_str().is_some_and(|name| !name.is_empty())
            });
            found
        };
        let what = format!("{count} endpoints of {node} are ready");
        self.wait(&what, || async {
            let found = list().await;
            let is_ready = |endpoint: &Value| endpoint["status"]["state"] == "ready";
            found.len() == count && found.iter().all(is_ready)
        })
        .await;
        list().await
    }

    /// Calls until an outcome is as `good` says.
    ///
    /// # Panics
    /// When that does not happen within 30 s; the message has the last outcome.
    pub async fn call_until(
        &self,
        from: &str,
        to: &str,
        mode: CallMode,
        count: u32,
        good: impl Fn(&Outcome) -> bool,
    ) -> Outcome {
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(30);
        loop {
            let last = match self.session.call(from, to, mode, count).await {
                Ok(outcome) if good(&outcome) => return outcome,
                Ok(outcome) => outcome.to_string(),
                Err(err) => err.to_string(),
            };
            assert!(
                tokio::time::Instant::now() < deadline,
                "{from} → {to} {mode:?}: {last}"
            );
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    /// The network of a node, a pod, or a machine outside.
    ///
    /// # Panics
    /// When nothing has that name.
    #[must_use]
    pub fn place(&self, name: &str) -> Place {
        match command::placement(&self.name, name, Vec::new()) {
            Ok(skep_lab::enter::Placement {
                beside: Some(process),
                ..
            }) => Place::of(process),
            other => panic!("no network of {name}: {other:?}"),
        }
    }

    /// Runs a program on a node, in a pod or outside; what it prints.
    ///
    /// # Panics
    /// When it fails.
    pub async fn run(&self, place: &str, program: &[&str]) -> String {
        match self.session.run(place, program).await {
            Ok(text) => text,
            Err(err) => panic!("on {place}: {err}"),
        }
    }

    /// Waits until `done`.
    ///
    /// # Panics
    /// When that does not happen within 30 s.
    pub async fn wait<F: Future<Output = bool>>(&self, what: &str, done: impl Fn() -> F) {
        if let Err(err) = self.session.wait(what, done).await {
            panic!("{err}");
        }
    }

    /// Process of the agent of a node, or the last one that it had.
    ///
    /// # Panics
    /// When the lab is gone, or has no such node.
    #[must_use]
    pub fn agent(&self, node: &str) -> u32 {
        match self.session.state() {
            // Not 0, which `kill` takes for its own process group.
            Ok(state) => *state
                .agents
                .get(node)
                .unwrap_or_else(|| panic!("no agent on {node}")),
            Err(err) => panic!("{err}"),
        }
    }

    /// Kills the agent of a node, and waits until another one took its place and is well.
    ///
    /// # Panics
    /// When that does not happen in time.
    pub async fn restart_agent(&self, node: &str) {
        let before = self.agent(node);
        self.run(node, &["kill", "-KILL", &before.to_string()]).await;
        self.wait_agent(node, before).await;
    }

    /// Waits until the agent of a node is another process than `before`, and well.
    ///
    /// # Panics
    /// When that does not happen in time.
    pub async fn wait_agent(&self, node: &str, before: u32) {
        let what = format!("the agent of {node} is back");
        self.wait(&what, || async {
            let holder = self
                .session
                .state()
                .ok()
                .and_then(|state| state.nodes.get(node).copied());
            match holder {
                Some(holder) => self.agent(node) != before && skep_lab::agents::is_well(holder).await,
                None => false,
            }
        })
        .await;
    }

    /// Changes a setting of the agent of a node; it applies from the next start on.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn configure(&self, node: &str, key: &str, value: &str) {
        let file = skep_lab::plan::folder_of(&self.name)
            .join("config")
            .join(node)
            .join(key);
        if let Err(err) = std::fs::write(&file, value) {
            panic!("{}: {err}", file.display());
        }
    }

    /// Disables checksum offload on these machines, so that packets on the wire have their checksums.
    ///
    /// # Panics
    /// When `ethtool` fails.
    pub async fn checksums_in_software(&self, places: &[&str]) {
        for place in places {
            let links: &[&str] = match *place {
                OUTSIDE => &["lab0", BEYOND],
                _ => &["eth0"],
            };
            for link in links {
                self.run(place, &["ethtool", "-K", link, "tx", "off"]).await;
            }
        }
    }

    /// Creates the dual-stack service `shop` with these fields in its spec; returns it as the server stored it.
    ///
    /// # Panics
    /// When the API server refuses it.
    pub async fn create_shop(&self, spec: Value) -> Arc<Value> {
        let service = dual_stack_service("shop", &spec);
        match self.session.create(service).await {
            Ok(stored) => {
                self.created
                    .lock()
                    .expect("no holder panics")
                    .push((*stored).clone());
                stored
            }
            Err(err) => panic!("creating service shop: {err}"),
        }
    }

    /// Creates objects.
    ///
    /// # Panics
    /// When the API server refuses one.
    pub async fn create_all(&self, objects: impl IntoIterator<Item = Value>) {
        for object in objects {
            if let Err(err) = self.session.create(object.clone()).await {
                panic!("creating {object}: {err}");
            }
            self.created.lock().expect("no holder panics").push(object);
        }
    }

    /// Deletes the pods and services that the test created, for the next check in the same lab.
    ///
    /// # Panics
    /// When they are still there after 30 s.
    pub async fn clear(&self) {
        let objects = std::mem::take(&mut *self.created.lock().expect("no holder panics"));
        for object in &objects {
            // Some are gone: checks delete, too.
            let _ = self.session.delete(object).await;
        }
        for kind in [Kind::POD, Kind::SERVICE] {
            self.wait("the objects are gone", || async {
                let options = ListOptions::default();
                let listed = self.session.client().list(&kind, "", &options).await;
                listed.is_ok_and(|list| {
                    let mut names = list.items.iter().filter_map(|item| item.to_value().ok());
                    !names.any(|left| objects.iter().any(|object| is_same(object, &left)))
                })
            })
            .await;
        }
    }
}

fn is_same(created: &Value, listed: &Value) -> bool {
    let (created, listed) = (&created["metadata"], &listed["metadata"]);
    created["name"] == listed["name"]
        && created["namespace"].as_str().unwrap_or("default") == listed["namespace"]
}

impl Drop for TestLab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            print_logs(&self.name);
        }
        if let Err(err) = command::down(&self.name) {
            eprintln!("lab {} is left: {err}", self.name);
        }
    }
}

/// One cluster of `nodes` nodes; `config` are further settings of every agent, `assets` the folder of a real API server.
///
/// # Panics
/// When the agent is not built.
#[must_use]
pub fn lab_options(nodes: u8, config: &[&str], assets: Option<OsString>) -> LabOptions {
    LabOptions {
        clusters: 1,
        nodes,
        agent: Some(program("skep-agent")),
        assets,
        agent_config: config.iter().map(|text| (*text).to_owned()).collect(),
        ..LabOptions::default()
    }
}

/// The last lines of every log of a lab: they go with it.
fn print_logs(name: &str) {
    let folder = skep_lab::plan::folder_of(name).join("logs");
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        eprintln!("== {}", entry.file_name().to_string_lossy());
        for line in &lines[lines.len().saturating_sub(40)..] {
            eprintln!("{line}");
        }
    }
}

/// A program of the workspace, built beside the test; or, where intermediate files have a folder of their own
/// (`build.build-dir`), in the target folder.
///
/// # Panics
/// When it is not built.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap_or_default();
    // target/debug/deps/test-… → target/debug
    let beside = test.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    let profile = beside.file_name().unwrap_or_default();
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"),
        PathBuf::from,
    );
    let candidates = [beside.join(name), target.join(profile).join(name)];
    candidates
        .iter()
        .find(|path| path.is_file())
        .cloned()
        .unwrap_or_else(|| {
            panic!(
                "{} is not built; run `cargo build --bins --examples`",
                candidates[0].display()
            )
        })
}

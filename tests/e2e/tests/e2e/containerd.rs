// SPDX-License-Identifier: Apache-2.0

//! Pods of a real containerd, which calls the CNI plugin and is driven by CRI.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{collections::HashMap, path::Path, time::Duration};

use serde_json::{Value, json};
use skep_e2e::{TestLab, lab_options};
use skep_k8s_client::{DeleteOptions, ListOptions};
use skep_k8s_types::Kind;
use skep_lab::{
    cgroup, containerd,
    lab_options::LabOptions,
    paths::LabPaths,
    session::{CallMode, at, cluster_ips, echo_pod},
};
use skep_lab_kubelet::{
    Cri, Image,
    api::{
        ContainerConfig, ContainerMetadata, ImageSpec, LinuxPodSandboxConfig, PodSandboxConfig,
        PodSandboxMetadata,
    },
    image::add_program,
};

const NODE: &str = "c1-n1";
const IMAGE: &str = "localhost/skep-e2e/app:1";
const LIMIT: Duration = Duration::from_secs(60);

/// Creates a pod that the lab's kubelet leaves alone; its sandbox.
async fn create_pod(lab: &TestLab, name: &str, logs: &Path) -> PodSandboxConfig {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "default", "name": name, "labels": {"app": name}},
        "spec": {
            "nodeName": NODE, "runtimeClassName": "containerd",
            "containers": [{"name": "app", "image": IMAGE}],
        },
    });
    let created = lab.session.create(pod).await.unwrap();
    let uid = created["metadata"]["uid"].as_str().unwrap();
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: name.to_owned(),
            namespace: "default".to_owned(),
            uid: uid.to_owned(),
            attempt: 0,
        }),
        hostname: name.to_owned(),
        log_directory: logs.display().to_string(),
        labels: HashMap::from([("io.kubernetes.pod.name".to_owned(), name.to_owned())]),
        linux: Some(LinuxPodSandboxConfig::default()),
        ..PodSandboxConfig::default()
    }
}

fn container(script: &str) -> ContainerConfig {
    ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: "app".to_owned(),
            attempt: 0,
        }),
        image: Some(ImageSpec {
            image: IMAGE.to_owned(),
            ..ImageSpec::default()
        }),
        args: vec![script.to_owned()],
        log_path: "app.log".to_owned(),
        ..ContainerConfig::default()
    }
}

/// What a pod has on its node, as lines that can be compared.
async fn belongings(lab: &TestLab) -> String {
    let script = "ip -o link | cut -d: -f2 | sort; ip route; ip -6 route; ls /run/netns; \
        find /sys/fs/bpf | sort; find /sys/fs/cgroup -type d | sort; cut -d' ' -f5 /proc/self/mountinfo | sort; \
        ls /run/cilium/state; skep ip list -o json";
    lab.run(NODE, &["sh", "-c", script]).await
}

async fn endpoint_objects(lab: &TestLab) -> Vec<String> {
    let kind = Kind::new("cilium.io", "v2", "CiliumEndpoint", "ciliumendpoints", true);
    let listed = lab
        .session
        .client()
        .list(&kind, "default", &ListOptions::default())
        .await;
    let items = listed.unwrap().items;
    let names = items
        .iter()
        .map(|item| item.to_value().unwrap()["metadata"]["name"].clone());
    names
        .filter_map(|name| name.as_str().map(str::to_owned))
        .collect()
}

async fn wait_endpoint_object(lab: &TestLab, name: &str, is_there: bool) {
    let what = format!("CiliumEndpoint {name}: {is_there}");
    lab.wait(&what, || async {
        endpoint_objects(lab).await.iter().any(|found| found == name) == is_there
    })
    .await;
}

async fn delete_pod(lab: &TestLab, name: &str) {
    let options = DeleteOptions {
        grace_period: Some(Duration::ZERO),
        ..DeleteOptions::default()
    };
    let client = lab.session.client();
    client
        .delete(&Kind::POD, "default", name, &options)
        .await
        .unwrap();
}

/// Process of the node's containerd, without its shims.
fn containerd_process(lab: &TestLab) -> Option<i32> {
    let paths = LabPaths::of(lab.name()).unwrap();
    let state = lab.session.state().unwrap();
    let group = paths
        .node_cgroup(state.lab.node(NODE).unwrap())
        .join("pods/containerd");
    let mut processes = cgroup::processes(&group).into_iter();
    processes.find(|process| {
        std::fs::read_to_string(format!("/proc/{process}/comm")).is_ok_and(|name| name.trim() == "containerd")
    })
}

/// Answers that the container got, and did not get.
fn traffic(log: &Path) -> (usize, Vec<String>) {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lost = text.lines().filter(|line| line.contains("LOST"));
    let lost = lost.map(str::to_owned).collect();
    (text.lines().filter(|line| line.contains(" ok ")).count(), lost)
}

async fn wait_traffic(lab: &TestLab, log: &Path) {
    let (before, _) = traffic(log);
    lab.wait("the container goes on calling", || async {
        traffic(log).0 > before + 5
    })
    .await;
}

/// Network namespace of a sandbox, as its node sees it.
async fn network_of(cri: &Cri, sandbox: &str) -> String {
    let status = cri.sandbox_status(sandbox).await.unwrap();
    let info: Value = serde_json::from_str(&status.info["info"]).unwrap();
    let namespaces = info["runtimeSpec"]["linux"]["namespaces"].as_array().unwrap();
    let network = namespaces.iter().find(|namespace| namespace["type"] == "network");
    network.unwrap()["path"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_containerd_are_endpoints_from_their_start_to_their_end() {
    let lab_options = LabOptions {
        containerd: true,
        ..lab_options(2, &[], None)
    };
    let lab = TestLab::up_with("containerd", lab_options).await;
    lab.create_all([echo_pod("shop-0", "shop", "c1-n2")]).await;
    let shop = lab.create_shop(json!({})).await;
    let far = lab.endpoints("c1-n2", 1).await;
    let far = far[0]["status"]["networking"]["addressing"][0]["ipv4"]
        .as_str()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (root, archive) = (folder.path().join("root"), folder.path().join("app.tar"));
    add_program(&root, Path::new("/bin/busybox"), "/bin/busybox").unwrap();
    let image = Image {
        name: IMAGE,
        entrypoint: &["/bin/busybox", "sh", "-c"],
        user: "",
    };
    image.write(&root, &archive).unwrap();
    let paths = LabPaths::of(lab.name()).unwrap();
    let state = lab.session.state().unwrap();
    let cri = Cri::at(&containerd::socket(&paths, state.lab.node(NODE).unwrap())).unwrap();
    cri.import(&archive).await.unwrap();
    assert!(cri.image_names().await.unwrap().contains(&IMAGE.to_owned()));
    lab.wait("the health endpoint has its programs", async || {
        let pins = "ls /sys/fs/bpf/cilium/endpoints/*/links/cil_from_container";
        lab.session.run(NODE, &["sh", "-c", pins]).await.is_ok()
    })
    .await;
    let before = belongings(&lab).await;

    // The plugin connects the sandbox, which is an endpoint with its address.
    let logs = paths.folder.join("cri-logs");
    let sandbox_config = create_pod(&lab, "app", &logs).await;
    let sandbox = cri.run_sandbox(&sandbox_config).await.unwrap();
    let endpoints = lab.endpoints(NODE, 1).await;
    let status = cri.sandbox_status(&sandbox).await.unwrap().status.unwrap();
    let address = endpoints[0]["status"]["networking"]["addressing"][0]["ipv4"].clone();
    assert_eq!(status.network.unwrap().ip, address.as_str().unwrap());
    wait_endpoint_object(&lab, "app", true).await;

    // Its container calls a pod of another node, and a service.
    let service = &cluster_ips(&shop)[0];
    lab.call_until(NODE, &at(service, 80), CallMode::TCP, 1, |outcome| {
        outcome.failed == 0
    })
    .await;
    let script = format!(
        "i=0; while :; do for to in '{far} 8080' '{service} 80'; do \
         i=$((i+1)); answer=$(echo $i | busybox nc -w 10 $to); \
         case \"$answer\" in 'shop-0 '*\" $i\") echo ok $i;; *) echo LOST $i $to: $answer;; esac; \
         done; busybox usleep 20000; done"
    );
    let id = cri
        .start_container(&sandbox, &sandbox_config, container(&script))
        .await
        .unwrap();
    let log = logs.join("app.log");
    wait_traffic(&lab, &log).await;

    // Restarts of containerd and of the agent go unnoticed.
    let process = containerd_process(&lab).unwrap();
    lab.run(NODE, &["kill", "-KILL", &process.to_string()]).await;
    lab.wait("containerd is back", || async {
        containerd_process(&lab).is_some_and(|other| other != process) && cri.version().await.is_ok()
    })
    .await;
    wait_traffic(&lab, &log).await;
    lab.restart_agent(NODE).await;
    lab.endpoints(NODE, 1).await;
    wait_traffic(&lab, &log).await;
    let command = ["busybox", "hostname"].map(str::to_owned);
    let answer = cri.exec(&id, &command, LIMIT).await.unwrap();
    assert_eq!(
        (answer.exit_code, answer.stdout.as_slice()),
        (0, b"app\n".as_slice())
    );
    let (answered, lost) = traffic(&log);
    assert!(lost.is_empty(), "{} of {answered}: {lost:?}", lost.len());

    cri.stop_sandbox(&sandbox).await.unwrap();
    cri.remove_sandbox(&sandbox).await.unwrap();
    delete_pod(&lab, "app").await;
    lab.endpoints(NODE, 0).await;
    wait_endpoint_object(&lab, "app", false).await;

    // A sandbox whose network namespace was lost leaves nothing either.
    let sandbox_config = create_pod(&lab, "lost", &logs).await;
    let sandbox = cri.run_sandbox(&sandbox_config).await.unwrap();
    lab.endpoints(NODE, 1).await;
    let network = network_of(&cri, &sandbox).await;
    lab.run(NODE, &["umount", "-l", &network]).await;
    lab.run(NODE, &["rm", &network]).await;
    cri.stop_sandbox(&sandbox).await.unwrap();
    cri.remove_sandbox(&sandbox).await.unwrap();
    delete_pod(&lab, "lost").await;
    lab.endpoints(NODE, 0).await;
    wait_endpoint_object(&lab, "lost", false).await;
    assert!(cri.sandboxes().await.unwrap().is_empty());
    let after = belongings(&lab).await;
    assert_eq!(after, before);
}

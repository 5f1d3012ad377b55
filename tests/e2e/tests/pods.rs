// SPDX-License-Identifier: Apache-2.0

//! Pods of the lab, as their users see them.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{io::Write as _, process::Stdio};

use serde_json::{Value, json};
use skep_e2e::TestLab;
use skep_k8s::{
    Client as _, Kind, ListOptions,
    remote::{RemoteClient, Settings, Target},
};
use skep_lab::{
    cgroup,
    machine::Site,
    session::{client_pod, echo_pod},
};

const POD: Kind = Kind::new("", "v1", "Pod", "pods", true);
const EVENT: Kind = Kind::new("", "v1", "Event", "events", true);

async fn pod(lab: &TestLab, name: &str) -> Value {
    let pod = lab.session.client().get(&POD, "default", name).await.unwrap();
    (*pod.to_value().unwrap()).clone()
}

/// Reason, message and count of the events of a pod.
async fn events(lab: &TestLab, name: &str) -> Vec<(String, String, u64)> {
    let list = lab
        .session
        .client()
        .list(&EVENT, "default", &ListOptions::default())
        .await;
    let items = list.unwrap().items;
    let values = items.iter().map(|item| item.to_value().unwrap());
    values
        .filter(|event| event["involvedObject"]["name"] == name)
        .map(|event| {
            let text = |key: &str| event[key].as_str().unwrap().to_owned();
            (text("reason"), text("message"), event["count"].as_u64().unwrap())
        })
        .collect()
}

/// Processes of a pod on the first node.
fn processes(lab: &TestLab, name: &str) -> Vec<i32> {
    let state = lab.session.state().unwrap();
    let node = state.lab.node("c1-n1").unwrap();
    let pods = Site::of(lab.name()).unwrap().node_cgroup(node).join("pods");
    cgroup::processes(&pods.join(format!("default.{name}")))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_crashes_is_started_again_and_its_events_say_so() {
    let lab = TestLab::up("crashing", 1, &[]).await;
    // One port under two names is valid.
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default", "name": "web-0"},
        "spec": {"containers": [{"name": "web", "image": "skep-lab/echo", "ports": [
            {"name": "http", "containerPort": 8080}, {"name": "metrics", "containerPort": 8080}]}]},
    });
    lab.create_all([object]).await;
    lab.session
        .wait("the pod is ready", || async {
            pod(&lab, "web-0").await["status"]["containerStatuses"][0]["ready"] == true
        })
        .await
        .unwrap();
    let first = pod(&lab, "web-0").await;
    assert_eq!(first["status"]["containerStatuses"][0]["name"], "web");
    assert_eq!(first["status"]["containerStatuses"][0]["restartCount"], 0);

    for times in 1..=2 {
        let process = processes(&lab, "web-0")[0].to_string();
        lab.session
            .run("c1-n1", &["kill", "-KILL", &process])
            .await
            .unwrap();
        lab.session
            .wait("the pod is started again", || async {
                let status = pod(&lab, "web-0").await["status"]["containerStatuses"][0].clone();
                status["restartCount"] == times && status["ready"] == true
            })
            .await
            .unwrap();
    }

    let status = pod(&lab, "web-0").await["status"]["containerStatuses"][0].clone();
    assert_eq!(status["lastState"]["terminated"]["exitCode"], 137, "{status}");
    lab.session
        .wait("the third start is counted", || async {
            let events = events(&lab, "web-0").await;
            events
                .iter()
                .any(|(reason, _, count)| reason == "Started" && *count == 3)
        })
        .await
        .unwrap();
    let uid = first["metadata"]["uid"].as_str().unwrap();
    let event = |reason: &str, message: &str, count| (reason.to_owned(), message.to_owned(), count);
    let mut seen = events(&lab, "web-0").await;
    seen.sort();
    assert_eq!(
        seen,
        [
            event(
                "BackOff",
                &format!("Back-off restarting failed container web in pod web-0_default({uid})"),
                2
            ),
            event("Created", "Created container: web", 3),
            event(
                "Pulled",
                "Container image \"skep-lab/echo\" already present on machine",
                3
            ),
            event("Scheduled", "Successfully assigned default/web-0 to c1-n1", 1),
            event("Started", "Started container web", 3),
        ]
    );
}

/// Exit code, output and errors of kubectl; nothing if it is not installed.
fn kubectl(config: &std::path::Path, words: &[&str], input: &str) -> Option<(i32, String, String)> {
    let mut child = std::process::Command::new("kubectl")
        .env("KUBECONFIG", config)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some((
        output.status.code().unwrap_or(-1),
        text(&output.stdout),
        text(&output.stderr),
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_shows_logs_and_starts_programs() {
    let lab = TestLab::up_with("inside", skep_e2e::shape(1, &[], None)).await;
    lab.create_all([echo_pod("web-0", "shop", "c1-n1"), client_pod("client", "c1-n1")])
        .await;
    for name in ["web-0", "client"] {
        lab.session
            .wait("the pod is ready", || async {
                pod(&lab, name).await["status"]["containerStatuses"][0]["ready"] == true
            })
            .await
            .unwrap();
    }
    let config = lab.session.state().unwrap().kubeconfig("c1").unwrap();
    let Some((_, logs, _)) = kubectl(&config, &["logs", "web-0"], "") else {
        eprintln!("kubectl is not installed: nothing to check");
        return;
    };
    let run = |words: &[&str], input: &str| kubectl(&config, words, input).unwrap();
    let ok = |words: &[&str], input: &str| {
        let (code, out, err) = run(words, input);
        assert_eq!(code, 0, "{words:?}: {err}");
        out
    };

    assert!(logs.contains("web-0 serves TCP 8080\n"), "{logs}");
    let text = ok(&["explain", "clrp.spec"], "");
    assert!(text.contains("redirectBackend\t<Object> -required-"), "{text}");
    assert_eq!(ok(&["logs", "web-0", "--tail=1"], "").lines().count(), 1);
    assert_eq!(ok(&["exec", "web-0", "--", "hostname"], ""), "web-0\n");
    assert_eq!(
        ok(&["exec", "-i", "client", "--", "cat"], "one\ntwo\n"),
        "one\ntwo\n"
    );
    assert_eq!(run(&["exec", "web-0", "--", "sh", "-c", "exit 7"], "").0, 7);
    assert_eq!(
        run(&["exec", "web-0", "--", "sh", "-c", "kill -KILL $$"], "").0,
        137
    );
    // Its own network, not that of this machine.
    let links = ok(&["exec", "web-0", "--", "ls", "/proc/self/net/dev_snmp6"], "");
    assert_eq!(links.split_whitespace().count(), 2, "{links}");
    let (code, _, err) = run(&["logs", "web-0", "--previous"], "");
    assert!(
        code == 1 && err.contains("previous terminated container"),
        "{err}"
    );

    let process = processes(&lab, "web-0")[0].to_string();
    lab.session
        .run("c1-n1", &["kill", "-KILL", &process])
        .await
        .unwrap();
    lab.session
        .wait("the pod is started again", || async {
            pod(&lab, "web-0").await["status"]["containerStatuses"][0]["restartCount"] == 1
                && !processes(&lab, "web-0").is_empty()
        })
        .await
        .unwrap();
    assert_eq!(ok(&["logs", "web-0", "--previous"], ""), logs);
}

/// Programs in pods run as root: whoever has no token is refused.
#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_of_the_machine_wants_its_token() {
    let lab = TestLab::up_with("token", skep_e2e::shape(1, &[], None)).await;
    let own = lab.session.state().unwrap().kubeconfig("c1").unwrap();
    let text = std::fs::read_to_string(&own).unwrap();
    let (before, after) = text.split_once("token: ").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let stolen = folder.path().join("kubeconfig");
    std::fs::write(&stolen, format!("{before}token: x{after}")).unwrap();

    let target = Target::Kubeconfig(stolen, Vec::new());
    let stranger = RemoteClient::new(target, Settings::default()).unwrap();
    let refused = stranger
        .get(&POD, "default", "web-0")
        .await
        .map(drop)
        .unwrap_err();

    assert_eq!(refused.status().unwrap().code, 401);
}

// SPDX-License-Identifier: Apache-2.0

//! Pods of the lab, as their users see them.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{io::Write as _, process::Stdio};

use serde_json::{Value, json};
use skep_e2e::TestLab;
use skep_k8s_client::{
    Client as _, ListOptions, WriteOptions,
    remote::{RemoteClient, Settings, Target},
};
use skep_k8s_types::Kind;
use skep_lab::{
    cgroup,
    paths::LabPaths,
    session::{client_pod, echo_pod},
};

async fn pod(lab: &TestLab, name: &str) -> Value {
    let pod = lab
        .session
        .client()
        .get(&Kind::POD, "default", name)
        .await
        .unwrap();
    (*pod.to_value().unwrap()).clone()
}

/// Reason, message and count of the events of a pod.
async fn events(lab: &TestLab, name: &str) -> Vec<(String, String, u64)> {
    let list = lab
        .session
        .client()
        .list(&Kind::EVENT, "default", &ListOptions::default())
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
    let pods = LabPaths::of(lab.name()).unwrap().node_cgroup(node).join("pods");
    cgroup::processes(&pods.join(format!("default.{name}")))
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_one_lab() {
    let lab = TestLab::up_with("pods", skep_e2e::lab_options(1, &[], None)).await;
    a_pod_that_crashes_is_started_again_and_its_events_say_so(&lab).await;
    lab.clear().await;
    kubectl_shows_logs_and_starts_programs(&lab).await;
    lab.clear().await;
    kubectl_has_a_terminal_in_a_pod(&lab).await;
    lab.clear().await;
    pods_have_the_token_of_their_account(&lab).await;
    lab.clear().await;
    a_pod_waits_for_its_config_map(&lab).await;
    lab.clear().await;
    the_api_server_of_the_machine_wants_its_token(&lab).await;
    lab.clear().await;
}

async fn a_pod_that_crashes_is_started_again_and_its_events_say_so(lab: &TestLab) {
    // One port under two names is valid.
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default", "name": "web-0"},
        "spec": {"containers": [{"name": "web", "image": "skep-lab/echo", "ports": [
            {"name": "http", "containerPort": 8080}, {"name": "metrics", "containerPort": 8080}]}]},
    });
    lab.create_all([object]).await;
    lab.session
        .wait("the pod is ready", || async {
            pod(lab, "web-0").await["status"]["containerStatuses"][0]["ready"] == true
        })
        .await
        .unwrap();
    let first = pod(lab, "web-0").await;
    assert_eq!(first["status"]["containerStatuses"][0]["name"], "web");
    assert_eq!(first["status"]["containerStatuses"][0]["restartCount"], 0);

    for times in 1..=2 {
        let process = processes(lab, "web-0")[0].to_string();
        lab.session
            .run("c1-n1", &["kill", "-KILL", &process])
            .await
            .unwrap();
        lab.session
            .wait("the pod is started again", || async {
                let status = pod(lab, "web-0").await["status"]["containerStatuses"][0].clone();
                status["restartCount"] == times && status["ready"] == true
            })
            .await
            .unwrap();
    }

    let status = pod(lab, "web-0").await["status"]["containerStatuses"][0].clone();
    assert_eq!(status["lastState"]["terminated"]["exitCode"], 137, "{status}");
    lab.session
        .wait("the third start is counted", || async {
            let events = events(lab, "web-0").await;
            events
                .iter()
                .any(|(reason, _, count)| reason == "Started" && *count == 3)
        })
        .await
        .unwrap();
    let uid = first["metadata"]["uid"].as_str().unwrap();
    let event = |reason: &str, message: &str, count| (reason.to_owned(), message.to_owned(), count);
    let mut seen = events(lab, "web-0").await;
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

async fn kubectl_shows_logs_and_starts_programs(lab: &TestLab) {
    lab.create_all([echo_pod("web-0", "shop", "c1-n1"), client_pod("client", "c1-n1")])
        .await;
    for name in ["web-0", "client"] {
        lab.session
            .wait("the pod is ready", || async {
                pod(lab, name).await["status"]["containerStatuses"][0]["ready"] == true
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

    let process = processes(lab, "web-0")[0].to_string();
    lab.session
        .run("c1-n1", &["kill", "-KILL", &process])
        .await
        .unwrap();
    lab.session
        .wait("the pod is started again", || async {
            pod(lab, "web-0").await["status"]["containerStatuses"][0]["restartCount"] == 1
                && !processes(lab, "web-0").is_empty()
        })
        .await
        .unwrap();
    assert_eq!(ok(&["logs", "web-0", "--previous"], ""), logs);
}

/// Terminals, as people use them: kubectl has one of its own here.
async fn kubectl_has_a_terminal_in_a_pod(lab: &TestLab) {
    lab.create_all([client_pod("client", "c1-n1")]).await;
    lab.session
        .wait("the pod is ready", || async {
            pod(lab, "client").await["status"]["containerStatuses"][0]["ready"] == true
        })
        .await
        .unwrap();
    let config = lab.session.state().unwrap().kubeconfig("c1").unwrap();
    if kubectl(&config, &["version", "--client"], "").is_none() {
        eprintln!("kubectl is not installed: nothing to check");
        return;
    }

    // The size arrives after the start.
    let inside = "until [ \"$(stty size)\" = \"40 100\" ]; do sleep 0.05; done; tty; echo $TERM; exit 7";
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    let text = format!("stty rows 40 cols 100\nkubectl exec -it client -- sh -c '{inside}'\n");
    std::fs::write(&program, text).unwrap();
    let output = std::process::Command::new("script")
        .args(["-qec", &format!("sh {}", program.display()), "/dev/null"])
        .env("KUBECONFIG", &config)
        .stdin(Stdio::null())
        .output()
        .unwrap();

    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("/dev/pts/") && said.contains("xterm"), "{said}");
    assert_eq!(output.status.code(), Some(7), "{said}");
}

/// What a client in a pod logs in with.
async fn pods_have_the_token_of_their_account(lab: &TestLab) {
    let mut quiet = client_pod("quiet", "c1-n1");
    quiet["spec"]["automountServiceAccountToken"] = false.into();
    lab.create_all([client_pod("client", "c1-n1"), quiet]).await;
    for name in ["client", "quiet"] {
        lab.session
            .wait("the pod is ready", || async {
                pod(lab, name).await["status"]["containerStatuses"][0]["ready"] == true
            })
            .await
            .unwrap();
    }
    let file = |name: &str| format!("/var/run/secrets/kubernetes.io/serviceaccount/{name}");
    let read = async |pod: &str, name: &str| lab.session.run(pod, &["cat", &file(name)]).await;

    assert_eq!(read("client", "namespace").await.unwrap(), "default");
    let certificate = read("client", "ca.crt").await.unwrap();
    assert!(
        certificate.starts_with("-----BEGIN CERTIFICATE-----"),
        "{certificate}"
    );
    let token = read("client", "token").await.unwrap();
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token},
    });
    let kind = Kind::new(
        "authentication.k8s.io",
        "v1",
        "TokenReview",
        "tokenreviews",
        false,
    );
    let status = async || {
        let answer = lab
            .session
            .client()
            .create(&kind, "", review.clone(), &WriteOptions::default())
            .await;
        answer.unwrap().to_value().unwrap()["status"].clone()
    };
    let seen = status().await;
    assert_eq!(seen["user"]["username"], "system:serviceaccount:default:default");
    let extra = &seen["user"]["extra"];
    assert_eq!(extra["authentication.kubernetes.io/pod-name"], json!(["client"]));
    assert_eq!(extra["authentication.kubernetes.io/node-name"], json!(["c1-n1"]));
    // A program in the pod logs in with it.
    let server = "exec 3<>/dev/tcp/172.30.1.250/6443";
    let login = async |token: &str| {
        let request = format!(
            r#"{server}; printf 'GET /api HTTP/1.0\r\nAuthorization: Bearer %s\r\n\r\n' "{token}" >&3; head -1 <&3"#
        );
        lab.session
            .run("client", &["bash", "-c", &request])
            .await
            .unwrap()
    };
    let answer = login(&format!("$(cat {})", file("token"))).await;
    assert!(answer.contains(" 200 "), "{answer}");
    assert!(login("wrong").await.contains(" 401 "));
    // Read-only, and visible in this pod alone.
    let write = format!("echo x > {}", file("token"));
    assert!(lab.session.run("client", &["sh", "-c", &write]).await.is_err());
    for place in ["quiet", "c1-n1"] {
        assert!(read(place, "token").await.is_err(), "{place}");
    }

    let config = lab.session.state().unwrap().kubeconfig("c1").unwrap();
    if let Some((code, issued, err)) = kubectl(&config, &["create", "token", "default"], "") {
        assert_eq!(code, 0, "{err}");
        let words = [
            "auth",
            "whoami",
            "-o",
            "jsonpath={.status.userInfo.username}",
            "--token",
            issued.trim(),
        ];
        let (_, name, err) = kubectl(&config, &words, "").unwrap();
        assert_eq!(name, "system:serviceaccount:default:default", "{err}");
    }
    let paths = LabPaths::of(lab.name()).unwrap();
    let state = lab.session.state().unwrap();
    let files = paths.volumes(state.lab.node("c1-n1").unwrap(), "default.client");
    assert!(files.is_dir());
    lab.session.delete(&client_pod("client", "c1-n1")).await.unwrap();
    lab.session
        .wait("the pod is gone", || async { !files.exists() })
        .await
        .unwrap();
    lab.session
        .wait("its token is worth nothing", || async {
            status().await["error"] == "service account token has been invalidated"
        })
        .await
        .unwrap();
}

/// A pod whose volume cannot be made waits for it, and its events say why.
async fn a_pod_waits_for_its_config_map(lab: &TestLab) {
    let mut waiting = client_pod("client", "c1-n1");
    let sources = json!([{"configMap": {"name": "settings"}}]);
    waiting["spec"]["volumes"] = json!([{"name": "v", "projected": {"sources": sources}}]);
    waiting["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/run/settings"}]);
    lab.create_all([waiting]).await;
    lab.session
        .wait("an event says what is missing", || async {
            let events = events(lab, "client").await;
            events.iter().any(|(reason, message, _)| {
                reason == "FailedMount" && message.contains("configmaps \"settings\" not found")
            })
        })
        .await
        .unwrap();

    let config = Kind::CONFIG_MAP;
    let settings = json!({"metadata": {"name": "settings"}, "data": {"color": "red"}});
    let client = lab.session.client();
    client
        .create(&config, "default", settings, &WriteOptions::default())
        .await
        .unwrap();
    lab.session
        .wait("the pod is ready", || async {
            pod(lab, "client").await["status"]["containerStatuses"][0]["ready"] == true
        })
        .await
        .unwrap();

    let read = lab
        .session
        .run("client", &["cat", "/run/settings/color"])
        .await
        .unwrap();
    assert_eq!(read, "red");
}

/// Programs in pods run as root: whoever has no token is refused.
async fn the_api_server_of_the_machine_wants_its_token(lab: &TestLab) {
    let own = lab.session.state().unwrap().kubeconfig("c1").unwrap();
    let text = std::fs::read_to_string(&own).unwrap();
    let (before, after) = text.split_once("token: ").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let stolen = folder.path().join("kubeconfig");
    std::fs::write(&stolen, format!("{before}token: x{after}")).unwrap();

    let target = Target::Kubeconfig(stolen, Vec::new());
    let stranger = RemoteClient::new(target, Settings::default()).unwrap();
    let refused = stranger
        .get(&Kind::POD, "default", "web-0")
        .await
        .map(drop)
        .unwrap_err();

    assert_eq!(refused.status().unwrap().code, 401);
}

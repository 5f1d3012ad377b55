// SPDX-License-Identifier: Apache-2.0

//! `skep clustermesh enable-config`: files for a running agent, and Secrets.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::{fs::PermissionsExt as _, net::UnixListener},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use skep_kvstore_etcd::{EtcdConfig, testing::Authority};

/// An agent that has read what is in the directory of its settings.
struct Agent {
    folder: tempfile::TempDir,
}

impl Agent {
    fn start(settings: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("mesh");
        fs::create_dir(&directory).unwrap();
        let mut map = json!({
            "clustermesh-config": directory,
            "cluster-id": "9",
            "cluster-name": "alder",
        });
        for (name, value) in settings {
            map[*name] = Value::from(*value);
        }
        let settings = map.to_string();
        let listener = UnixListener::bind(folder.path().join("agent.sock")).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut request = [0; 4096];
                let length = stream.read(&mut request).unwrap();
                let asks_settings = request[..length].starts_with(b"GET /v1/settings ");
                let body = if asks_settings {
                    settings.clone()
                } else {
                    health(&directory)
                };
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                // The client may have ended.
                let _ = stream.write_all((head + &body).as_bytes());
            }
        });
        Self { folder }
    }

    fn directory(&self) -> PathBuf {
        self.folder.path().join("mesh")
    }

    fn run(&self, words: &str) -> Output {
        let host = self.folder.path().join("agent.sock");
        skep(&format!("-H {} {words}", host.display()), "")
    }

    fn error(&self, words: &str) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        text(&output.stderr)
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.directory()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

/// A cluster is ready if its configuration names port 2379.
fn health(directory: &Path) -> String {
    let clusters: Vec<Value> = fs::read_to_string(directory.join("birch"))
        .map(|text| json!({ "name": "birch", "ready": text.contains(":2379"), "status": "as it is" }))
        .into_iter()
        .collect();
    json!({ "cluster-mesh": { "clusters": clusters } }).to_string()
}

fn skep(words: &str, input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_skep"))
        .args(words.split_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    // It may end without reading.
    let _ = child
        .stdin
        .take()
        .expect("it is piped")
        .write_all(input.as_bytes());
    child.wait_with_output().expect("it ends")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The options that name certificates of a new authority.
fn certificates(folder: &Path) -> String {
    let authority = Authority::new("mesh");
    let ca = authority.write(folder);
    let (cert, key) = authority.sign(folder, "remote");
    format!(
        "--ca {} --cert {} --key {}",
        ca.display(),
        cert.display(),
        key.display()
    )
}

const ENABLE: &str = "clustermesh enable-config";

#[test]
fn a_running_agent_gets_the_configuration_and_its_certificates() {
    let agent = Agent::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let tls = certificates(folder.path());

    let endpoint = "--endpoint https://birch.mesh.cilium.io:2379 --ip 192.0.2.20,2001:db8::20";
    let output = agent.run(&format!("{ENABLE} birch {endpoint} {tls}"));

    assert!(output.status.success(), "{output:?}");
    let out = text(&output.stdout);
    let path = agent.directory().join("birch");
    assert!(
        out.starts_with(&format!(
            "Configured cluster `birch` in {}\nbirch: ready, ",
            path.display()
        )),
        "{out}"
    );
    assert_eq!(
        agent.files(),
        [
            "birch",
            "birch.etcd-client-ca.crt",
            "birch.etcd-client.crt",
            "birch.etcd-client.key"
        ]
    );
    let key = fs::metadata(agent.directory().join("birch.etcd-client.key")).unwrap();
    assert_eq!(key.permissions().mode() & 0o777, 0o600);
    let config = EtcdConfig::load(&path).unwrap();
    assert_eq!(config.endpoints[0].address, "https://birch.mesh.cilium.io:2379");
    let addresses: Vec<String> = config.host_aliases["birch.mesh.cilium.io"]
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(addresses, ["192.0.2.20", "2001:db8::20"]);
    let (cert, key) = config.tls.client.unwrap();
    for file in [config.tls.ca.unwrap(), cert, key] {
        assert!(file.exists(), "{}", file.display());
    }
}

#[test]
fn a_cluster_that_does_not_become_ready_is_a_failure_that_is_shown() {
    let agent = Agent::start(&[]);

    let output = agent.run(&format!(
        "{ENABLE} birch --endpoint http://127.0.0.1:1 --wait 300ms"
    ));

    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let out = text(&output.stdout);
    assert!(
        out.contains("\nbirch: not-ready, ") && out.contains("as it is"),
        "{out}"
    );

    let output = agent.run(&format!("{ENABLE} birch --endpoint http://127.0.0.1:1 --wait 0s"));
    assert!(output.status.success(), "it is not waited for: {output:?}");
}

#[test]
fn other_configurations_are_overwritten_only_on_demand() {
    let agent = Agent::start(&[]);
    let path = agent.directory().join("birch");
    fs::write(&path, "endpoints:\n- http://127.0.0.1:1\n").unwrap();
    let enable = format!("{ENABLE} birch --endpoint http://127.0.0.1:2379");

    let error = agent.error(&enable);
    assert_eq!(
        error,
        format!(
            "Error: `{}` is there already, and differs; --replace overwrites it\n",
            path.display()
        )
    );
    assert!(fs::read_to_string(&path).unwrap().contains(":1\n"));

    assert!(agent.run(&format!("{enable} --replace")).status.success());
    assert!(agent.run(&enable).status.success(), "it is the same now");
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        "endpoints:\n- http://127.0.0.1:2379\n"
    );
    assert_eq!(agent.files(), ["birch"]);
}

#[test]
fn what_cannot_be_enabled_is_refused_and_nothing_is_written() {
    let enable = format!("{ENABLE} birch --endpoint http://127.0.0.1:2379");
    let no_directory = Agent::start(&[("clustermesh-config", "")]);
    let error = no_directory.error(&enable);
    assert!(error.contains("set clustermesh-config (the directory"), "{error}");
    let error = Agent::start(&[("cluster-id", "0")]).error(&enable);
    assert!(error.contains("set cluster-id (an id"), "{error}");
    let error = Agent::start(&[("cluster-name", "birch")]).error(&enable);
    assert_eq!(error, "Error: `birch` is the cluster of the agent\n");

    let mounted = Agent::start(&[]);
    fs::create_dir(mounted.directory().join("..data")).unwrap();
    let error = mounted.error(&enable);
    assert!(
        error.contains("is a mounted Secret or ConfigMap: apply what --manifest prints"),
        "{error}"
    );

    let agent = Agent::start(&[]);
    let error = agent.error(&format!("{ENABLE} birch --endpoint https://127.0.0.1:2379"));
    assert!(
        error.contains("common-etcd-client-ca.crt` is missing: give --ca, --cert and --key"),
        "{error}"
    );
    let folder = tempfile::tempdir().unwrap();
    let tls = certificates(folder.path());
    let error = agent.error(&format!("{enable} {tls}"));
    assert!(
        error.contains("`http://127.0.0.1:2379` is without TLS"),
        "{error}"
    );
    let swapped = tls
        .replace("--cert", "--x")
        .replace("--key", "--cert")
        .replace("--x", "--key");
    let error = agent.error(&format!(
        "{ENABLE} birch --endpoint https://127.0.0.1:2379 {swapped}"
    ));
    assert!(error.contains("has no PEM block of a "), "{error}");
    let error = agent.error(&format!("{enable} --ip 192.0.2.1"));
    assert!(error.contains("is an address already"), "{error}");
    assert_eq!(agent.files(), [""; 0]);

    let error = skep(&format!("-H /nonexistent/agent.sock {enable}"), "");
    assert!(text(&error.stderr).contains("the agent cannot be asked where it reads configurations"));
    for wrong in [
        "Birch --endpoint http://a:1",
        "birch --endpoint a:1",
        "birch",
        "birch --endpoint http://a:1 --secret -",
    ] {
        assert_eq!(
            skep(&format!("{ENABLE} {wrong}"), "").status.code(),
            Some(1),
            "{wrong}"
        );
    }
}

fn data(secret: &Value, key: &str) -> String {
    let value = secret["data"][key].as_str().unwrap_or_default();
    text(&BASE64_STANDARD.decode(value).unwrap())
}

#[test]
fn secrets_are_those_of_the_chart() {
    let endpoint = "--endpoint https://birch.example:2379 --manifest";
    let output = skep(&format!("{ENABLE} birch {endpoint}"), "");
    assert!(output.status.success(), "{output:?}");
    let out = text(&output.stdout);
    assert!(
        out.starts_with("apiVersion: v1\n") && out.contains("\nkind: Secret\n"),
        "{out}"
    );

    let output = skep(
        &format!("{ENABLE} birch {endpoint} --kvstoremesh --namespace cilium -o json"),
        "",
    );
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [agents, mesh] = list["items"].as_array().unwrap().as_slice() else {
        panic!("two Secrets: {list}");
    };
    assert_eq!(
        agents["metadata"],
        json!({ "name": "cilium-clustermesh", "namespace": "cilium" })
    );
    assert_eq!(
        data(agents, "birch"),
        "endpoints:\n- https://clustermesh-apiserver.cilium.svc:2379\n\
         trusted-ca-file: /var/lib/cilium/clustermesh/local-etcd-client-ca.crt\n\
         key-file: /var/lib/cilium/clustermesh/local-etcd-client.key\n\
         cert-file: /var/lib/cilium/clustermesh/local-etcd-client.crt\n"
    );
    assert_eq!(mesh["metadata"]["name"], "cilium-kvstoremesh");
    assert!(data(mesh, "birch").starts_with(
        "endpoints:\n- https://birch.example:2379\n\
         trusted-ca-file: /var/lib/cilium/clustermesh/common-etcd-client-ca.crt\n"
    ));
}

#[test]
fn a_secret_that_is_there_keeps_its_clusters() {
    let folder = tempfile::tempdir().unwrap();
    let tls = certificates(folder.path());
    let present = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": { "name": "cilium-clustermesh", "namespace": "kube-system", "resourceVersion": "7", "managedFields": [] },
        "data": { "maple": "ZW5kcG9pbnRzOg==" },
    });
    let enable =
        format!("{ENABLE} birch --endpoint https://birch.example:2379 --manifest --secret - -o json");

    let output = skep(&format!("{enable} {tls}"), &present.to_string());

    let secret: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(secret["data"]["maple"], present["data"]["maple"]);
    assert_eq!(
        secret["metadata"],
        json!({ "name": "cilium-clustermesh", "namespace": "kube-system", "resourceVersion": "7" })
    );
    assert!(data(&secret, "birch").contains("key-file: /var/lib/cilium/clustermesh/birch.etcd-client.key\n"));
    assert!(data(&secret, "birch.etcd-client.key").contains("PRIVATE KEY"));
    let output = skep(&enable, &secret.to_string());
    assert_eq!(
        text(&output.stderr),
        "Error: Secret `cilium-clustermesh` has another `birch` already; --replace overwrites it\n"
    );
    assert!(
        skep(&format!("{enable} --replace"), &secret.to_string())
            .status
            .success()
    );

    let mut other = present;
    other["metadata"]["name"] = Value::from("cilium-ca");
    let error = text(&skep(&enable, &other.to_string()).stderr);
    assert_eq!(
        error,
        "Error: --secret: `-` has Secret `kube-system/cilium-ca`; expected the Secret `kube-system/cilium-clustermesh`\n"
    );
    let error = text(&skep(&enable, "kind: Secret").stderr);
    assert!(error.starts_with("Error: --secret: `-` is no JSON: "), "{error}");
}

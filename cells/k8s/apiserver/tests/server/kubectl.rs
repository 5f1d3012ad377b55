// SPDX-License-Identifier: Apache-2.0

//! The embedded server as kubectl sees it. Skipped only if there is no kubectl.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![expect(
    clippy::disallowed_methods,
    reason = "what runs beside the test is no job of a hive"
)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};

use skep_k8s_apiserver::{HttpOptions, HttpServer, OpenApiSchemas};
use skep_k8s_memory::Settings;
use skep_k8s_memory::testing::api_server_with;
use skep_listen::tls::Tls;
use tokio_util::sync::CancellationToken;

/// Static token of a server.
const SECRET: &str = "secret";

/// A kubectl that prints lines.
struct Running {
    child: Child,
    lines: tokio::sync::mpsc::UnboundedReceiver<String>,
}

impl Running {
    async fn line(&mut self) -> String {
        tokio::time::timeout(std::time::Duration::from_secs(60), self.lines.recv())
            .await
            .expect("kubectl prints a line")
            .expect("kubectl runs on")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Kubectl {
    url: String,
    home: tempfile::TempDir,
    stop: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
}

impl Kubectl {
    /// A server of its own, and kubectl for it; nothing if kubectl is not installed.
    async fn start() -> Option<Self> {
        Self::start_with(HttpOptions::default()).await
    }

    /// As [`Kubectl::start`], over HTTPS: kubectl sends tokens over HTTPS only.
    async fn start_secure() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (certificate, key) = (folder.path().join("server.crt"), folder.path().join("server.key"));
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let options = HttpOptions {
            token: SECRET.to_owned(),
            tls: Some(Tls::from_files(&certificate, &key).unwrap()),
            ..HttpOptions::default()
        };
        Self::start_with(options).await
    }

    async fn start_with(options: HttpOptions) -> Option<Self> {
        if Command::new("kubectl").arg("--help").output().is_err() {
            eprintln!("skipped: kubectl is not installed");
            return None;
        }
        let api = api_server_with(Settings {
            schemas: Some(std::sync::Arc::new(OpenApiSchemas)),
            ..Settings::default()
        });
        let scheme = if options.tls.is_some() { "https" } else { "http" };
        let server = HttpServer::bind("127.0.0.1:0".parse().unwrap(), api, options).unwrap();
        let url = format!("{scheme}://{}", server.address());
        let stop = CancellationToken::new();
        let serving = tokio::spawn(server.serve(stop.clone()));
        Some(Kubectl {
            url,
            home: tempfile::tempdir().unwrap(),
            stop,
            serving,
        })
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new("kubectl");
        command
            .args(["--server", &self.url, "--insecure-skip-tls-verify"])
            .args(arguments.split_whitespace())
            .args(self.credentials(arguments))
            .env("HOME", self.home.path())
            .env_remove("KUBECONFIG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// The token of the server, unless another one is shown. Without one kubectl asks for a password over HTTPS.
    fn credentials(&self, arguments: &str) -> Vec<&str> {
        if self.url.starts_with("https:") && !arguments.contains("--token") {
            vec!["--token", SECRET]
        } else {
            Vec::new()
        }
    }

    /// Starts it and goes on; it ends with what is returned.
    fn spawn(&self, arguments: &str) -> Running {
        let mut child = self.command(arguments).spawn().unwrap();
        let (sender, lines) = tokio::sync::mpsc::unbounded_channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            out.lines()
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        Running { child, lines }
    }

    async fn run(&self, arguments: &str, input: &str) -> Output {
        let mut command = self.command(arguments);
        // Older kubectls take what starts with a brace for JSON.
        let input = format!("---\n{input}");
        tokio::task::spawn_blocking(move || {
            let mut child = command.spawn().unwrap();
            child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
            child.wait_with_output().unwrap()
        })
        .await
        .unwrap()
    }

    #[track_caller]
    fn check(arguments: &str, output: &Output) -> String {
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(output.status.success(), "kubectl {arguments}: {out}{err}");
        out.into_owned()
    }

    async fn ok(&self, arguments: &str) -> String {
        Self::check(arguments, &self.run(arguments, "").await)
    }

    async fn apply(&self, arguments: &str, yaml: &str) -> String {
        Self::check(arguments, &self.run(arguments, yaml).await)
    }

    async fn shows(&self, arguments: &str, input: &str, text: &str) {
        let output = self.apply(arguments, input).await;
        assert!(output.contains(text), "{output}");
    }

    async fn refuses(&self, arguments: &str, input: &str, text: &str) {
        let output = self.fails(arguments, input).await;
        assert!(output.contains(text), "{output}");
    }

    async fn fails(&self, arguments: &str, yaml: &str) -> String {
        let output = self.run(arguments, yaml).await;
        assert!(
            !output.status.success(),
            "kubectl {arguments}: {}",
            String::from_utf8_lossy(&output.stdout)
        );
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    async fn end(self) {
        self.stop.cancel();
        self.serving.await.unwrap();
    }
}

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, labels: {app: web}}
spec:
  selector: {app: web}
  ports:
  - {name: http, port: 80, targetPort: 8080}
  - {name: dns, port: 53, protocol: UDP}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applies_shows_and_deletes_services() {
    let Some(kubectl) = Kubectl::start().await else {
        return;
    };

    kubectl.shows("apply -f -", SERVICE, "service/web created").await;
    kubectl
        .shows("apply -f -", SERVICE, "service/web unchanged")
        .await;
    let changed = SERVICE.replace("8080", "8081");
    kubectl
        .shows("apply -f -", &changed, "service/web configured")
        .await;
    let table = kubectl.ok("get service web -o wide").await;
    assert!(
        table.contains("80/TCP,53/UDP") && table.contains("app=web"),
        "{table}"
    );
    kubectl.shows("describe service web", "", "8081/TCP").await;
    assert_eq!(kubectl.ok("get svc -l app=web -o name").await, "service/web\n");
    assert_eq!(
        kubectl
            .ok("get svc --field-selector metadata.name=x -o name")
            .await,
        ""
    );
    kubectl.ok("label service web tier=front").await;
    kubectl
        .ok(r#"patch service web -p {"spec":{"ports":[{"port":80,"targetPort":9090}]}}"#)
        .await;
    assert_eq!(
        kubectl
            .ok("get svc web -o jsonpath={.spec.ports[*].targetPort}")
            .await,
        "9090 53"
    );
    kubectl
        .refuses("create -f -", SERVICE, "services \"web\" already exists")
        .await;
    kubectl.shows("delete service web", "", "deleted").await;
    kubectl
        .refuses("get service web", "", "services \"web\" not found")
        .await;
    kubectl.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applies_on_the_server_side() {
    let Some(kubectl) = Kubectl::start().await else {
        return;
    };

    let applied = kubectl.apply("apply --server-side -f -", SERVICE).await;
    assert!(applied.contains("serverside-applied"), "{applied}");
    kubectl
        .ok(r#"patch service web -p {"spec":{"sessionAffinity":"ClientIP"}}"#)
        .await;
    let other = "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {sessionAffinity: None}}";
    let conflict = kubectl
        .fails("apply --server-side --field-manager other -f -", other)
        .await;
    assert!(
        conflict.contains("conflict with \"kubectl-patch\" using v1: .spec.sessionAffinity"),
        "{conflict}"
    );
    kubectl
        .apply(
            "apply --server-side --field-manager other --force-conflicts -f -",
            other,
        )
        .await;
    assert_eq!(
        kubectl
            .ok("get svc web -o jsonpath={.spec.sessionAffinity}")
            .await,
        "None"
    );
    kubectl.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moves_from_client_side_to_server_side_apply() {
    let Some(kubectl) = Kubectl::start().await else {
        return;
    };
    let manifest = "
apiVersion: v1
kind: ConfigMap
metadata: {name: c, labels: {app: web}}
data:
  a: '1'
  b: '2'
";

    kubectl.apply("apply -f -", manifest).await;
    kubectl
        .ok(r#"patch configmap c --type merge -p {"data":{"z":"9"}}"#)
        .await;
    kubectl.apply("apply --server-side -f -", manifest).await;
    let kept = kubectl
        .ok("get configmap c -o jsonpath={.data}{.metadata.labels}")
        .await;
    assert_eq!(kept, r#"{"a":"1","b":"2","z":"9"}{"app":"web"}"#);

    let less = manifest.replace("  b: '2'\n", "");
    kubectl.apply("apply --server-side -f -", &less).await;
    let left = kubectl.ok("get configmap c -o jsonpath={.data}").await;
    assert_eq!(left, r#"{"a":"1","z":"9"}"#);

    // And back: client-side apply removes what was applied on the server side.
    kubectl.apply("apply --server-side -f -", manifest).await;
    kubectl.apply("apply -f -", &less).await;
    let left = kubectl.ok("get configmap c -o jsonpath={.data}").await;
    assert_eq!(left, r#"{"a":"1","z":"9"}"#);
    kubectl.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creates_built_in_kinds() {
    let Some(kubectl) = Kubectl::start().await else {
        return;
    };

    // kubectl sends these in protobuf.
    kubectl.ok("create namespace shop").await;
    kubectl
        .ok("create deployment d --image=x:1 --replicas=2 --port=80")
        .await;
    kubectl.ok("create configmap c --from-literal=a=b").await;
    kubectl.ok("create secret generic s --from-literal=a=b").await;
    kubectl.ok("expose deployment d --port=80").await;
    kubectl.ok("scale deployment d --replicas=5").await;

    assert_eq!(
        kubectl.ok("get deployment d -o jsonpath={.spec.replicas}").await,
        "5"
    );
    assert_eq!(kubectl.ok("get secret s -o jsonpath={.data.a}").await, "Yg==");
    assert_eq!(kubectl.ok("get configmap c -o jsonpath={.data.a}").await, "b");
    let all = kubectl.ok("get all").await;
    assert!(
        all.contains("deployment.apps/d") && all.contains("service/d"),
        "{all}"
    );
    kubectl.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serves_definitions() {
    let Some(kubectl) = Kubectl::start().await else {
        return;
    };
    let definition = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: colors.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: colors, kind: Color, shortNames: [co]}
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns: [{name: RGB, type: string, jsonPath: .spec.rgb}]
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {rgb: {type: string, description: red green blue}}}
";
    let color = "{apiVersion: example.com/v1, kind: Color, metadata: {name: red}, spec: {rgb: ff0000}}";

    kubectl.apply("apply -f -", definition).await;
    kubectl
        .ok("wait --for=condition=established crd/colors.example.com --timeout=10s")
        .await;
    kubectl.apply("apply -f -", color).await;
    kubectl.apply("apply -f -", &color.replace("ff", "fe")).await;
    let table = kubectl.ok("get co").await;
    assert!(table.contains("RGB") && table.contains("fe0000"), "{table}");
    kubectl
        .shows("explain color.spec.rgb", "", "red green blue")
        .await;
    let strict = kubectl.fails("apply -f -", &color.replace("rgb", "bgr")).await;
    assert!(strict.contains("unknown field \"spec.bgr\""), "{strict}");
    kubectl.ok("delete crd colors.example.com").await;
    kubectl.fails("get colors", "").await;
    kubectl.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_and_waits() {
    let Some(kubectl) = Kubectl::start().await else {
        return;
    };
    kubectl.apply("apply -f -", SERVICE).await;

    let mut watching = kubectl.spawn("get services -w --no-headers");
    let row = watching.line().await;
    kubectl.ok("annotate service web seen=yes").await;
    let changed = watching.line().await;
    kubectl.ok("delete service web --wait=true").await;
    let deleted = watching.line().await;

    for line in [row, changed, deleted] {
        assert!(line.starts_with("web "), "{line}");
    }
    drop(watching);
    kubectl
        .shows("explain service.spec.ports.nodePort", "", "FIELD: nodePort")
        .await;
    kubectl.shows("api-resources", "", "endpointslices").await;
    kubectl.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creates_tokens_and_says_whom_they_stand_for() {
    let Some(kubectl) = Kubectl::start_secure().await else {
        return;
    };

    kubectl.ok("create serviceaccount robot").await;
    let accounts = kubectl.ok("get serviceaccounts -o name").await;
    assert_eq!(accounts, "serviceaccount/default\nserviceaccount/robot\n");
    let token = kubectl.ok("create token robot --duration=10m").await;
    let user = kubectl.ok(&format!("auth whoami --token {}", token.trim())).await;
    assert!(user.contains("system:serviceaccount:default:robot"), "{user}");
    assert!(user.contains("system:serviceaccounts:default"), "{user}");
    let short = kubectl.fails("create token robot --duration=5m", "").await;
    assert!(
        short.contains("may not specify a duration less than 10 minutes"),
        "{short}"
    );
    kubectl.ok("delete serviceaccount robot").await;
    let gone = kubectl
        .fails(&format!("auth whoami --token {}", token.trim()), "")
        .await;
    assert!(
        gone.contains("Unauthorized") || gone.contains("logged in"),
        "{gone}"
    );
    kubectl.end().await;
}

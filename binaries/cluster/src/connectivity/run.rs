// SPDX-License-Identifier: Apache-2.0

//! `connectivity test`.

use std::{
    collections::BTreeMap,
    error::Error,
    io::Write as _,
    time::{Duration, Instant},
};

use regex::Regex;
use serde_json::{Value, json};

use super::{
    Filter, TestOptions,
    environment::{self, Environment},
    policies::{Kind, Policy},
    report::{self, Failed, TestResult},
    scenario::{self, Action},
    tests::{DROPS, EXPECTED_DROPS, Expect, HEALTH, LOGS, TESTS, Test},
};
use crate::{
    access::{Access, Pod, text},
    chain, failure, sysdump,
};

/// How long agents may take to have a policy.
const REALIZED: Duration = Duration::from_secs(30);
/// Time for a round of probes between nodes.
const PROBED: Duration = Duration::from_secs(150);

pub(super) async fn run(access: &Access, options: &TestOptions) -> Result<(), Box<dyn Error>> {
    if options.list {
        for test in TESTS {
            let scenarios: Vec<&str> = test.scenarios.iter().map(|one| one.name()).collect();
            println!("{:50} {}", test.name, scenarios.join(", "));
        }
        [HEALTH, DROPS, LOGS]
            .iter()
            .for_each(|name| println!("{name:50} agents"));
        return Ok(());
    }
    if options.cleanup {
        return environment::remove(access, &options.environment).await;
    }
    let filter = Filter::new(&options.test)?;
    let external = [options.external_ip.as_str(), &options.external_other_ip];
    let environment = Environment::deploy(access, &options.environment, &external).await?;
    let namespace = environment.namespace.clone();
    let wanted: Vec<&Test> = TESTS
        .iter()
        .filter(|test| test.scenarios.iter().any(|one| filter.has(test.name, one.name())))
        .collect();
    let checks: Vec<&str> = [HEALTH, DROPS, LOGS]
        .into_iter()
        .filter(|name| filter.has(name, name))
        .collect();
    let all = wanted.len() + checks.len();
    println!("🏃[{namespace}] Running {all} tests ...");
    let drops = match checks.contains(&DROPS) {
        true => drops(&environment).await,
        false => BTreeMap::new(),
    };
    let mut results = Vec::new();
    for (index, test) in wanted.iter().enumerate() {
        let result = one(&environment, options, &filter, test, index + 1, all).await;
        let is_failed = !result.failed.is_empty();
        results.push(result);
        if is_failed && options.pause_on_fail {
            println!("⏸  Pods and policies of the test are left as they are");
            break;
        }
    }
    for (index, name) in checks.iter().enumerate() {
        let begun = Instant::now();
        println!(
            "[=] [{namespace}] Test [{name}] [{}/{all}]",
            wanted.len() + index + 1
        );
        let found = match *name {
            HEALTH => health(&environment).await,
            DROPS => new_drops(&environment, options, &drops).await,
            _ => logs(&environment, options).await,
        };
        let actions = environment.agents.len();
        print_dots(actions, &found, options.verbose);
        results.push(TestResult {
            name: (*name).to_owned(),
            actions,
            failed: found,
            took: begun.elapsed(),
            ..TestResult::default()
        });
    }
    println!("\n{}", report::matrix(&results));
    print!("{}", report::report(&namespace, &results));
    if let Some(path) = &options.junit_file {
        std::fs::write(path, report::junit(&results))
            .map_err(|error| failure(format!("{}: {error}", path.display())))?;
    }
    let failed = results.iter().filter(|result| !result.failed.is_empty()).count();
    if failed == 0 {
        return Ok(());
    }
    if options.collect_sysdump_on_failure {
        sysdump::run(access, &sysdump::SysdumpOptions::default()).await?;
    }
    if options.exit_zero_on_failure {
        return Ok(());
    }
    Err(failure(format!("[{namespace}] {failed} tests failed")))
}

fn print_dots(actions: usize, failed: &[Failed], verbose: bool) {
    if !verbose {
        println!("{}", ".".repeat(actions));
    }
    for one in failed {
        println!("  ❌ {}: {}", one.action, one.message);
    }
}

async fn one(
    environment: &Environment,
    options: &TestOptions,
    filter: &Filter,
    test: &Test,
    number: usize,
    all: usize,
) -> TestResult {
    let begun = Instant::now();
    let namespace = &environment.namespace;
    let mut result = TestResult {
        name: test.name.to_owned(),
        ..TestResult::default()
    };
    let lacks = test
        .needs
        .iter()
        .find_map(|need| need.missing(&environment.settings, options));
    let is_external = options.no_external && test.scenarios.iter().all(|one| one.is_external());
    let lacks = lacks.or(is_external.then_some("--no-external is given"));
    if let Some(reason) = lacks {
        println!(
            "[=] [{namespace}] Skipping test [{}] [{number}/{all}] ({reason})",
            test.name
        );
        result.skipped = Some(reason.to_owned());
        return result;
    }
    println!("[=] [{namespace}] Test [{}] [{number}/{all}]", test.name);
    let mut applied = apply(environment, options, test.policies).await;
    if test.is_audited && applied.is_ok() {
        applied = audit(environment, true).await;
    }
    if let Err(error) = applied {
        result.failed.push(Failed {
            action: format!("{}/policies", test.name),
            message: error,
        });
    }
    if result.failed.is_empty() {
        for wanted in test.scenarios {
            if !filter.has(test.name, wanted.name()) || (options.no_external && wanted.is_external()) {
                result.scenarios_skipped += 1;
                continue;
            }
            if options.verbose {
                println!("[-] Scenario [{}/{}]", test.name, wanted.name());
            }
            let actions = scenario::actions(environment, options, *wanted);
            if actions.is_empty() {
                result.scenarios_skipped += 1;
            }
            for mut action in actions {
                if action.target == options.external_other_ip {
                    action.name.push_str(" (other)");
                }
                let failed = act(environment, options, test, &action).await;
                let (passed, count) = result.scenarios.entry(*wanted).or_default();
                *count += 1;
                *passed += usize::from(failed.is_none());
                result.actions += 1;
                result.failed.extend(failed);
            }
        }
        if !options.verbose {
            println!();
        }
    }
    if test.is_audited
        && let Err(error) = audit(environment, false).await
    {
        println!("⚠️  {error}");
    }
    let is_left = options.pause_on_fail && !result.failed.is_empty();
    if !is_left && let Err(error) = remove(environment, test.policies).await {
        println!("⚠️  {error}");
    }
    result.took = begun.elapsed();
    result
}

async fn act(
    environment: &Environment,
    options: &TestOptions,
    test: &Test,
    action: &Action,
) -> Option<Failed> {
    let expect = (test.expect)(action);
    let title = format!("{}/{}/{}", test.name, action.scenario.name(), action.name);
    if options.verbose {
        println!("[.] Action [{title}]");
    } else {
        print!(".");
        let _ = std::io::stdout().flush();
    }
    let command: Vec<&str> = action.command.iter().map(String::as_str).collect();
    let limit = options.connect_timeout + Duration::from_secs(15);
    let container = action
        .from
        .containers()
        .first()
        .copied()
        .unwrap_or_default()
        .to_owned();
    let access = environment.access_of(&action.from);
    let attempts = if expect == Expect::Ok {
        options.retry.max(1)
    } else {
        1
    };
    let mut message = String::new();
    for attempt in 0..attempts {
        if attempt > 0 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        match access.exec(&action.from, &container, &command, limit).await {
            Ok(output) if expect.fits(output.code) => return None,
            Ok(output) => {
                let wanted = match expect {
                    Expect::Ok => "success",
                    Expect::Drop => "a drop",
                    Expect::HttpError => "an error of HTTP",
                };
                message = format!(
                    "exit code {}, {wanted} is expected: {}",
                    output.code,
                    output.reason()
                );
            }
            Err(error) => message = chain(&error),
        }
    }
    println!("\n  ❌ {title}: {message}");
    let place = if action.is_same_node {
        "on the same node"
    } else {
        "on another node or outside"
    };
    Some(Failed {
        action: title,
        message: format!("{message} (port {}, {place})", action.port),
    })
}

fn path_of(kind: Kind, namespace: &str) -> String {
    match kind {
        Kind::Cilium => format!("/apis/cilium.io/v2/namespaces/{namespace}/ciliumnetworkpolicies"),
        Kind::Clusterwide => "/apis/cilium.io/v2/ciliumclusterwidenetworkpolicies".to_owned(),
        Kind::CidrGroup => "/apis/cilium.io/v2/ciliumcidrgroups".to_owned(),
        Kind::Redirect => format!("/apis/cilium.io/v2/namespaces/{namespace}/ciliumlocalredirectpolicies"),
        Kind::Kubernetes => format!("/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"),
    }
}

/// The object of a policy.
fn object(
    (kind, name, spec): &Policy,
    options: &TestOptions,
    environment: &Environment,
) -> Result<Value, String> {
    let namespace = environment.namespace.as_str();
    let addresses = environment.nodes.iter().flat_map(|node| &node.addresses);
    let nodes: Vec<Value> = addresses
        .map(|address| {
            let length = if address.contains(':') { 128 } else { 32 };
            json!({ "ipBlock": { "cidr": format!("{address}/{length}") } })
        })
        .collect();
    let spec = spec
        .replace("{nodes}", &Value::Array(nodes).to_string())
        .replace("{cidr}", &options.external_cidr)
        .replace("{other}", &options.external_other_ip)
        .replace("{port}", &options.external_port.to_string())
        .replace("{ns}", namespace);
    let spec: Value = serde_norway::from_str(&spec).map_err(|error| error.to_string())?;
    let (version, word) = match kind {
        Kind::Cilium => ("cilium.io/v2", "CiliumNetworkPolicy"),
        Kind::Clusterwide => ("cilium.io/v2", "CiliumClusterwideNetworkPolicy"),
        Kind::CidrGroup => ("cilium.io/v2", "CiliumCIDRGroup"),
        Kind::Redirect => ("cilium.io/v2", "CiliumLocalRedirectPolicy"),
        Kind::Kubernetes => ("networking.k8s.io/v1", "NetworkPolicy"),
    };
    let mut object = json!({
        "apiVersion": version,
        "kind": word,
        "metadata": { "name": name, "labels": { "cilium-test": "external" } },
        "spec": spec,
    });
    if matches!(kind, Kind::Cilium | Kind::Kubernetes | Kind::Redirect) {
        object["metadata"]["namespace"] = namespace.into();
    }
    Ok(object)
}

/// Both clusters of a test.
fn clusters(environment: &Environment) -> impl Iterator<Item = &Access> {
    std::iter::once(&environment.access).chain(&environment.remote)
}

/// Revisions of the policy, by agent.
async fn revisions(environment: &Environment) -> BTreeMap<String, i64> {
    let mut all = BTreeMap::new();
    for agent in &environment.agents {
        if let Ok(found) = environment.access.agent_json(agent, &["policy", "get"]).await {
            all.insert(agent.name.clone(), found["revision"].as_i64().unwrap_or_default());
        }
    }
    all
}

async fn apply(environment: &Environment, options: &TestOptions, policies: &[Policy]) -> Result<(), String> {
    if policies.is_empty() {
        return Ok(());
    }
    let before = revisions(environment).await;
    for policy in policies {
        let object = object(policy, options, environment)?;
        for access in clusters(environment) {
            let done = access
                .apply(&path_of(policy.0, &environment.namespace), &object)
                .await;
            done.map_err(|error| chain(&error))?;
        }
    }
    wait(environment, policies, &before).await
}

async fn remove(environment: &Environment, policies: &[Policy]) -> Result<(), String> {
    if policies.is_empty() {
        return Ok(());
    }
    let before = revisions(environment).await;
    for (kind, name, _) in policies {
        for access in clusters(environment) {
            let path = format!("{}/{name}", path_of(*kind, &environment.namespace));
            access.delete(&path).await.map_err(|error| chain(&error))?;
        }
    }
    wait(environment, policies, &before).await
}

/// Switches the audit mode of the test's pods.
async fn audit(environment: &Environment, is_on: bool) -> Result<(), String> {
    let change = if is_on {
        "PolicyAuditMode=Enabled"
    } else {
        "PolicyAuditMode=Disabled"
    };
    for agent in &environment.agents {
        let endpoints = environment
            .access
            .agent_json(agent, &["endpoint", "list"])
            .await?;
        for endpoint in endpoints.as_array().into_iter().flatten() {
            if text(endpoint, "/status/external-identifiers/k8s-namespace") == environment.namespace {
                let id = endpoint["id"].to_string();
                environment
                    .access
                    .agent(agent, &["endpoint", "config", &id, change])
                    .await?;
            }
        }
    }
    Ok(())
}

/// Waits until all agents have a newer policy, and their endpoints have it.
async fn wait(
    environment: &Environment,
    policies: &[Policy],
    before: &BTreeMap<String, i64>,
) -> Result<(), String> {
    // Redirects are no part of the policy; connections are retried.
    if policies.iter().all(|(kind, ..)| *kind == Kind::Redirect) {
        return Ok(());
    }
    let deadline = tokio::time::Instant::now() + REALIZED;
    for agent in &environment.agents {
        let Some(old) = before.get(&agent.name) else {
            continue;
        };
        loop {
            let found = environment.access.agent_json(agent, &["policy", "get"]).await?;
            let revision = found["revision"].as_i64().unwrap_or_default();
            let late = match revision > *old {
                true => late(environment, agent, revision).await?,
                false => vec![format!("the policy repository is at revision {revision}")],
            };
            if late.is_empty() {
                break;
            }
            if tokio::time::Instant::now() > deadline {
                return Err(format!(
                    "agent {} after {}s: {}",
                    agent.name,
                    REALIZED.as_secs(),
                    late.join(", ")
                ));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    Ok(())
}

/// Endpoints of pods that have not realized a revision.
async fn late(environment: &Environment, agent: &Pod, revision: i64) -> Result<Vec<String>, String> {
    let endpoints = environment
        .access
        .agent_json(agent, &["endpoint", "list"])
        .await?;
    let endpoints = endpoints.as_array().into_iter().flatten();
    let late = endpoints.filter_map(|endpoint| {
        let status = &endpoint["status"];
        let labels = status["identity"]["labels"].as_array();
        let is_host =
            |label: &str| label == "reserved:host" && environment.settings.is_true("enable-host-firewall");
        let is_reserved = labels.into_iter().flatten().any(|label| {
            label
                .as_str()
                .is_some_and(|label| label.starts_with("reserved:") && !is_host(label))
        });
        let realized = status["policy"]["realized"]["policy-revision"]
            .as_i64()
            .unwrap_or_default();
        (!is_reserved && realized < revision).then(|| {
            format!(
                "endpoint {} is at revision {realized} of {revision}",
                endpoint["id"]
            )
        })
    });
    Ok(late.collect())
}

fn failed(name: &str, pod: &Pod, message: impl Into<String>) -> Failed {
    Failed {
        action: format!("{name}/{} (node {})", pod.name, pod.node),
        message: message.into(),
    }
}

/// Each agent reaches all nodes: it probes them in rounds, the first of which may be too early.
async fn health(environment: &Environment) -> Vec<Failed> {
    let deadline = tokio::time::Instant::now() + PROBED;
    loop {
        let failed = unreachable(environment).await;
        if failed.is_empty() || tokio::time::Instant::now() > deadline {
            return failed;
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}

async fn unreachable(environment: &Environment) -> Vec<Failed> {
    let mut all = Vec::new();
    for agent in &environment.agents {
        let words = ["health", "status", "--probe"];
        match environment.access.agent_json(agent, &words).await {
            Ok(found) => {
                let nodes = found["nodes"].as_array().cloned().unwrap_or_default();
                if nodes.len() < environment.agents.len() {
                    let text = format!("{} of {} nodes are known", nodes.len(), environment.agents.len());
                    all.push(failed(HEALTH, agent, text));
                }
                for node in &nodes {
                    for (part, path) in [
                        ("host", "/host/primary-address"),
                        ("endpoint", "/health-endpoint/primary-address"),
                    ] {
                        for probe in ["icmp", "http"] {
                            let status = text(node, &format!("{path}/{probe}/status"));
                            if !status.is_empty() {
                                let name = text(node, "/name");
                                all.push(failed(
                                    HEALTH,
                                    agent,
                                    format!("{probe} to {part} of node {name}: {status}"),
                                ));
                            }
                        }
                    }
                }
            }
            Err(error) => all.push(failed(HEALTH, agent, error)),
        }
    }
    all
}

/// Dropped packets of an agent, by reason.
async fn drops(environment: &Environment) -> BTreeMap<String, BTreeMap<String, u64>> {
    let mut all = BTreeMap::new();
    for agent in &environment.agents {
        let Ok(found) = environment.access.agent_json(agent, &["metrics", "list"]).await else {
            continue;
        };
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for metric in found.as_array().into_iter().flatten() {
            if text(metric, "/name") == "cilium_drop_count_total" {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a counter"
                )]
                let value = metric["value"].as_f64().unwrap_or_default() as u64;
                *counts
                    .entry(text(metric, "/labels/reason").to_owned())
                    .or_default() += value;
            }
        }
        all.insert(agent.name.clone(), counts);
    }
    all
}

async fn new_drops(
    environment: &Environment,
    options: &TestOptions,
    before: &BTreeMap<String, BTreeMap<String, u64>>,
) -> Vec<Failed> {
    let mut expected: Vec<String> = EXPECTED_DROPS.iter().map(|reason| (*reason).to_owned()).collect();
    for change in &options.expected_drop_reasons {
        match change.split_at_checked(1) {
            Some(("+", reason)) => expected.push(reason.to_owned()),
            Some(("-", reason)) => expected.retain(|one| one != reason),
            _ => expected = vec![change.clone()],
        }
    }
    let after = drops(environment).await;
    let mut all = Vec::new();
    for agent in &environment.agents {
        let Some(counts) = after.get(&agent.name) else {
            all.push(failed(DROPS, agent, "the agent has no metrics"));
            continue;
        };
        for (reason, count) in counts {
            let old = before
                .get(&agent.name)
                .and_then(|counts| counts.get(reason))
                .copied();
            let more = count.saturating_sub(old.unwrap_or_default());
            let is_expected = expected.iter().any(|one| one.eq_ignore_ascii_case(reason));
            if more > 0 && !is_expected {
                all.push(failed(DROPS, agent, format!("{more} packets dropped: {reason}")));
            }
        }
    }
    all
}

/// No panics and errors in the logs of our pods, and no restarts.
async fn logs(environment: &Environment, options: &TestOptions) -> Vec<Failed> {
    let access = &environment.access;
    let wrong = Regex::new(r#"panic|level=error|"level":"ERROR"|\bERROR\b"#);
    let expected: Vec<Regex> = options
        .expected_logs
        .iter()
        .filter_map(|text| Regex::new(text).ok())
        .collect();
    let pods = match access
        .pods(access.namespace(), "app.kubernetes.io/part-of=cilium")
        .await
    {
        Ok(pods) => pods,
        Err(error) => {
            let agent = environment.agents.first();
            return agent
                .map(|agent| failed(LOGS, agent, chain(&error)))
                .into_iter()
                .collect();
        }
    };
    let mut all = Vec::new();
    for pod in &pods {
        let states = pod.object["status"]["containerStatuses"].as_array();
        for state in states.into_iter().flatten() {
            let restarts = state["restartCount"].as_u64().unwrap_or_default();
            if restarts > 0 && !pod.name.contains("operator") {
                let name = text(state, "/name");
                all.push(failed(
                    LOGS,
                    pod,
                    format!("container {name} was restarted {restarts} times"),
                ));
            }
        }
        for container in pod.containers() {
            let log = match access.log(pod, container, "").await {
                Ok(log) => log,
                Err(error) => {
                    all.push(failed(LOGS, pod, chain(&error)));
                    continue;
                }
            };
            let lines = log.lines().filter(|line| {
                let is_wrong = wrong.as_ref().is_ok_and(|wrong| wrong.is_match(line));
                is_wrong && !expected.iter().any(|expected| expected.is_match(line))
            });
            let lines: Vec<&str> = lines.collect();
            if let Some(first) = lines.first() {
                all.push(failed(
                    LOGS,
                    pod,
                    format!("{} lines of container {container}: {first}", lines.len()),
                ));
            }
        }
    }
    all
}

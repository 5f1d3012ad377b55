// SPDX-License-Identifier: Apache-2.0

//! Measures the model: 1,000 policies, 5,000 identities, 200 endpoints.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use skep_identity::{Label, Labels, NumericIdentity, Reserved};
use skep_policy_model::{
    Content, Context, EndpointFacts, IdentityLabels, Policies, PolicyObject, PolicySettings,
};

const POLICIES: u32 = 1_000;
const IDENTITIES: u32 = 5_000;
const ENDPOINTS: u16 = 200;
const NAMESPACES: u32 = 50;
const APPS: u32 = 100;

fn labels(number: u32) -> Arc<IdentityLabels> {
    let (namespace, app) = (number % NAMESPACES, number / NAMESPACES % APPS);
    let text = format!(
        "k8s:app=a{app};k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=n{namespace};\
         k8s:io.cilium.k8s.policy.cluster=default;k8s:io.kubernetes.pod.namespace=n{namespace};k8s:number={number};"
    );
    let labels = text.parse::<Labels>().unwrap_or_default();
    Arc::new(IdentityLabels::from(&labels))
}

fn policy(number: u32) -> Value {
    let app = |app: u32| json!({ "matchLabels": { "app": format!("a{}", app % APPS) } });
    let other = format!("n{}", (number + 1) % NAMESPACES);
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": format!("p{number}"), "namespace": format!("n{}", number % NAMESPACES) },
        "spec": {
            "podSelector": app(number / NAMESPACES),
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                { "from": [{ "podSelector": app(number + 1) }, { "podSelector": app(number + 2) }], "ports": [{ "port": 8080 }] },
                { "from": [{ "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": other } } }],
                  "ports": [{ "port": 9090, "endPort": 9099 }] },
            ],
            "egress": [{ "to": [{ "podSelector": app(number + 3) }] }, { "ports": [{ "port": 53, "protocol": "UDP" }] }],
        },
    })
}

fn main() {
    let proxies = BTreeMap::new();
    let mut policies = Policies::new(PolicySettings::default());
    let identity = |number: u32| (NumericIdentity::new(1000 + number), labels(number));
    let objects: Vec<Value> = (0..POLICIES).map(policy).collect();

    let start = Instant::now();
    policies.update_identities((0..IDENTITIES).map(identity), [], &proxies);
    for endpoint in 0..ENDPOINTS {
        let (id, labels) = identity(u32::from(endpoint) * 25);
        policies.set_endpoint(endpoint, id, labels, EndpointFacts::default());
    }
    let settings = policies.settings().clone();
    let context = Context {
        settings: &settings,
        services: &[],
    };
    let import = |policies: &mut Policies, object: &Value| {
        if let Ok(object) = PolicyObject::parse(object, &context)
            && let Content::Rules(rules) = &object.content
        {
            policies.replace(&object.resource, Some(rules));
        }
    };
    objects.iter().for_each(|object| import(&mut policies, object));
    policies.refresh(&proxies);
    let all = start.elapsed();
    let rows: usize = (0..ENDPOINTS)
        .filter_map(|endpoint| policies.map_of(endpoint))
        .map(|map| map.len())
        .sum();
    println!("objects to maps: {all:?}, {rows} rows");

    let mut times: Vec<Duration> = (0..1_000)
        .map(|number| {
            let (id, labels) = (NumericIdentity::new(10_000 + number), labels(IDENTITIES + number));
            let start = Instant::now();
            policies.update_identities([(id, labels)], [], &proxies);
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    println!("one identity more: p50 {:?}, p99 {:?}", times[500], times[990]);

    let mut times: Vec<Duration> = (0..100)
        .map(|number| {
            let object = policy(POLICIES + number);
            let start = Instant::now();
            import(&mut policies, &object);
            policies.refresh(&proxies);
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    println!("one policy more: p50 {:?}, p99 {:?}", times[50], times[98]);
    let nets: Vec<String> = (0..10_000)
        .map(|number| format!("10.{}.{}.0/24", number / 250, number % 250))
        .collect();
    let object = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": { "name": "nets", "namespace": "n0" },
        "spec": { "endpointSelector": {}, "egress": [{ "toCIDR": nets }] },
    });
    let start = Instant::now();
    let identities = nets.iter().zip(0x0100_0001..).filter_map(|(net, number)| {
        let label = Label::cidr(net.parse().ok()?)?;
        let labels = [label, Label::from(Reserved::World)].into_iter().collect();
        Some((NumericIdentity::new(number), Arc::new(labels)))
    });
    policies.update_identities(identities, [], &proxies);
    import(&mut policies, &object);
    policies.refresh(&proxies);
    println!("10,000 networks in one rule: {:?}", start.elapsed());
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let memory = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap_or_default();
    println!("memory: {memory}");
}

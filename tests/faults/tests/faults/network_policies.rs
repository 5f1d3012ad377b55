// SPDX-License-Identifier: Apache-2.0

//! Policies of a pod, while the agent is killed and the API server is away.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::collections::BTreeMap;

use serde_json::{Value, json};
use skep_bpf_maps::policy::{POLICY_STATIC_BITS, PolicyEntry, PolicyKey, policy_pin};
use skep_bpf_sys::{
    MapStore,
    testing::{Calls, Watched},
};
use skep_faults::{Agent, Outcome, Pod, Pods, World, on_node};

use crate::pods_killed::{answering, watched_agent};

type Entries = BTreeMap<PolicyKey, PolicyEntry>;

/// Deny rules, ranges and peers that the other state has not.
fn policy(is_first: bool) -> Value {
    let tcp = |port: &str| json!([{"ports": [{"port": port, "protocol": "TCP"}]}]);
    let spec = match is_first {
        true => json!({
            "endpointSelector": {},
            "ingress": [
                {"fromEntities": ["remote-node"]},
                {"fromEntities": ["world"], "toPorts": tcp("80")},
                {"toPorts": tcp("8081")},
            ],
            "ingressDeny": [{"fromEntities": ["health"], "toPorts": tcp("443")}],
            "egress": [{"toEntities": ["all"]}],
            "egressDeny": [{"toEntities": ["world"], "toPorts": tcp("25")}],
        }),
        false => json!({
            "endpointSelector": {},
            "ingress": [
                {"fromEntities": ["world"]},
                {"fromEntities": ["health"], "toPorts": [{"ports": [{"port": "80", "endPort": 90, "protocol": "TCP"}]}]},
                {"toPorts": tcp("8082")},
            ],
            "ingressDeny": [
                {"fromEntities": ["remote-node"], "toPorts": tcp("22")},
                {"fromEntities": ["world"], "toPorts": tcp("80")},
            ],
            "egress": [{"toEntities": ["world"], "toPorts": tcp("443")}, {"toEntities": ["cluster"]}],
            "egressDeny": [{"toEntities": ["world"], "toPorts": [{"ports": [{"port": "53", "protocol": "UDP"}]}]}],
        }),
    };
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
        "metadata": {"namespace": "shop", "name": "p"}, "spec": spec,
    })
}

/// A pod with a policy that is the first or the second one.
struct Policed {
    pods: Pods,
    pod: Pod,
    endpoint: u16,
}

impl Policed {
    async fn new(world: World) -> Outcome<(Self, Agent)> {
        let pods = Pods::new(world, &[]).await?;
        let agent = pods.agent().await?;
        let pod = pods.pod("web")?;
        pods.add(&pod)?;
        let endpoint = pods.endpoint(&pod)?["id"].as_u64().unwrap() as u16;
        Ok((Self { pods, pod, endpoint }, agent))
    }

    fn put(&self, is_first: bool) -> Outcome {
        self.pods.api.put(&policy(is_first))
    }

    fn entries(&self) -> Outcome<Entries> {
        let store = MapStore::new(&self.pods.world.bpf_root);
        let map = store.open::<PolicyKey, PolicyEntry>(&policy_pin(self.endpoint))?;
        Ok(map.entries()?.into_iter().collect())
    }

    /// The entries of the policy that was put, once they are realized.
    async fn realized(&self, is_first: bool) -> Outcome<Entries> {
        // The port of one rule.
        let port = if is_first { "8081" } else { "8082" };
        let look = || {
            if self.pods.client().get::<Value>("policy", &[]).is_err() {
                return Ok("no answer".to_owned());
            }
            let policy = &self.pods.endpoint(&self.pod)?["status"]["policy"];
            let revision = |part: &str| policy[part]["policy-revision"].as_u64();
            let is_known = policy["spec"]["l4"].to_string().contains(port);
            let is_realized = revision("realized") >= revision("spec");
            Ok(format!("{is_known} {is_realized}"))
        };
        self.pods
            .world
            .wait("the policy", look, |found| found == "true true")
            .await?;
        self.entries()
    }
}

/// What the program does: the longest prefix of the peer, and of any peer; of both the higher precedence.
fn is_allowed(entries: &Entries, direction: u8, identity: u32, proto: u8, port: u16) -> bool {
    let longest = |identity: u32| {
        let value = |proto: u8, port: u16| u32::from(proto) << 16 | u32::from(port);
        let covering = entries.iter().filter(|(key, _)| {
            let other = value(key.proto, key.port.get()) ^ value(proto, port);
            let shift = 24 + POLICY_STATIC_BITS - key.prefix_len;
            (key.direction, key.identity) == (direction, identity) && other >> shift == 0
        });
        covering.max_by_key(|(key, _)| key.prefix_len)
    };
    let found = [longest(identity), longest(0)].into_iter().flatten();
    let decisive = found.max_by_key(|(key, entry)| (entry.precedence, key.prefix_len));
    decisive.is_some_and(|(_, entry)| !entry.is_deny())
}

#[track_caller]
fn assert_nothing_more(first: &Entries, now: &Entries, second: &Entries, when: &str) {
    for direction in [0, 1] {
        // Host, worlds, health, remote node, ingress, a pod.
        for identity in [1, 2, 4, 6, 8, 9, 10, 4711] {
            for (proto, port) in [22, 25, 53, 80, 81, 443, 8081, 8082]
                .map(|port| (6, port))
                .into_iter()
                .chain([(17, 53), (1, 8)])
            {
                let [before, now, after] =
                    [first, now, second].map(|all| is_allowed(all, direction, identity, proto, port));
                assert!(
                    !now || before || after,
                    "{when}: {direction} {identity} {proto}/{port} is allowed"
                );
            }
        }
    }
}

#[test]
fn no_moment_of_a_killed_update_allows_more_than_before_or_after() {
    on_node("update-killed", async |world: World| {
        let (node, agent) = Policed::new(world).await?;
        node.put(false)?;
        let second = node.realized(false).await?;
        node.put(true)?;
        let first = node.realized(true).await?;
        assert_ne!(first, second);
        agent.kill()?;
        let (mut agent, mut watch) = watched_agent(&node.pods, Calls::Writes).await?;
        let mut steps = 0;
        loop {
            (_, watch) = answering(watch, node.realized(true)).await?;
            assert_eq!(node.entries()?, first, "after step {steps}");
            node.put(false)?;
            let is_done = || node.entries().is_ok_and(|now| now == second);
            let watched = watch.stop_before(steps, is_done)?;
            assert_ne!(watched, Watched::Ended, "{}", agent.log());
            agent.kill()?;
            drop(watch);

            assert_nothing_more(
                &first,
                &node.entries()?,
                &second,
                &format!("killed before write {steps}"),
            );
            node.put(true)?;
            (agent, watch) = watched_agent(&node.pods, Calls::Writes).await?;
            if watched == Watched::Done {
                break;
            }
            steps += 1;
        }
        println!("killed before each of {steps} writes");
        // Denies, allows, deletions.
        assert!(steps >= 3, "only {steps} writes");
        agent.kill()?;
        drop(watch);
        Ok(())
    });
}

#[test]
fn policies_stay_enforced_without_the_api_server_and_without_an_agent() {
    on_node("policies-alone", async |world: World| {
        let (mut node, agent) = Policed::new(world).await?;
        node.put(true)?;
        let first = node.realized(true).await?;

        node.pods.api.go_away().await?;
        node.pods
            .world
            .health_until(|health| health.contains("Kubernetes API server does not respond"))
            .await?;
        assert_eq!(node.entries()?, first);
        agent.kill()?;
        assert_eq!(node.entries()?, first, "without an agent");
        let mut agent = Agent::following(&node.pods.world, &node.pods.api, &node.pods.flags())?;
        let log = || Ok(agent.log());
        let is_missed = |log: &str| log.contains("API server does not respond");
        node.pods
            .world
            .wait("the API server is missed", log, is_missed)
            .await?;
        assert_eq!(node.entries()?, first, "with an agent that knows no policies");

        // What changed meanwhile applies when it is back.
        node.put(false)?;
        node.pods.api.listen().await?;
        agent.wait_well(&node.pods.world).await?;
        let second = node.realized(false).await?;
        assert_ne!(second, first);
        agent.kill()
    });
}

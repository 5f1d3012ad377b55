// SPDX-License-Identifier: Apache-2.0

//! Pods on a node where something is wrong: namespaces, interfaces, disks, networks, the API server. Each time the error
//! says what, the next attempt works once it is right again, and nothing is left.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::{
    cell::RefCell,
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_remount, unmount};
use serde_json::{Value, json};
use skep_base_net::{LinkSpec, Netlink, netns::Namespace};
use skep_bpf_sys::testing::{CallWatch, Calls};
use skep_faults::{Agent, Gate, LeakCount, Outcome, Pod, Pods, World, on_node};

const STATE: &str = "/run/cilium/state";

/// A node with an agent, whose identity of the pods of the tests is known, and what is there without pods.
async fn node(world: World, flags: &[&str]) -> Outcome<(Pods, Agent, LeakCount)> {
    let pods = Pods::new(world, flags).await?;
    let agent = pods.agent().await?;
    let before = first_count(&pods).await?;
    Ok((pods, agent, before))
}

/// What is there without pods, once there was one.
async fn first_count(pods: &Pods) -> Outcome<LeakCount> {
    let pod = pods.pod("first")?;
    pods.add(&pod)?;
    published(pods, &pod, true).await?;
    pods.delete(&pod)?;
    pods.remove(&pod)?;
    published(pods, &pod, false).await?;
    LeakCount::settled(pods).await
}

/// Waits until the CiliumEndpoint of a pod is there, or gone.
async fn published(pods: &Pods, pod: &Pod, is_there: bool) -> Outcome {
    let look = || Ok(pods.objects("ciliumendpoints")?.contains(&pod.name).to_string());
    let wanted = is_there.to_string();
    pods.world
        .wait("CiliumEndpoint", look, |found| found == wanted)
        .await?;
    Ok(())
}

#[track_caller]
fn assert_fails(result: Outcome<Value>, cause: &str) {
    let error = result.unwrap_err().to_string();
    assert!(error.contains(cause), "{error}");
}

/// Deletes pods, and checks that nothing of them is left.
async fn end(pods: &Pods, all: &[&Pod], before: &LeakCount) -> Outcome {
    for pod in all {
        pods.delete(pod)?;
        pods.remove(pod)?;
    }
    pods.nothing_leaks(before).await?;
    Ok(())
}

#[test]
fn namespaces_may_vanish_at_any_time() {
    on_node("vanish", async |world: World| {
        let (pods, agent, before) = node(world, &[]).await?;

        // Before ADD, and before DEL.
        let pod = pods.pod("early")?;
        Namespace::unpin(&pod.netns)?;
        assert_fails(pods.add(&pod), "opening netns pinned at");
        end(&pods, &[&pod], &before).await?;
        let pod = pods.pod("late")?;
        pods.add(&pod)?;
        Namespace::unpin(&pod.netns)?;
        end(&pods, &[&pod], &before).await?;

        // During ADD: what was allocated for it expires.
        let before = before.without("allocated IPs");
        for step in (4..80).step_by(12) {
            let pod = pods.pod(&format!("during-{step}"))?;
            let (plugin, watch) = CallWatch::start(Calls::EffectsAndFiles, || pods.plugin("ADD", &pod))?;
            let plugin = RefCell::new(plugin?);
            let is_ended = || matches!(plugin.borrow_mut().try_wait(), Ok(Some(_)));
            watch.stop_before(step, is_ended)?;
            Namespace::unpin(&pod.netns)?;
            watch.stop_before(u64::MAX, is_ended)?;
            let ended = end(&pods, &[&pod], &before).await;
            ended.map_err(|error| format!("before step {step}: {error}"))?;
        }
        agent.kill()
    });
}

#[test]
fn a_container_id_is_one_pods() {
    on_node("duplicate", async |world: World| {
        let (pods, agent, before) = node(world, &[]).await?;
        let first = pods.pod("one")?;
        pods.add(&first)?;
        let mut second = pods.pod("two")?;
        let container = std::mem::replace(&mut second.container, first.container.clone());

        assert_fails(pods.add(&second), "exists");
        assert_eq!(pods.endpoint(&first)?["status"]["state"], "ready");
        second.container = container;
        pods.add(&second)?;

        end(&pods, &[&first, &second], &before).await?;
        agent.kill()
    });
}

#[test]
fn interfaces_of_the_same_name_are_named_and_left_alone() {
    on_node("clash", async |world: World| {
        let (pods, agent, before) = node(world, &[]).await?;
        let pod = pods.pod("clash")?;
        let name = pods.add(&pod)?["interfaces"][0]["name"]
            .as_str()
            .unwrap()
            .to_owned();
        pods.delete(&pod)?;
        let net = Netlink::open()?;
        net.add_link(LinkSpec::veth(&name, LinkSpec::new().name("peer")))?;

        assert_fails(pods.add(&pod), "file exists");
        assert!(net.delete_link(&name)?);

        // One in the sandbox is of an ADD that was given up.
        Namespace::open(&pod.netns)?
            .inside(|| Netlink::open()?.add_link(LinkSpec::veth("eth0", LinkSpec::new().name("peer"))))??;
        pods.add(&pod)?;
        end(&pods, &[&pod], &before).await?;
        agent.kill()
    });
}

/// Mounts something over the state directory.
struct Mounted;

impl Mounted {
    fn full() -> Outcome<Self> {
        mount("tmpfs", STATE, "tmpfs", MountFlags::empty(), Some(c"size=8k"))?;
        // Until nothing fits any more.
        let _ = fs::write(Path::new(STATE).join("filler"), [0; 16 << 10]);
        Ok(Self)
    }

    fn read_only() -> Outcome<Self> {
        mount_bind(STATE, STATE)?;
        mount_remount(STATE, MountFlags::BIND | MountFlags::RDONLY, "")?;
        Ok(Self)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = unmount(STATE, UnmountFlags::DETACH);
    }
}

#[test]
fn a_state_directory_that_cannot_be_written_is_named() {
    on_node("full", async |world: World| {
        let (pods, agent, before) = node(world, &[]).await?;
        let old = pods.pod("old")?;
        pods.add(&old)?;
        for (disk, cause) in [
            (Mounted::full as fn() -> Outcome<Mounted>, "No space left"),
            (Mounted::read_only, "Read-only file system"),
        ] {
            let disk = disk()?;
            let pod = pods.pod("new")?;
            assert_fails(pods.add(&pod), cause);
            assert_eq!(pods.endpoint(&old)?["status"]["state"], "ready");
            drop(disk);
            // What the attempt before has left is removed soon.
            let add = || {
                Ok(pods
                    .add(&pod)
                    .map_or_else(|error| error.to_string(), |_| String::new()))
            };
            pods.world.wait("ADD", add, str::is_empty).await?;
            pods.delete(&pod)?;
            pods.remove(&pod)?;
        }

        // What cannot be removed is as soon as it can.
        let disk = Mounted::read_only()?;
        pods.delete(&old)?;
        drop(disk);
        end(&pods, &[&old], &before).await?;
        agent.kill()
    });
}

/// The directory of the endpoint of a pod.
fn directory(pods: &Pods, pod: &Pod) -> Outcome<PathBuf> {
    Ok(Path::new(STATE).join(pods.endpoint(pod)?["id"].to_string()))
}

#[test]
fn corrupt_state_is_moved_aside_and_reported() {
    on_node("corrupt", async |world: World| {
        let (pods, agent, before) = node(world, &[]).await?;
        let (good, bad) = (pods.pod("good")?, pods.pod("bad")?);
        pods.add(&good)?;
        pods.add(&bad)?;
        let folder = directory(&pods, &bad)?;
        agent.kill()?;
        fs::write(folder.join("ep_config.json"), b"{\"ID\": \xff")?;

        let agent = Agent::following(&pods.world, &pods.api, &pods.flags())?;
        pods.world
            .health_until(|health| health.contains("restored, not all"))
            .await?;
        let look = || Ok(pods.endpoint(&good)?["status"]["state"].to_string());
        pods.world
            .wait("restored endpoint", look, |state| state == "\"ready\"")
            .await?;
        let aside = folder.with_file_name(format!(
            "{}_corrupt",
            folder.file_name().unwrap().to_str().unwrap()
        ));
        assert!(aside.is_dir() && !folder.exists());

        fs::remove_dir_all(aside)?;
        end(&pods, &[&good, &bad], &before).await?;
        agent.kill()
    });
}

#[test]
fn addresses_may_be_exhausted() {
    on_node("exhausted", async |world: World| {
        let pods = Pods::new(world, &["--enable-ipv6=false"]).await?;
        pods.set_networks(&["10.200.0.0/29"])?;
        let agent = pods.agent().await?;
        let mut all = Vec::new();
        let (error, refused) = loop {
            let pod = pods.pod(&format!("pod-{}", all.len()))?;
            match pods.add(&pod) {
                Ok(_) => {
                    published(&pods, &pod, true).await?;
                    all.push(pod);
                }
                Err(error) => break (error.to_string(), pod),
            }
            assert!(all.len() <= 6, "{} pods", all.len());
        };

        assert!(error.contains("range is full"), "{error}");
        // Links are pinned, and link-local addresses usable, a moment after an endpoint is ready.
        let full = LeakCount::take(&pods)?.without("pins").without("routes");
        assert_fails(pods.add(&refused), "range is full");
        pods.nothing_leaks(&full).await?;
        let gone = all.pop().unwrap();
        pods.delete(&gone)?;
        pods.add(&refused)?;
        agent.kill()
    });
}

#[test]
fn pods_whose_labels_change_all_the_time_end_with_the_last_ones() {
    on_node("storm", async |world: World| {
        let (pods, agent, before) = node(world, &["--identity-change-grace-period=10ms"]).await?;
        let pod = pods.pod("storm")?;
        pods.add(&pod)?;
        let labels = || {
            let row = pods.endpoint(&pod)?;
            Ok(format!(
                "{} {}",
                row["status"]["identity"]["labels"], row["status"]["state"]
            ))
        };
        for change in 0..400 {
            match change % 4 {
                3 => pods.label_namespace(&format!("team-{}", change % 7))?,
                _ => pods.put(&pod.name, &json!({"app": format!("app-{}", change % 11)}))?,
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        pods.put(&pod.name, &json!({"app": "last"}))?;
        pods.label_namespace("last")?;

        let is_last = |found: &str| {
            ["k8s:app=last", "namespace.labels.team=last", "\"ready\""]
                .iter()
                .all(|part| found.contains(part))
        };
        pods.world.wait("labels", labels, is_last).await?;
        let identities = pods.objects("ciliumidentities")?;
        assert!(identities.len() <= 12 * 9, "{} identities", identities.len());
        let identity = pods.endpoint(&pod)?["status"]["identity"]["id"].to_string();
        let look = || Ok(pods.object("ciliumendpoints", &pod.name)?["status"]["identity"]["id"].to_string());
        pods.world
            .wait("identity of the CiliumEndpoint", look, |id| id == identity)
            .await?;

        end(&pods, &[&pod], &before.without("CiliumIdentities")).await?;
        agent.kill()
    });
}

#[test]
fn objects_that_others_write_too_converge() {
    on_node("conflicts", async |world: World| {
        let (pods, agent, before) = node(world, &["--identity-change-grace-period=10ms"]).await?;
        let all: Vec<Pod> = (0..8)
            .map(|number| pods.pod(&format!("pod-{number}")))
            .collect::<Outcome<_>>()?;
        for pod in &all {
            pods.add(pod)?;
            published(&pods, pod, true).await?;
        }
        // Every version that the agent has read is stale when it writes.
        for round in 0..40 {
            for pod in &all {
                pods.put(&pod.name, &json!({"app": format!("app-{}", round % 3)}))?;
                pods.touch("ciliumendpoints", &pod.name)?;
            }
            pods.touch("ciliumnodes", "here")?;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let identities: BTreeSet<String> = pods.objects("ciliumidentities")?;
        for pod in &all {
            pods.delete_object("ciliumendpoints", &pod.name)?;
        }
        for pod in &all {
            let look = || {
                let own = pods.endpoint(pod)?["status"]["identity"].clone();
                let object = pods.object("ciliumendpoints", &pod.name).unwrap_or_default();
                let is_same = object["status"]["identity"]["id"] == own["id"] && !own["id"].is_null();
                Ok(format!("{is_same} {}", own["labels"]))
            };
            let is_last = |found: &str| found.starts_with("true") && found.contains("app=app-0");
            pods.world.wait(&pod.name, look, is_last).await?;
        }
        assert!(identities.len() <= 4, "{identities:?}");

        let all: Vec<&Pod> = all.iter().collect();
        end(&pods, &all, &before.without("CiliumIdentities")).await?;
        agent.kill()
    });
}

#[test]
fn an_api_server_that_does_not_answer_keeps_known_pods_from_nothing() {
    on_node("silent", async |world: World| {
        let pods = Pods::new(world, &[]).await?;
        let gate = Gate::start(pods.api.address()).await?;
        let url = format!("--k8s-api-server-urls=http://{}", gate.address());
        let mut flags = pods.flags();
        flags.push(&url);
        let mut agent = Agent::start(&pods.world, &flags)?;
        agent.wait_well(&pods.world).await?;
        let before = first_count(&pods).await?;
        let (kept, gone, new) = (pods.pod("kept")?, pods.pod("gone")?, pods.pod("new")?);
        for pod in [&kept, &gone] {
            pods.add(pod)?;
            published(&pods, pod, true).await?;
        }

        // Requests hang.
        gate.close();
        pods.add(&new)?;
        pods.delete(&gone)?;
        assert_eq!(pods.endpoint(&gone)?, Value::Null);
        assert_eq!(pods.endpoint(&new)?["status"]["state"], "ready");
        gate.open();
        published(&pods, &new, true).await?;
        published(&pods, &gone, false).await?;

        // Connections are refused, and the agent restarts; a pod is deleted meanwhile.
        gate.go_away();
        agent.kill()?;
        pods.delete(&new)?;
        let mut agent = Agent::start(&pods.world, &flags)?;
        let look = || Ok(agent.log());
        let is_missed = |log: &str| log.contains("API server does not respond");
        pods.world
            .wait("the API server is missed", look, is_missed)
            .await?;
        gate.open();
        agent.wait_well(&pods.world).await?;
        assert_eq!(pods.endpoint(&kept)?["status"]["state"], "ready");
        assert_eq!(pods.endpoint(&new)?, Value::Null);
        published(&pods, &new, false).await?;
        pods.add(&gone)?;
        published(&pods, &gone, true).await?;

        let before = before.without("CiliumIdentities");
        end(&pods, &[&kept, &gone, &new], &before).await?;
        agent.kill()
    });
}

#[test]
fn the_ingress_endpoint_outlives_the_agent() {
    on_node("ingress", async |world: World| {
        let pods = Pods::new(world, &["--enable-envoy-config"]).await?;
        let ingress = || -> Outcome<Value> {
            let all: Vec<Value> = pods.client().get("endpoint", &[])?;
            let mut own = all.into_iter();
            let found = own.find(|endpoint| endpoint["status"]["identity"]["id"] == 8);
            Ok(found.unwrap_or_default())
        };
        let settled = async || -> Outcome<Value> {
            let look = || Ok(ingress()?["status"]["state"].to_string());
            pods.world
                .wait("the ingress endpoint", look, |state| state == "\"ready\"")
                .await?;
            ingress()
        };
        let agent = pods.agent().await?;
        let before = settled().await?;
        let addresses = &before["status"]["networking"]["addressing"][0];
        let look = || Ok(pods.object("ciliumnodes", "here")?["spec"]["ingress"].to_string());
        let wanted = json!({"ipv4": addresses["ipv4"], "ipv6": addresses["ipv6"]}).to_string();
        pods.world
            .wait("its addresses in the CiliumNode", look, |found| found == wanted)
            .await?;
        let entries = pods.world.skep(&["bpf", "endpoint", "list"])?;
        assert!(entries.contains("flags=0x0002"), "{entries}");
        agent.kill()?;

        let agent = pods.agent().await?;
        let after = settled().await?;

        assert_eq!(after["id"], before["id"]);
        assert_eq!(after["status"]["networking"], before["status"]["networking"]);
        agent.kill()
    });
}

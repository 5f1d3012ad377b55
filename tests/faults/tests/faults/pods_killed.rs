// SPDX-License-Identifier: Apache-2.0

//! The agent and the CNI plugin, killed before each of the calls by which they add and delete a pod. Whatever was left
//! behind, the runtime's next ADD or DEL finds nothing in its way, and after it nothing is left.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::{
    process::Child,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use skep_bpf_sys::testing::{CallWatch, Calls, Watched};
use skep_faults::{Agent, LeakCount, Outcome, Pod, Pods, World, on_node, printed};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Add,
    Del,
}

impl Verb {
    fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
        }
    }
}

/// Answers the questions of a watch while `work` goes on.
pub(crate) async fn answering<T>(
    watch: CallWatch,
    work: impl Future<Output = Outcome<T>>,
) -> Outcome<(T, CallWatch)> {
    let is_done = Arc::new(AtomicBool::new(false));
    let asked = is_done.clone();
    let answers = tokio::task::spawn_blocking(move || {
        let watched = watch.stop_before(u64::MAX, || asked.load(Ordering::Relaxed));
        watched.map(|watched| (watched, watch))
    });
    let result = work.await;
    is_done.store(true, Ordering::Relaxed);
    let (watched, watch) = answers.await??;
    if watched == Watched::Ended {
        return Err("the agent ended".into());
    }
    Ok((result?, watch))
}

/// Runs the plugin without keeping the runtime from its work.
async fn plugin(pods: &Pods, verb: Verb, pod: &Pod) -> Outcome<String> {
    let plugin = pods.plugin(verb.as_str(), pod)?;
    let output = tokio::task::spawn_blocking(move || plugin.wait_with_output()).await??;
    printed(&output)
}

/// Starts an agent whose calls are held back on demand, and waits until it is well.
pub(crate) async fn watched_agent(pods: &Pods, calls: Calls) -> Outcome<(Agent, CallWatch)> {
    let (mut agent, watch) = Agent::watched_at(calls, &pods.world, &pods.api, &pods.flags())?;
    let ((), watch) = answering(watch, agent.wait_well(&pods.world)).await?;
    Ok((agent, watch))
}

fn is_ended(plugin: &mut Child) -> bool {
    matches!(plugin.try_wait(), Ok(Some(_)))
}

/// Whether the plugin has ended, and all that follows from what it did was done.
fn is_settled(pods: &Pods, verb: Verb, name: &str, plugin: &mut Child) -> bool {
    let published = pods
        .objects("ciliumendpoints")
        .is_ok_and(|all| all.contains(name));
    is_ended(plugin) && published == (verb == Verb::Add)
}

/// After the runtime has seen a failure: every second time it repeats an ADD; it always deletes.
async fn clean_up(pods: &Pods, verb: Verb, pod: &Pod, step: u64) -> Outcome {
    if verb == Verb::Add && step.is_multiple_of(2) {
        match plugin(pods, Verb::Add, pod).await {
            Ok(_) => {}
            // What the ADD before made is complete: only its answer was lost.
            Err(error) if error.to_string().contains("already exists") => {}
            Err(error) => return Err(error),
        }
    }
    for _ in 0..2 {
        plugin(pods, Verb::Del, pod).await?;
    }
    pods.remove(pod)
}

/// The state of a node that had a pod before: its identity stays for the next one.
async fn first_count(pods: &Pods) -> Outcome<(LeakCount, LeakCount)> {
    let pod = pods.pod("first")?;
    let before = LeakCount::settled(pods).await?;
    pods.add(&pod)?;
    let look = || Ok(format!("{:?}", pods.objects("ciliumendpoints")?));
    pods.world
        .wait("CiliumEndpoint", look, |all| all.contains("first"))
        .await?;
    let with_pod = LeakCount::take(pods)?;
    pods.delete(&pod)?;
    pods.remove(&pod)?;
    let before = before.without("CiliumIdentities");
    pods.nothing_leaks(&before).await?;
    Ok((LeakCount::take(pods)?, with_pod))
}

async fn agent_is_killed(world: World, verb: Verb) -> Outcome {
    let pods = Pods::new(world, &[]).await?;
    let agent = pods.agent().await?;
    let (before, with_pod) = first_count(&pods).await?;
    agent.kill()?;
    let (mut agent, mut watch) = watched_agent(&pods, Calls::Effects).await?;
    let mut steps = 0;
    loop {
        let pod = pods.pod(&format!("pod-{steps}"))?;
        if verb == Verb::Del {
            let published = |all: &str| all.contains(&pod.name);
            let added = async {
                plugin(&pods, Verb::Add, &pod).await?;
                let look = || Ok(format!("{:?}", pods.objects("ciliumendpoints")?));
                pods.world.wait("CiliumEndpoint", look, published).await
            };
            (_, watch) = answering(watch, added).await?;
        }
        let mut running = pods.plugin(verb.as_str(), &pod)?;
        let ended = std::cell::RefCell::new(&mut running);
        let is_done = || is_settled(&pods, verb, &pod.name, &mut ended.borrow_mut());
        let watched = watch.stop_before(steps, is_done)?;
        assert_ne!(watched, Watched::Ended, "{}", agent.log());
        agent.kill()?;
        drop(watch);

        // The plugin may find the next agent, or none.
        if steps.is_multiple_of(2) {
            running.wait()?;
        }
        (agent, watch) = watched_agent(&pods, Calls::Effects).await?;
        let left = async {
            tokio::task::spawn_blocking(move || running.wait()).await??;
            clean_up(&pods, verb, &pod, steps).await?;
            pods.nothing_leaks(&before).await
        };
        let left = answering(watch, left).await;
        let (_, next) =
            left.map_err(|error| format!("killed before step {steps}: {error}\n{}", agent.log()))?;
        watch = next;
        if watched == Watched::Done {
            break;
        }
        steps += 1;
    }
    let (after, watch) = answering(watch, async { LeakCount::take(&pods) }).await?;
    println!("agent killed before each of {steps} calls of {}", verb.as_str());
    let columns = [("before", &before), ("with a pod", &with_pod), ("after", &after)];
    println!("{}", LeakCount::table(verb.as_str(), &columns));
    assert!(steps >= 10, "only {steps} calls");
    agent.kill()?;
    drop(watch);
    Ok(())
}

#[test]
fn nothing_leaks_of_an_add_whose_agent_is_killed() {
    on_node("add-killed", |world| agent_is_killed(world, Verb::Add));
}

#[test]
fn nothing_leaks_of_a_del_whose_agent_is_killed() {
    on_node("del-killed", |world| agent_is_killed(world, Verb::Del));
}

/// The plugin is killed before each of its calls, reads and writes of files among them.
async fn plugin_is_killed(world: World, verb: Verb) -> Outcome {
    let pods = Pods::new(world, &[]).await?;
    let agent = pods.agent().await?;
    let (before, with_pod) = first_count(&pods).await?;
    // Addresses that no endpoint has are released after ten minutes.
    let of_step = before.clone().without("allocated IPs");
    let mut steps = 0;
    loop {
        let pod = pods.pod(&format!("pod-{steps}"))?;
        if verb == Verb::Del {
            pods.add(&pod)?;
        }
        let (running, watch) = CallWatch::start(Calls::EffectsAndFiles, || pods.plugin(verb.as_str(), &pod))?;
        let mut running = running?;
        let ended = std::cell::RefCell::new(&mut running);
        let watched = watch.stop_before(steps, || is_ended(&mut ended.borrow_mut()))?;
        let _ = running.kill();
        running.wait()?;
        drop(watch);

        let left = async {
            clean_up(&pods, verb, &pod, steps).await?;
            pods.nothing_leaks(&of_step).await
        };
        let left = left.await;
        left.map_err(|error| format!("killed before step {steps}: {error}\n{}", agent.log()))?;
        if watched != Watched::Stopped {
            break;
        }
        steps += 1;
    }
    agent.kill()?;
    let agent = pods.agent().await?;
    let after = pods.nothing_leaks(&before).await?;
    println!("plugin killed before each of {steps} calls of {}", verb.as_str());
    let columns = [("before", &before), ("with a pod", &with_pod), ("after", &after)];
    println!("{}", LeakCount::table(verb.as_str(), &columns));
    assert!(steps >= 10, "only {steps} calls");
    agent.kill()
}

#[test]
fn nothing_leaks_of_an_add_whose_plugin_is_killed() {
    on_node("add-plugin", |world| plugin_is_killed(world, Verb::Add));
}

#[test]
fn nothing_leaks_of_a_del_whose_plugin_is_killed() {
    on_node("del-plugin", |world| plugin_is_killed(world, Verb::Del));
}

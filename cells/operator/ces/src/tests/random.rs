// SPDX-License-Identifier: Apache-2.0

//! Random endpoints, failures, edits and changes of the leader: slices have each endpoint once, as it is.

use std::collections::BTreeMap;

use hive::testing;
use serde_json::json;
use skep_k8s_client::testing::Fault;

use super::world::*;

const LIMIT: usize = 4;

/// Endpoints by namespace and name: identity.
type Model = BTreeMap<(String, String), u32>;

/// What is wrong with the slices.
async fn wrong(world: &World, model: &Model) -> Option<String> {
    let mut found = Model::new();
    for slice in world.list(&SLICES).await {
        let namespace = slice["namespace"].as_str().unwrap();
        let entries = slice["endpoints"].as_array().unwrap();
        if entries.is_empty() || entries.len() > LIMIT {
            return Some(format!("{} entries", entries.len()));
        }
        for entry in entries {
            let key = (namespace.to_owned(), entry["name"].as_str().unwrap().to_owned());
            let identity = u32::try_from(entry["id"].as_u64().unwrap()).unwrap();
            if found.insert(key.clone(), identity).is_some() {
                return Some(format!("{key:?} is twice there"));
            }
        }
    }
    (found != *model).then(|| format!("{found:?}, wanted {model:?}"))
}

#[tokio::test(start_paused = true)]
async fn slices_have_each_endpoint_once() {
    for seed in 0..4 {
        let mut random = fastrand::Rng::with_seed(seed);
        let world = World::new().await;
        let flags = [&*format!("--ces-max-ciliumendpoints-per-ces={LIMIT}")];
        let mut running = world.start(&flags).await;
        let mut model = Model::new();
        for round in 0..25 {
            if random.u8(..4) == 0 {
                testing::stop(running).await;
                running = world.start(&flags).await;
            }
            world.faults.heal();
            for _ in 0..random.usize(..3) {
                // A read without an answer never ends.
                let faults = [Fault::Unreachable, Fault::conflict(), Fault::AnswerLost];
                let verb_writes = random.bool();
                let fault = faults[random.usize(..if verb_writes { 3 } else { 2 })].clone();
                let left = std::sync::atomic::AtomicUsize::new(random.usize(1..5));
                world.faults.inject(move |request| {
                    let is_one =
                        request.plural == "ciliumendpointslices" && request.verb.is_write() == verb_writes;
                    let order = std::sync::atomic::Ordering::SeqCst;
                    let take = || {
                        left.fetch_update(order, order, |left| left.checked_sub(1))
                            .is_ok()
                    };
                    (is_one && take()).then(|| fault.clone())
                });
            }
            for _ in 0..random.usize(1..10) {
                let namespace = ["shop", "bank"][random.usize(..2)].to_owned();
                let name = format!("pod-{}", random.u8(..9));
                let identity = random.u32(300..310);
                let key = (namespace.clone(), name.clone());
                match (model.contains_key(&key), random.bool()) {
                    (false, _) => {
                        world.endpoint(&namespace, &name, identity).await;
                        model.insert(key, identity);
                    }
                    (true, true) => {
                        world.delete(&ENDPOINTS, &namespace, &name).await;
                        model.remove(&key);
                    }
                    (true, false) => {
                        let patch = json!({ "status": { "identity": { "id": identity } } });
                        world.patch(&ENDPOINTS, &namespace, &name, patch).await;
                        model.insert(key, identity);
                    }
                }
            }
            let slices: Vec<String> = world.slices().await.into_keys().collect();
            if !slices.is_empty() && random.u8(..4) == 0 {
                let name = &slices[random.usize(..slices.len())];
                match random.bool() {
                    true => world.patch(&SLICES, "", name, json!({ "endpoints": [] })).await,
                    false => world.delete(&SLICES, "", name).await,
                }
            }
            let began = tokio::time::Instant::now();
            while let Some(wrong) = wrong(&world, &model).await {
                let waited = began.elapsed().as_secs();
                let health = running.health().entries();
                assert!(waited < 600, "seed {seed}, round {round}: {wrong}: {health:?}");
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            }
        }
        testing::stop(running).await;
    }
}

// SPDX-License-Identifier: Apache-2.0

//! Random lives of endpoints that share few addresses, against a plain model.

use std::collections::{BTreeMap, BTreeSet};

use crate::world::{ENDPOINTS, World, endpoint, eventually};

const STATE: &str = "cilium/state/ip/v1/default/";
const STEPS: u32 = 300;

#[derive(Default)]
struct Model(BTreeMap<String, Endpoint>);

#[derive(Default)]
struct Endpoint {
    identity: u32,
    /// Since which step each address is claimed.
    claims: BTreeMap<String, u32>,
    /// Addresses that it has left: whether it claims them without a break is not seen if both changes arrive at once.
    left: BTreeSet<String>,
}

impl Model {
    fn apply(&mut self, step: u32, name: &str, identity: u32, addresses: &[&str]) {
        let endpoint = self.0.entry(name.to_owned()).or_default();
        let before = std::mem::take(&mut endpoint.claims);
        let since = |ip: &str| before.get(ip).copied().unwrap_or(step);
        let claims = addresses.iter().map(|ip| ((*ip).to_owned(), since(ip)));
        endpoint.claims = claims.collect();
        let left = before.into_keys().filter(|ip| !endpoint.claims.contains_key(ip));
        endpoint.left.extend(left);
        endpoint.identity = identity;
    }

    fn has_left(&self, name: &str, ip: &str) -> bool {
        self.0
            .get(name)
            .is_some_and(|endpoint| endpoint.left.contains(ip))
    }

    fn published(&self) -> BTreeMap<String, u64> {
        let mut owners: BTreeMap<String, (u32, u32)> = BTreeMap::new();
        for endpoint in self.0.values() {
            for (ip, since) in &endpoint.claims {
                let claim = (*since, endpoint.identity);
                let owner = owners.entry(ip.clone()).or_insert(claim);
                *owner = (*owner).min(claim);
            }
        }
        owners
            .into_iter()
            .map(|(ip, (_, identity))| (ip, u64::from(identity)))
            .collect()
    }
}

fn published(world: &World) -> BTreeMap<String, u64> {
    let names = world.names(STATE).into_iter();
    names
        .filter_map(|ip| {
            let identity = world.json(&format!("{STATE}{ip}"))?["ID"].as_u64()?;
            Some((ip, identity))
        })
        .collect()
}

/// Whether the addresses are those that are claimed, each with an endpoint that claims it.
fn is_claimed(published: &BTreeMap<String, u64>, model: &Model) -> bool {
    let claims = |ip: &str, identity: u64| {
        let mut endpoints = model.0.values();
        endpoints.any(|endpoint| u64::from(endpoint.identity) == identity && endpoint.claims.contains_key(ip))
    };
    published.keys().eq(model.published().keys())
        && published.iter().all(|(ip, identity)| claims(ip, *identity))
}

async fn step(world: &World, model: &mut Model, random: &mut fastrand::Rng, step: u32) {
    let name = format!("pod-{}", random.u32(0..8));
    if random.u32(0..3) == 0 && model.0.contains_key(&name) {
        world.delete(&ENDPOINTS, "shop", &name).await;
        model.0.remove(&name);
        return;
    }
    let addresses: Vec<&str> = ["10.4.1.1", "10.4.1.2", "10.4.1.3", "fd00::1"]
        .into_iter()
        .filter(|ip| random.bool() && !model.has_left(&name, ip))
        .collect();
    let identity = 458_752 + step;
    world
        .apply(&ENDPOINTS, endpoint(&name, identity, &addresses))
        .await;
    model.apply(step, &name, identity, &addresses);
}

#[tokio::test]
async fn published_addresses_are_those_of_their_first_claimants() {
    for seed in 0..3 {
        let mut random = fastrand::Rng::with_seed(seed);
        let world = World::new().await;
        let mut model = Model::default();
        let program = world.start(&[]).await;
        for at in 0..STEPS {
            step(&world, &mut model, &mut random, at).await;
            // What others than owners become is not seen: this is, after it.
            let (mark, identity) = ("mark", 500_000 + at);
            world
                .apply(&ENDPOINTS, endpoint(mark, identity, &["10.4.1.99"]))
                .await;
            model.apply(at, mark, identity, &["10.4.1.99"]);
            let expected = model.published();
            let is_right = || published(&world) == expected;
            eventually(&format!("seed {seed}, step {at}: {expected:?}"), is_right).await;
        }
        program.stop().await;
    }
}

/// Of changes that arrive at once only the last state of an endpoint is seen, so that it is not known since when it claims
/// an address. But every address that is claimed is published, and no other.
#[tokio::test]
async fn bursts_and_restarts_lose_no_address() {
    for seed in 0..10 {
        let mut random = fastrand::Rng::with_seed(100 + seed);
        let world = World::new().await;
        let mut model = Model::default();
        for turn in 0..3 {
            let program = world.start(&[]).await;
            for at in 0..STEPS {
                step(&world, &mut model, &mut random, turn * STEPS + at).await;
                if random.u32(0..8) == 0 {
                    tokio::task::yield_now().await;
                }
            }
            let is_right = || is_claimed(&published(&world), &model);
            eventually(&format!("seed {seed}, turn {turn}"), is_right).await;
            program.stop().await;
            // Nothing publishes this.
            for at in 0..20 {
                step(&world, &mut model, &mut random, turn * STEPS + at).await;
            }
        }
    }
}

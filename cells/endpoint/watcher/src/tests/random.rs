// SPDX-License-Identifier: Apache-2.0

//! Random changes under random failures: the claims are those of a model.

use skep_k8s_client::testing::Fault;

use super::slices::slice;
use super::*;

const ROUNDS: u64 = 40;

/// Endpoints by name: address and identity.
type Model = BTreeMap<String, (String, u32)>;

fn wanted(model: &Model) -> BTreeSet<(String, String, u32)> {
    let claims = model
        .iter()
        .map(|(name, (address, identity))| (address.clone(), format!("cep/shop/{name}"), *identity));
    claims.collect()
}

async fn settle(bench: &Bench, model: &Model, what: String) {
    let wanted = wanted(model);
    bench
        .wait(
            || bench.claims() == wanted,
            || format!("{what}: {:#?}, wanted {wanted:#?}", bench.claims()),
        )
        .await;
}

fn fail_some(bench: &Bench, random: &mut fastrand::Rng) {
    bench.faults.heal();
    if random.bool() {
        let seed = random.u64(..);
        let failing = sometimes(seed);
        bench
            .faults
            .inject(move |_| failing().then_some(Fault::Unreachable));
    }
}

/// True every third time on average.
fn sometimes(seed: u64) -> impl Fn() -> bool + Send + Sync {
    let random = parking_lot::Mutex::new(fastrand::Rng::with_seed(seed));
    move || random.lock().u8(..3) == 0
}

fn endpoint(name: &str, address: &str, identity: u32) -> String {
    format!(
        "apiVersion: cilium.io/v2\nkind: CiliumEndpoint\nmetadata: {{name: {name}, namespace: shop}}\nstatus:\n  identity: {{id: {identity}}}\n  networking: {{node: 172.30.1.2, addressing: [{{ipv4: {address}}}]}}\n"
    )
}

#[tokio::test(start_paused = true)]
async fn claims_are_those_of_the_endpoints() {
    for seed in 0..8 {
        let mut random = fastrand::Rng::with_seed(seed);
        let bench = Bench::start(&[]).await;
        let mut model = Model::new();
        for round in 0..ROUNDS {
            fail_some(&bench, &mut random);
            for _ in 0..random.usize(1..8) {
                // Few addresses: they are reused all the time.
                let name = format!("pod-{}", random.u8(..6));
                let (address, identity) = (format!("10.0.2.{}", random.u8(1..5)), random.u32(300..310));
                if random.u8(..3) == 0 {
                    if model.remove(&name).is_some() {
                        bench.delete(&endpoint(&name, &address, identity));
                    }
                } else {
                    bench.add(&endpoint(&name, &address, identity));
                    model.insert(name, (address, identity));
                }
            }
            settle(&bench, &model, format!("seed {seed}, round {round}")).await;
        }
        bench.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn claims_are_those_of_the_slices() {
    for seed in 0..8 {
        let mut random = fastrand::Rng::with_seed(seed);
        let bench = Bench::start(&["--enable-cilium-endpoint-slice"]).await;
        // Slice → endpoints.
        let mut slices: [Model; 3] = Default::default();
        for round in 0..ROUNDS {
            fail_some(&bench, &mut random);
            for _ in 0..random.usize(1..8) {
                let name = format!("pod-{}", random.u8(..6));
                let state = (format!("10.0.2.{}", random.u8(1..5)), random.u32(300..310));
                let to = random.usize(..3);
                let from = slices.iter().position(|slice| slice.contains_key(&name));
                let is_first = random.bool();
                if is_first {
                    slices[to].insert(name.clone(), state.clone());
                    write(&bench, to, &slices[to]);
                }
                if let Some(from) = from.filter(|from| *from != to || !is_first) {
                    slices[from].remove(&name);
                    write(&bench, from, &slices[from]);
                }
                if !is_first && random.bool() {
                    slices[to].insert(name, state);
                    write(&bench, to, &slices[to]);
                }
            }
            let model = slices
                .iter()
                .flatten()
                .map(|(name, state)| (name.clone(), state.clone()));
            settle(&bench, &model.collect(), format!("seed {seed}, round {round}")).await;
        }
        bench.end().await;
    }
}

fn write(bench: &Bench, slice_number: usize, model: &Model) {
    let entries: Vec<_> = model
        .iter()
        .map(|(name, (address, identity))| (name.as_str(), address.as_str(), *identity))
        .collect();
    let yaml = slice(&format!("ces-{slice_number}"), &entries);
    match entries.is_empty() {
        true => bench.delete(&yaml),
        false => bench.add(&yaml),
    }
}

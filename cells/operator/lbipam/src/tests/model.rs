// SPDX-License-Identifier: Apache-2.0

//! What holds for every allocation, whatever pools and services there are.

use std::collections::BTreeSet;
use std::net::IpAddr;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};
use skep_k8s_types::slim::Str;

use super::allocation::{claim, pool};
use crate::address::Family;
use crate::allocator::{Allocations, Claim, Reason, allocate};
use crate::pool::{Pool, Pools};
use crate::request::Wanted;

fn a_pool() -> impl Strategy<Value = Value> {
    (
        0..12_u8,
        0..4_u8,
        any::<bool>(),
        any::<bool>(),
        proptest::option::of(0..2_u8),
    )
        .prop_map(|(start, more, is_disabled, is_ipv6, team)| {
            let address = |number: u8| {
                if is_ipv6 {
                    format!("2001:db8::{number:x}")
                } else {
                    format!("192.0.2.{number}")
                }
            };
            let mut spec = json!({
                "blocks": [{ "start": address(start), "stop": address(start + more) }],
                "disabled": is_disabled && start % 3 == 0,
            });
            if let Some(team) = team {
                spec["serviceSelector"] = json!({ "matchLabels": { "team": team.to_string() } });
            }
            spec
        })
}

fn a_service() -> impl Strategy<Value = Value> {
    let address = || (0..16_u8).prop_map(|number| format!("192.0.2.{number}"));
    (
        vec(address(), 0..2),
        vec(address(), 0..3),
        proptest::option::of(0..2_u8),
        (0..3_u16, 0..2_u8, 0..3_u8, any::<bool>()),
    )
        .prop_map(|(wished, held, key, (port, team, families, is_local))| {
            let mut annotations = json!({ "lbipam.cilium.io/ips": wished.join(",") });
            if let Some(key) = key {
                annotations["lbipam.cilium.io/sharing-key"] = key.to_string().into();
            }
            let families =
                [json!(["IPv4"]), json!(["IPv6"]), json!(["IPv4", "IPv6"])][usize::from(families)].clone();
            json!({
                "annotations": annotations,
                "labels": { "team": team.to_string() },
                "held": held,
                "spec": {
                    "ports": [{ "port": 80 + port }],
                    "selector": { "app": "web" },
                    "externalTrafficPolicy": if is_local { "Local" } else { "Cluster" },
                    "ipFamilies": families,
                    "ipFamilyPolicy": "PreferDualStack",
                },
            })
        })
}

fn world(pools: &[Value]) -> Pools {
    let pools = pools
        .iter()
        .enumerate()
        .map(|(index, spec)| (Str::new(format!("p{index}")), pool(spec.clone())));
    Pools::new(pools.collect(), false)
}

/// The claims with what they got.
fn next(claims: &[Claim], got: &Allocations) -> Vec<Claim> {
    let next = claims.iter().map(|claim| Claim {
        held: got.get(&claim.request.service).unwrap().addresses.clone(),
        is_settled: true,
        ..claim.clone()
    });
    next.collect()
}

fn matching<'a>(pools: &'a Pools, claim: &'a Claim) -> impl Iterator<Item = &'a Pool> {
    pools
        .iter()
        .filter(|(name, pool)| pools.is_open(name) && pool.selector.matches(&claim.request.labels))
        .map(|(_, pool)| pool)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn allocations_are_sound_complete_and_stable(
        specs in vec(a_pool(), 0..5),
        services in vec(a_service(), 0..9),
        later in vec(a_service(), 0..4),
        reserved in vec(0..16_u8, 0..3),
    ) {
        let reserved: BTreeSet<IpAddr> = reserved.into_iter().map(|last| [192, 0, 2, last].into()).collect();
        let pools = world(&specs);
        let mut claims: Vec<Claim> = Vec::new();
        for (index, fields) in services.iter().enumerate() {
            claims.push(claim(&format!("s{index}"), fields.clone()));
        }

        let got = allocate(&pools, &claims, &reserved);

        for (index, claim) in claims.iter().enumerate() {
            let own = got.get(&claim.request.service).unwrap();
            for address in &own.addresses {
                // An address of a pool for the service; a new one of an open pool.
                prop_assert!(pools.may_keep(*address, &claim.request.labels));
                prop_assert!(claim.held.contains(address)
                    || matching(&pools, claim).any(|pool| pool.range_of(*address).is_some()));
                // None that is reserved for another; those who share it keep it.
                prop_assert!(claim.held.contains(address) || !reserved.contains(address));
                // No address twice unless it is shared rightly.
                for other in &claims[..index] {
                    let others = got.get(&other.request.service).unwrap();
                    prop_assert!(!others.addresses.contains(address)
                        || claim.request.may_share(&other.request).is_ok());
                }
            }
            // A service is satisfied if it has all that it requests.
            let wanted = match &claim.request.wanted {
                Wanted::Addresses(addresses) => addresses.len(),
                Wanted::Families(families) => families.len(),
            };
            prop_assert_eq!(own.addresses.len() == wanted, own.refusal.is_none());
            // A service lacks an address of a family only if it can get none.
            if let Wanted::Families(families) = &claim.request.wanted {
                for family in families {
                    if own.addresses.iter().any(|address| Family::of(*address) == *family) {
                        continue;
                    }
                    for range in matching(&pools, claim).flat_map(|pool| &pool.ranges) {
                        if range.family() == *family {
                            let used = got.used().filter(|address| range.contains(*address));
                            prop_assert_eq!(used.count() as u128, range.len());
                            prop_assert_ne!(own.refusal.as_ref().map(|refusal| refusal.reason), None::<Reason>);
                        }
                    }
                }
            }
        }

        // The same again, and more services take nothing away.
        let mut claims = next(&claims, &got);
        prop_assert_eq!(&allocate(&pools, &claims, &reserved), &got);
        let known = claims.len();
        for (index, fields) in later.iter().enumerate() {
            claims.push(claim(&format!("l{index}"), fields.clone()));
        }
        let more = allocate(&pools, &claims, &reserved);
        for claim in &claims[..known] {
            let (before, after) = (got.get(&claim.request.service), more.get(&claim.request.service));
            prop_assert_eq!(before.map(|got| &got.addresses), after.map(|got| &got.addresses));
        }
    }
}

// SPDX-License-Identifier: Apache-2.0

use skep_k8s_client::testing::{Fault, Verb};

use super::*;
use crate::world::World;

#[test]
fn reads_several_pools_with_several_networks() {
    let text = "default=ipv4-cidrs:10.10.0.0/16,10.20.0.0/16;ipv4-mask-size:24,\
                blue=ipv6-cidrs:fd00::/64;ipv6-mask-size:120;allow-first-ip:true;allow-last-ip:true";

    let pools: AutoPools = text.parse().unwrap();

    let spec = |name: &str| serde_json::to_value(&pools.0[name].spec).unwrap();
    assert_eq!(
        spec("default"),
        json!({ "ipv4": { "cidrs": ["10.10.0.0/16", "10.20.0.0/16"], "maskSize": 24 } })
    );
    assert_eq!(
        spec("blue"),
        json!({
            "allowFirstIP": true, "allowLastIP": true,
            "ipv6": { "cidrs": ["fd00::/64"], "maskSize": 120 },
        })
    );
    assert_eq!(pools.to_string().parse::<AutoPools>().unwrap(), pools);
    assert!("".parse::<AutoPools>().unwrap().is_empty());
}

#[test]
fn names_what_is_wrong() {
    for (text, expected) in [
        (
            "ipv4-mask-size:24",
            "`ipv4-mask-size:24` is not <pool>=<settings>",
        ),
        ("=ipv4-mask-size:24", "is not <pool>=<settings>"),
        ("p=ipv4-mask:24", "pool `p`: `ipv4-mask:24` is none of"),
        (
            "p=ipv4-mask-size:many",
            "pool `p`: `ipv4-mask-size:many` is none of",
        ),
        (
            "p=ipv4-cidrs:10.0.0.0/8",
            "pool `p`: ipv4-cidrs and ipv4-mask-size require each other",
        ),
        (
            "p=ipv6-mask-size:120",
            "pool `p`: ipv6-cidrs and ipv6-mask-size require each other",
        ),
        ("p=allow-first-ip:true", "pool `p` has no networks"),
        (
            "p=ipv4-cidrs:10.0.0.0/28;ipv4-mask-size:24",
            "pool `p`: mask size 24 does not fit network 10.0.0.0/28",
        ),
        (
            "p=ipv4-cidrs:10.0.0.0/8;ipv4-mask-size:24,p=ipv4-cidrs:10.0.0.0/8;ipv4-mask-size:24",
            "pool `p` is listed twice",
        ),
    ] {
        let error = text.parse::<AutoPools>().unwrap_err().to_string();

        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn creates_what_does_not_exist_and_changes_nothing_else() {
    let world = World::new().await;
    let client: Arc<dyn Client> = world.client.clone();
    let old: AutoPools = "a=ipv4-cidrs:10.0.0.0/16;ipv4-mask-size:24".parse().unwrap();
    create_pools(&client, &old).await.unwrap();

    let new = "a=ipv4-cidrs:10.1.0.0/16;ipv4-mask-size:25,b=ipv4-cidrs:10.2.0.0/16;ipv4-mask-size:24";
    let new: AutoPools = new.parse().unwrap();
    create_pools(&client, &new).await.unwrap();

    let cidrs = async |name: &str| world.pool(name).await["spec"]["ipv4"]["cidrs"][0].clone();
    assert_eq!(cidrs("a").await, "10.0.0.0/16");
    assert_eq!(cidrs("b").await, "10.2.0.0/16");

    world.client.fail_times(1, Verb::Create, Fault::forbidden());
    let error = create_pools(&client, &new).await.unwrap_err();
    assert_eq!(
        hive::error_chain(&error).to_string(),
        "CiliumPodIPPool `a` cannot be created: Forbidden"
    );
}

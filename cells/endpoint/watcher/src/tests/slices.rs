// SPDX-License-Identifier: Apache-2.0

//! CiliumEndpointSlices.

use super::*;

const SLICES: &str = "--enable-cilium-endpoint-slice";

pub(super) fn slice(name: &str, entries: &[(&str, &str, u32)]) -> String {
    let mut yaml = format!(
        "apiVersion: cilium.io/v2alpha1\nkind: CiliumEndpointSlice\nmetadata: {{name: {name}}}\nnamespace: shop\nendpoints:\n"
    );
    for (endpoint, address, identity) in entries {
        yaml.push_str(&format!(
            "- {{name: {endpoint}, id: {identity}, networking: {{node: 172.30.1.2, addressing: [{{ipv4: {address}}}]}}, encryption: {{}}}}\n"
        ));
    }
    if entries.is_empty() {
        yaml = yaml.replace("endpoints:\n", "endpoints: []\n");
    }
    yaml
}

#[tokio::test(start_paused = true)]
async fn entries_of_slices_are_claimed_as_endpoints() {
    let bench = Bench::start(&[SLICES]).await;
    bench.add(&slice(
        "ces-a",
        &[("cart-0", "10.0.2.8", 52_310), ("cart-1", "10.0.2.9", 52_310)],
    ));

    bench
        .expect(&[
            ("10.0.2.8", "52310 shop/cart-0 via 172.30.1.2 key 0"),
            ("10.0.2.9", "52310 shop/cart-1 via 172.30.1.2 key 0"),
        ])
        .await;
    bench.add(&slice("ces-a", &[("cart-1", "10.0.2.9", 52_311)]));
    bench
        .expect(&[("10.0.2.9", "52311 shop/cart-1 via 172.30.1.2 key 0")])
        .await;
    bench.delete(&slice("ces-a", &[]));
    bench.expect(&[]).await;

    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn endpoint_in_two_slices_is_what_the_last_one_says() {
    let bench = Bench::start(&[SLICES]).await;
    bench.add(&slice("ces-a", &[("cart-0", "10.0.2.8", 52_310)]));
    let old = [("10.0.2.8", "52310 shop/cart-0 via 172.30.1.2 key 0")];
    bench.expect(&old).await;

    bench.add(&slice("ces-b", &[("cart-0", "10.0.2.9", 52_311)]));
    let new = [("10.0.2.9", "52311 shop/cart-0 via 172.30.1.2 key 0")];
    bench.expect(&new).await;
    bench.delete(&slice("ces-b", &[]));
    bench.expect(&old).await;
    bench.add(&slice("ces-b", &[("cart-0", "10.0.2.9", 52_311)]));
    bench.expect(&new).await;
    bench.delete(&slice("ces-a", &[]));
    tokio::time::sleep(Duration::from_secs(1)).await;
    bench.expect(&new).await;

    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn invalid_entry_keeps_its_last_state_and_the_others_change() {
    let bench = Bench::start(&[SLICES]).await;
    bench.add(&slice(
        "ces-a",
        &[("cart-0", "10.0.2.8", 52_310), ("cart-1", "10.0.2.9", 52_310)],
    ));
    bench
        .expect(&[
            ("10.0.2.8", "52310 shop/cart-0 via 172.30.1.2 key 0"),
            ("10.0.2.9", "52310 shop/cart-1 via 172.30.1.2 key 0"),
        ])
        .await;

    bench.add(&slice(
        "ces-a",
        &[("cart-0", "10.0.2", 52_311), ("cart-1", "10.0.2.9", 52_311)],
    ));

    bench
        .expect(&[
            ("10.0.2.8", "52310 shop/cart-0 via 172.30.1.2 key 0"),
            ("10.0.2.9", "52311 shop/cart-1 via 172.30.1.2 key 0"),
        ])
        .await;
    bench
        .wait_health("endpoint `shop/cart-0`: address `10.0.2` is invalid")
        .await;
    bench.add(&slice("ces-a", &[("cart-1", "10.0.2.9", 52_311)]));
    bench
        .expect(&[("10.0.2.9", "52311 shop/cart-1 via 172.30.1.2 key 0")])
        .await;
    bench.end().await;
}

// SPDX-License-Identifier: Apache-2.0

async fn twice(built: hive::Built) {
    let _first = built.start().await;
    let _second = built.start().await;
}

fn main() {
    let _ = twice;
}

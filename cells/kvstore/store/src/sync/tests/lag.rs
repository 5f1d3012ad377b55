// SPDX-License-Identifier: Apache-2.0

use std::time::Duration;

use parking_lot::Mutex;

use super::*;
use crate::testing::MOMENT;

#[derive(Debug, Default)]
struct Lags(Mutex<Vec<Duration>>);

impl StoreRecorder for Lags {
    fn written(&self, _: &str, _: &str, lag: Duration) {
        self.0.lock().push(lag);
    }
}

#[tokio::test(start_paused = true)]
async fn the_lag_is_that_of_the_first_change_that_is_not_written() {
    let (_memory, client) = memory();
    let lags = Arc::new(Lags::default());
    let nodes = SyncStore::new(client.clone(), options().recorder(lags.clone()));
    let pause = Duration::from_secs(3);

    nodes.upsert("alder/a", "1");
    tokio::time::sleep(pause).await;
    nodes.upsert("alder/a", "2");
    during(&nodes, async {
        settle().await;
        nodes.delete("alder/a");
        settle().await;
    })
    .await;

    let lags = lags.0.lock().clone();
    assert_eq!(lags.len(), 2, "{lags:?}");
    assert!((pause..pause + MOMENT).contains(&lags[0]), "{lags:?}");
    assert!(lags[1] < MOMENT, "{lags:?}");
}

// SPDX-License-Identifier: Apache-2.0

//! Writes the heartbeat.

use std::time::Duration;

use hive::{JobCtx, Jobs, SpawnError};
use jiff::Timestamp;

use crate::client::Client;
use crate::keys;
use crate::types::Lifetime;

/// Pause after a write that failed.
const RETRY: Duration = Duration::from_secs(2);
/// How long a write may take.
const TIMEOUT: Duration = Duration::from_secs(25);

/// Time as Cilium writes it: RFC 3339, UTC, whole seconds.
pub fn timestamp() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

pub(crate) fn start(client: Client, jobs: Jobs) -> Result<(), SpawnError> {
    if !client.is_enabled() {
        return Ok(());
    }
    jobs.keep("heartbeat", client, beat)
}

/// Writes at once, then at each interval, and again at once when the lease of the key has ended.
async fn beat(client: &Client, _: &JobCtx) {
    let mut lost = client.lost_keys(keys::HEARTBEAT);
    loop {
        let write = client.put(keys::HEARTBEAT, timestamp(), Lifetime::Leased);
        let error = match tokio::time::timeout(TIMEOUT, write).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(hive::error_chain(&error)),
            Err(_) => Some(format!("no answer within {TIMEOUT:?}")),
        };
        let pause = match &error {
            None => client.options().heartbeat_interval,
            Some(error) => {
                tracing::warn!(%error, "Unable to write kvstore heartbeat");
                RETRY
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = lost.next() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_as_cilium_writes_them() {
        let text = timestamp();

        assert_eq!(text.len(), "2026-06-01T10:00:00Z".len(), "{text}");
        text.parse::<Timestamp>().expect("it is a time");
    }
}

// SPDX-License-Identifier: Apache-2.0

//! Follows all objects of a kind: list, watch, list again when the watch is lost.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use serde_json::Value;
use skep_k8s_client::{ApiError, Change, Client, ListOptions, RawEvent, WatchOptions};
use skep_k8s_memory::object;
use skep_k8s_types::Kind;

/// News of a kind.
pub(super) enum News {
    /// These are all objects.
    All(Vec<Arc<Value>>),
    /// The object is there, in this state.
    Is(Arc<Value>),
    /// The object is gone; its last state.
    Gone(Arc<Value>),
}

/// Watches end after this time, so that one which silently died is noticed.
const WATCH: Duration = Duration::from_secs(300);

/// Calls `report` with what happens to the objects of `kind`, until the client fails.
pub(super) async fn follow(
    client: &dyn Client,
    kind: &Kind,
    mut report: impl FnMut(News) + Send,
) -> Result<(), ApiError> {
    'list: loop {
        let page = client.list(kind, "", &ListOptions::default()).await?;
        let mut objects = Vec::with_capacity(page.items.len());
        for item in &page.items {
            objects.push(item.to_value()?);
        }
        report(News::All(objects));
        let mut version = page.resource_version;
        loop {
            let options = WatchOptions {
                resource_version: version.clone(),
                bookmarks: true,
                timeout: Some(WATCH),
                ..WatchOptions::default()
            };
            let mut watch = match client.watch(kind, "", &options).await {
                Err(error) if error.is_expired() => continue 'list,
                other => other?,
            };
            while let Some(event) = watch.next().await {
                match event {
                    Ok(RawEvent::Object(change, raw)) => {
                        let value = raw.to_value()?;
                        version = object::resource_version(&value).into();
                        report(match change {
                            Change::Added | Change::Modified => News::Is(value),
                            Change::Deleted => News::Gone(value),
                        });
                    }
                    Ok(RawEvent::Bookmark { resource_version, .. }) => version = resource_version,
                    Err(error) if error.is_expired() => continue 'list,
                    Err(error) => return Err(error),
                }
            }
        }
    }
}

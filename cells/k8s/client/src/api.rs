// SPDX-License-Identifier: Apache-2.0

//! A typed view of a [`Client`].

use std::marker::PhantomData;
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use serde_json::Value;
use skep_k8s_types::selector::{FieldSelector, Selector};
use skep_k8s_types::slim::Str;
use skep_k8s_types::{DecodeError, Kind, ObjectKey, Resource};

use crate::client::{Client, ListerWatcher, WatchStream};
use crate::error::ApiError;
use crate::event::{Page, WatchEvent};
use crate::options::{DeleteOptions, ListOptions, Patch, Subresource, WatchOptions, WriteOptions};

/// Page size, in objects: about a megabyte at 2 KiB an object.
const PAGE: u32 = 500;

/// Objects of one type: reads, writes, and lists and watches with fixed selectors.
///
/// ```no_run
/// # async fn example(client: std::sync::Arc<dyn skep_k8s_client::Client>) -> Result<(), skep_k8s_client::ApiError> {
/// use skep_k8s_client::Api;
/// use skep_k8s_types::{selector::FieldSelector, slim::Pod};
///
/// let local_pods = Api::<Pod>::all(client).fields(FieldSelector::equal("spec.nodeName", "n1"));
/// for pod in local_pods.list_all().await?.items {
///     println!("{}/{}", pod.metadata.namespace, pod.metadata.name);
/// }
/// # Ok(()) }
/// ```
pub struct Api<T> {
    client: Arc<dyn Client>,
    kind: Kind,
    namespace: Str,
    labels: Selector,
    fields: FieldSelector,
    page: u32,
    marker: PhantomData<fn() -> T>,
}

impl<T> Clone for Api<T> {
    fn clone(&self) -> Self {
        Self {
            client: self.client.clone(),
            kind: self.kind.clone(),
            namespace: self.namespace.clone(),
            labels: self.labels.clone(),
            fields: self.fields.clone(),
            page: self.page,
            marker: PhantomData,
        }
    }
}

impl<T: Resource> Api<T> {
    /// Objects of all namespaces, or cluster-scoped ones.
    pub fn all(client: Arc<dyn Client>) -> Self {
        Self::namespaced(client, "")
    }

    /// Objects of one namespace.
    pub fn namespaced(client: Arc<dyn Client>, namespace: &str) -> Self {
        Self {
            client,
            kind: T::kind(),
            namespace: Str::new(namespace),
            labels: Selector::default(),
            fields: FieldSelector::default(),
            page: PAGE,
            marker: PhantomData,
        }
    }

    /// Lists and watches only objects with these labels.
    pub fn labels(mut self, selector: Selector) -> Self {
        self.labels = selector;
        self
    }

    /// Lists and watches only objects with these fields.
    pub fn fields(mut self, selector: FieldSelector) -> Self {
        self.fields = selector;
        self
    }

    /// Sets the page size of lists, in objects; 0 for one page. The default is 500.
    pub fn page(mut self, objects: u32) -> Self {
        self.page = objects;
        self
    }

    /// Lists all objects, page by page. Starts over, once, if the continue token expires.
    ///
    /// # Errors
    ///
    /// [`ApiError`] of the first page that fails.
    pub async fn list_all(&self) -> Result<Page<T>, ApiError> {
        list_all(self).await
    }

    /// Reads an object.
    ///
    /// # Errors
    ///
    /// [`ApiError`]; see [`is_not_found`](ApiError::is_not_found).
    pub async fn get(&self, name: &str) -> Result<Arc<T>, ApiError> {
        Ok(self
            .client
            .get(&self.kind, &self.namespace, name)
            .await?
            .decode()?)
    }

    /// Creates an object and returns it as stored.
    ///
    /// # Errors
    ///
    /// [`ApiError`]; see [`is_already_exists`](ApiError::is_already_exists).
    pub async fn create(&self, object: &T) -> Result<Arc<T>, ApiError> {
        let namespace = self.namespace_of(object);
        let value = encode(object)?;
        Ok(self
            .client
            .create(&self.kind, &namespace, value, &WriteOptions::default())
            .await?
            .decode()?)
    }

    /// Replaces an object and returns it as stored. Fields that `T` does not model are lost: only for kinds that
    /// this process owns. For others use [`patch`](Self::patch).
    ///
    /// # Errors
    ///
    /// [`ApiError`]; see [`is_conflict`](ApiError::is_conflict).
    pub async fn update(&self, object: &T) -> Result<Arc<T>, ApiError> {
        self.replace(object, Subresource::None).await
    }

    /// Replaces an object's status and returns the object as stored.
    ///
    /// # Errors
    ///
    /// [`ApiError`]; see [`is_conflict`](ApiError::is_conflict).
    pub async fn update_status(&self, object: &T) -> Result<Arc<T>, ApiError> {
        self.replace(object, Subresource::Status).await
    }

    async fn replace(&self, object: &T, part: Subresource) -> Result<Arc<T>, ApiError> {
        let namespace = self.namespace_of(object);
        let value = encode(object)?;
        Ok(self
            .client
            .update(&self.kind, &namespace, part, value, &WriteOptions::default())
            .await?
            .decode()?)
    }

    /// Changes an object, or its status, and returns it as stored.
    ///
    /// # Errors
    ///
    /// [`ApiError`].
    pub async fn patch(&self, name: &str, part: Subresource, patch: &Patch) -> Result<Arc<T>, ApiError> {
        let options = WriteOptions::default();
        Ok(self
            .client
            .patch(&self.kind, &self.namespace, name, part, patch, &options)
            .await?
            .decode()?)
    }

    /// Deletes an object.
    ///
    /// # Errors
    ///
    /// [`ApiError`]; see [`is_not_found`](ApiError::is_not_found).
    pub async fn delete(&self, name: &str, options: &DeleteOptions) -> Result<(), ApiError> {
        self.client
            .delete(&self.kind, &self.namespace, name, options)
            .await
    }

    fn namespace_of(&self, object: &T) -> Str {
        if self.namespace.is_empty() {
            object.metadata().namespace.clone()
        } else {
            self.namespace.clone()
        }
    }
}

fn encode<T: Resource>(object: &T) -> Result<Value, DecodeError> {
    let kind = T::kind();
    let mut value = serde_json::to_value(object).map_err(|error| DecodeError {
        kind: kind.kind.clone(),
        object: Box::new(ObjectKey::of(object)),
        resource_version: object.metadata().resource_version.clone(),
        path: String::new(),
        reason: error.to_string(),
    })?;
    value["apiVersion"] = kind.api_version().into();
    value["kind"] = kind.kind.as_str().into();
    Ok(value)
}

/// Lists all objects of a source. Starts over, once, if the continue token expires.
pub(crate) async fn list_all<T>(source: &(impl ListerWatcher<T> + ?Sized)) -> Result<Page<T>, ApiError> {
    let mut restarted = false;
    let mut whole = source.list("").await?;
    while !whole.continue_token.is_empty() {
        match source.list(&whole.continue_token).await {
            Ok(page) => {
                whole.items.extend(page.items);
                whole.invalid.extend(page.invalid);
                whole.resource_version = page.resource_version;
                whole.continue_token = page.continue_token;
            }
            Err(error) if error.is_expired() && !restarted => {
                restarted = true;
                whole = source.list("").await?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(whole)
}

#[async_trait]
impl<T: Resource> ListerWatcher<T> for Api<T> {
    async fn recovered(&self) {
        self.client.recovered().await;
    }

    async fn list(&self, continue_token: &str) -> Result<Page<T>, ApiError> {
        let options = ListOptions {
            labels: self.labels.clone(),
            fields: self.fields.clone(),
            limit: self.page,
            continue_token: continue_token.to_owned(),
            ..ListOptions::default()
        };
        let raw = self.client.list(&self.kind, &self.namespace, &options).await?;
        let mut items = Vec::with_capacity(raw.items.len());
        let mut invalid = Vec::new();
        for object in raw.items {
            match object.decode() {
                Ok(object) => items.push(object),
                Err(error) => invalid.push(error),
            }
        }
        Ok(Page {
            items,
            invalid,
            resource_version: raw.resource_version,
            continue_token: raw.continue_token,
        })
    }

    async fn watch(&self, resource_version: &str) -> Result<WatchStream<T>, ApiError> {
        let options = WatchOptions {
            labels: self.labels.clone(),
            fields: self.fields.clone(),
            resource_version: Str::new(resource_version),
            bookmarks: true,
            ..WatchOptions::default()
        };
        let raw = self.client.watch(&self.kind, &self.namespace, &options).await?;
        Ok(raw.map(|event| event.map(WatchEvent::decode)).boxed())
    }
}

// SPDX-License-Identifier: Apache-2.0

//! The cases. Each works in a namespace of its own; one list, so that it shows at a glance what both servers are
//! held to.

mod kinds;
mod lists;
mod objects;
mod patches;
mod tokens;
mod watches;

use std::sync::Arc;

use serde_json::{Value, json};
use skep_k8s_client::{
    ApiError, Client, DeleteOptions, ListOptions, Patch, RawPage, RawWatch, Subresource, WatchOptions,
    WriteOptions,
};
use skep_k8s_types::{Kind, RawObject};

/// What is checked.
pub(crate) struct Subject {
    pub(crate) client: Arc<dyn Client>,
    /// Makes the server forget the past, where that can be done.
    pub(crate) compact: Option<Box<dyn Fn() + Send + Sync>>,
    /// A server that is not ours: what depends on its version, its feature gates or its etcd may differ.
    pub(crate) is_real: bool,
}

pub(crate) async fn all(subject: &Subject) {
    let client = &*subject.client;
    objects::lifecycle(&Space::new(client).await).await;
    objects::conflicts(&Space::new(client).await).await;
    objects::preconditions(&Space::new(client).await).await;
    objects::finalizers(&Space::new(client).await).await;
    objects::dry_run(&Space::new(client).await).await;
    objects::invalid(&Space::new(client).await).await;
    lists::pages(&Space::new(client).await).await;
    lists::selectors(&Space::new(client).await).await;
    watches::changes(&Space::new(client).await).await;
    watches::bookmarks(&Space::new(client).await, subject.is_real).await;
    if let Some(compact) = &subject.compact {
        watches::gone(&Space::new(client).await, compact).await;
    }
    patches::merging(&Space::new(client).await).await;
    patches::server_side_apply(&Space::new(client).await).await;
    kinds::status(&Space::new(client).await).await;
    kinds::service_defaults(&Space::new(client).await).await;
    kinds::service_names(&Space::new(client).await, subject.is_real).await;
    kinds::leases(&Space::new(client).await).await;
    kinds::bindings(&Space::new(client).await, subject.is_real).await;
    kinds::definitions(&Space::new(client).await).await;
    tokens::requests(&Space::new(client).await).await;
}

/// The namespace of one case.
struct Space<'a> {
    client: &'a dyn Client,
    name: String,
}

impl<'a> Space<'a> {
    async fn new(client: &'a dyn Client) -> Self {
        let object = json!({ "metadata": { "generateName": "contract-" } });
        let made = client
            .create(&Kind::NAMESPACE, "", object, &options())
            .await
            .unwrap();
        let name = name(&value(&made)).to_owned();
        Self { client, name }
    }

    /// Where objects of a kind are: kinds of the whole cluster are in no namespace.
    fn namespace(&self, kind: &Kind) -> &str {
        if kind.namespaced { &self.name } else { "" }
    }

    async fn get(&self, kind: &Kind, name: &str) -> Result<Value, ApiError> {
        let object = self.client.get(kind, self.namespace(kind), name).await?;
        Ok(value(&object))
    }

    async fn create(&self, kind: &Kind, object: Value) -> Result<Value, ApiError> {
        let made = self
            .client
            .create(kind, self.namespace(kind), object, &options())
            .await?;
        Ok(value(&made))
    }

    async fn update(&self, kind: &Kind, object: Value) -> Result<Value, ApiError> {
        self.update_part(kind, Subresource::None, object).await
    }

    async fn update_part(&self, kind: &Kind, part: Subresource, object: Value) -> Result<Value, ApiError> {
        let updated = self
            .client
            .update(kind, self.namespace(kind), part, object, &options())
            .await?;
        Ok(value(&updated))
    }

    async fn patch(&self, kind: &Kind, name: &str, patch: Patch) -> Result<Value, ApiError> {
        self.patch_as(kind, name, patch, &options()).await
    }

    async fn patch_as(
        &self,
        kind: &Kind,
        name: &str,
        patch: Patch,
        options: &WriteOptions,
    ) -> Result<Value, ApiError> {
        let patched = self
            .client
            .patch(
                kind,
                self.namespace(kind),
                name,
                Subresource::None,
                &patch,
                options,
            )
            .await?;
        Ok(value(&patched))
    }

    async fn delete(&self, kind: &Kind, name: &str) -> Result<(), ApiError> {
        self.client
            .delete(kind, self.namespace(kind), name, &DeleteOptions::default())
            .await
    }

    /// Makes a ConfigMap that is labelled with its name.
    async fn config(&self, name: &str, data: &str) -> Value {
        self.create(&Kind::CONFIG_MAP, config(name, data)).await.unwrap()
    }

    /// Lists ConfigMaps.
    async fn list(&self, options: &ListOptions) -> Result<RawPage, ApiError> {
        self.client.list(&Kind::CONFIG_MAP, &self.name, options).await
    }

    /// Watches ConfigMaps.
    async fn watch(&self, options: &WatchOptions) -> Result<RawWatch, ApiError> {
        self.client.watch(&Kind::CONFIG_MAP, &self.name, options).await
    }
}

fn options() -> WriteOptions {
    WriteOptions {
        field_manager: "contract".to_owned(),
        ..WriteOptions::default()
    }
}

fn config(name: &str, data: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": name, "labels": { "app": name } },
        "data": { "k": data },
    })
}

fn value(object: &RawObject) -> Value {
    (*object.to_value().unwrap()).clone()
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

fn version(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().unwrap()
}

fn names(page: &RawPage) -> Vec<String> {
    page.items
        .iter()
        .map(|object| name(&value(object)).to_owned())
        .collect()
}

/// The status code of a call that must fail.
#[track_caller]
fn code<T: std::fmt::Debug>(result: Result<T, ApiError>) -> u16 {
    result.unwrap_err().status().map_or(0, |s| s.code)
}

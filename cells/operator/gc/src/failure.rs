// SPDX-License-Identifier: Apache-2.0

//! Deletions that may come too late.

use skep_k8s_client::{Api, ApiError, DeleteOptions, Preconditions};
use skep_k8s_types::Resource;
use skep_k8s_types::slim::Str;

/// Why a pass ended early. The next one starts over.
#[derive(Debug, thiserror::Error)]
pub enum GcError {
    /// An object could not be deleted.
    #[error("cannot delete {kind} `{name}`")]
    Delete {
        kind: String,
        /// Namespace and name of the object.
        name: String,
        #[source]
        cause: Box<ApiError>,
    },
    #[error("cannot list {kind}")]
    List {
        kind: String,
        #[source]
        cause: Box<ApiError>,
    },
    /// An object could not be marked.
    #[error("cannot update {kind} `{name}`")]
    Update {
        kind: String,
        name: String,
        #[source]
        cause: Box<ApiError>,
    },
}

impl GcError {
    fn cause(&self) -> &ApiError {
        match self {
            Self::Delete { cause, .. } | Self::List { cause, .. } | Self::Update { cause, .. } => cause,
        }
    }

    /// Whether the server rejected the request because of the object, such as by an admission webhook. Others may succeed.
    fn is_of_object(&self) -> bool {
        let status = self.cause().status();
        status.is_some_and(|status| (400..500).contains(&status.code) && status.code != 429)
    }
}

/// What could not be done in a pass. An object that the server rejects does not end it: the others are not less stale.
#[derive(Debug, Default)]
pub(crate) struct Rejected {
    first: Option<GcError>,
    more: usize,
}

impl Rejected {
    /// Keeps an error until the end of the pass.
    ///
    /// # Errors
    ///
    /// The error, if the next request would fail as well.
    pub(crate) fn keep(&mut self, error: GcError) -> Result<(), GcError> {
        if !error.is_of_object() {
            return Err(error);
        }
        tracing::debug!(error = %hive::error_chain(&error), "Skipping object");
        match self.first {
            None => self.first = Some(error),
            Some(_) => self.more += 1,
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> Result<(), GcError> {
        if self.more > 0 {
            tracing::warn!(more = self.more, "Rejected further objects");
        }
        self.first.map_or(Ok(()), Err)
    }
}

/// Deletes an object if it is still the one that was judged. Returns whether it did.
pub(crate) async fn delete<T: Resource>(
    api: &Api<T>,
    name: &str,
    uid: &Str,
    resource_version: &Str,
    propagation: &'static str,
) -> Result<bool, ApiError> {
    let options = DeleteOptions {
        preconditions: Preconditions {
            uid: uid.clone(),
            resource_version: resource_version.clone(),
        },
        propagation: Str::const_new(propagation),
        ..DeleteOptions::default()
    };
    match api.delete(name, &options).await {
        Ok(()) => Ok(true),
        // Changed, replaced or gone meanwhile: the next pass judges it anew.
        Err(error) if error.is_conflict() || error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Deletes all objects of a kind. A kind that the server does not have has none.
pub(crate) async fn delete_all<T: Resource>(
    client: &std::sync::Arc<dyn skep_k8s_client::Client>,
) -> Result<usize, GcError> {
    let kind = T::kind().kind.to_string();
    let all = match Api::<T>::all(client.clone()).list_all().await {
        Ok(all) => all,
        Err(error) if error.is_not_found() => return Ok(0),
        Err(cause) => {
            return Err(GcError::List {
                kind,
                cause: cause.into(),
            });
        }
    };
    let keys = all.items.iter().map(|object| {
        let metadata = object.metadata();
        (
            metadata.namespace.clone(),
            metadata.name.clone(),
            metadata.uid.clone(),
        )
    });
    let invalid = all.invalid.iter().map(|error| {
        (
            error.object.namespace.clone(),
            error.object.name.clone(),
            Str::default(),
        )
    });
    let mut deleted = 0;
    for (namespace, name, uid) in keys.chain(invalid) {
        let api = Api::<T>::namespaced(client.clone(), &namespace);
        match delete(&api, &name, &uid, &Str::default(), "Background").await {
            Ok(done) => deleted += usize::from(done),
            Err(cause) => {
                let name = format!("{namespace}/{name}");
                return Err(GcError::Delete {
                    kind,
                    name,
                    cause: cause.into(),
                });
            }
        }
    }
    Ok(deleted)
}

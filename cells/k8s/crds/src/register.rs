// SPDX-License-Identifier: Apache-2.0

//! Creates definitions in a cluster and brings older ones up to date.

use std::future::Future;
use std::time::Duration;

use serde_json::Value;
use skep_k8s_client::{ApiError, Client, Subresource, WriteOptions};
use skep_k8s_types::Kind;
use tokio::time::Instant;

use crate::definition::Definition;

const DEFINITIONS: Kind = Kind::new(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    false,
);

const INTERVAL: Duration = Duration::from_millis(500);

/// How long an update, and the wait for a definition to be established, may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What was done about a definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was not there and was created.
    Created,
    /// Another writer created it at the same moment; it is not waited for.
    CreatedByAnother,
    /// It was older and was replaced.
    Updated,
    /// It is as new as ours or newer, and was left alone.
    UpToDate,
}

/// Why a definition is not in place.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// It could not be read. Check the rights of the service account and the connection.
    #[error("unable to read CRD {name}")]
    Read {
        name: String,
        #[source]
        cause: Box<ApiError>,
    },
    /// It could not be created. Check the rights of the service account.
    #[error("unable to create CRD {name}")]
    Create {
        name: String,
        #[source]
        cause: Box<ApiError>,
    },
    /// It could not be updated. Check the rights of the service account.
    #[error("unable to update CRD {name}")]
    Update {
        name: String,
        #[source]
        cause: Box<ApiError>,
    },
    /// Other writers changed it all the time.
    #[error("unable to update CRD {name}: it kept changing for {}s", TIMEOUT.as_secs())]
    Contended { name: String },
    /// Another definition has its names. Delete that one, or give it other names.
    #[error("the names of CRD {name} are not accepted: {reason}: {message}")]
    Names {
        name: String,
        /// Which names, such as `PluralConflict`.
        reason: String,
        message: String,
    },
    /// The API server does not serve it. Look at the conditions of the definition.
    #[error("CRD {name} is not established after {}s", TIMEOUT.as_secs())]
    NotEstablished { name: String },
}

/// Creates the definitions or brings them up to date, one after another.
///
/// # Errors
///
/// The first [`RegisterError`]; what comes behind is not touched.
pub async fn register_all(client: &dyn Client, definitions: &[Definition]) -> Result<(), RegisterError> {
    for definition in definitions {
        register(client, definition).await?;
    }
    Ok(())
}

/// Creates a definition, or replaces an older one, and waits until the API server serves it.
///
/// A definition with an equal or higher version is left alone, whatever it contains. An update replaces all labels and
/// the whole `spec`; annotations and finalizers stay. Objects are not written again.
///
/// # Errors
///
/// [`RegisterError`]; the definition may be there then.
pub async fn register(client: &dyn Client, definition: &Definition) -> Result<Outcome, RegisterError> {
    let name = definition.name();
    let mut found = match read(client, &name).await {
        Ok(found) => Some(found),
        Err(error) if error.is_not_found() => None,
        Err(error) => {
            let cause = Box::new(error);
            return Err(RegisterError::Read { name, cause });
        }
    };
    let outcome = match &found {
        None => {
            tracing::info!(name, "Creating CRD (CustomResourceDefinition)...");
            let options = WriteOptions::default();
            match client
                .create(&DEFINITIONS, "", definition.to_object(), &options)
                .await
            {
                Ok(created) => found = created.to_value().ok().map(|value| (*value).clone()),
                Err(error) if error.is_already_exists() => return Ok(Outcome::CreatedByAnother),
                Err(error) => {
                    let cause = Box::new(error);
                    return Err(RegisterError::Create { name, cause });
                }
            }
            Outcome::Created
        }
        Some(old) if definition.revision.is_outdated(old) => {
            tracing::info!(name, "Updating CRD (CustomResourceDefinition)...");
            found = update(client, definition, &name).await?;
            Outcome::Updated
        }
        Some(_) => Outcome::UpToDate,
    };
    wait_established(client, &name, found).await?;
    tracing::info!(name, "CRD (CustomResourceDefinition) is installed and up-to-date");
    Ok(outcome)
}

async fn read(client: &dyn Client, name: &str) -> Result<Value, ApiError> {
    let object = client.get(&DEFINITIONS, "", name).await?;
    Ok((*object.to_value()?).clone())
}

/// Replaces an older definition; returns it as it is then. A conflict is tried again.
async fn update(
    client: &dyn Client,
    definition: &Definition,
    name: &str,
) -> Result<Option<Value>, RegisterError> {
    let failed = |error| RegisterError::Update {
        name: name.to_owned(),
        cause: Box::new(error),
    };
    let attempt = async || {
        let mut object = read(client, name).await.map_err(failed)?;
        if !definition.revision.is_outdated(&object) {
            return Ok(Some(object));
        }
        object["metadata"]["labels"] = definition.revision.labels().into();
        object["spec"] = definition.spec();
        object["spec"]["preserveUnknownFields"] = false.into();
        let options = WriteOptions::default();
        match client
            .update(&DEFINITIONS, "", Subresource::None, object, &options)
            .await
        {
            Ok(updated) => Ok(updated.to_value().ok().map(|value| (*value).clone())),
            Err(error) if error.is_conflict() => Ok(None),
            Err(error) => Err(failed(error)),
        }
    };
    match poll(attempt).await? {
        Some(updated) => Ok(Some(updated)),
        None => Err(RegisterError::Contended {
            name: name.to_owned(),
        }),
    }
}

/// Waits until the definition is established. `known` is its newest known state.
async fn wait_established(
    client: &dyn Client,
    name: &str,
    known: Option<Value>,
) -> Result<(), RegisterError> {
    if let Some(known) = known
        && is_established(name, &known)?
    {
        return Ok(());
    }
    let attempt = async || {
        let cause = match read(client, name).await {
            Ok(found) => return Ok(is_established(name, &found)?.then_some(())),
            Err(error) => Box::new(error),
        };
        Err(RegisterError::Read {
            name: name.to_owned(),
            cause,
        })
    };
    match poll(attempt).await? {
        Some(()) => Ok(()),
        None => Err(RegisterError::NotEstablished {
            name: name.to_owned(),
        }),
    }
}

fn is_established(name: &str, definition: &Value) -> Result<bool, RegisterError> {
    let conditions = definition["status"]["conditions"].as_array();
    for condition in conditions.into_iter().flatten() {
        let text = |key: &str| condition[key].as_str().unwrap_or_default();
        match (text("type"), text("status")) {
            ("Established", "True") => return Ok(true),
            ("NamesAccepted", "False") => {
                return Err(RegisterError::Names {
                    name: name.to_owned(),
                    reason: text("reason").to_owned(),
                    message: text("message").to_owned(),
                });
            }
            _ => {}
        }
    }
    Ok(false)
}

/// Tries until there is a result, an error, or no time left (`None`).
async fn poll<T, F>(mut attempt: impl FnMut() -> F) -> Result<Option<T>, RegisterError>
where
    F: Future<Output = Result<Option<T>, RegisterError>>,
{
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(result) = attempt().await? {
            return Ok(Some(result));
        }
        if Instant::now() + INTERVAL > deadline {
            return Ok(None);
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

// SPDX-License-Identifier: Apache-2.0

//! Kinds that a server serves.

use serde::Deserialize;
use skep_k8s_types::Kind;
use skep_k8s_types::slim::Str;

use super::connection::RemoteClient;
use crate::error::ApiError;

#[derive(Deserialize)]
struct Groups {
    #[serde(default)]
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    name: Str,
    #[serde(default)]
    versions: Vec<GroupVersion>,
}

#[derive(Deserialize)]
struct GroupVersion {
    version: Str,
}

#[derive(Deserialize)]
struct Resources {
    #[serde(default)]
    resources: Vec<ApiResource>,
}

#[derive(Deserialize)]
struct ApiResource {
    name: Str,
    kind: Str,
    #[serde(default)]
    namespaced: bool,
}

impl RemoteClient {
    /// All kinds in all versions, without sub-resources.
    pub(super) async fn discover(&self) -> Result<Vec<Kind>, ApiError> {
        let mut kinds = self
            .discover_version(&Str::default(), &Str::const_new("v1"))
            .await?;
        for group in self.read::<Groups>("/apis").await?.groups {
            for version in &group.versions {
                match self.discover_version(&group.name, &version.version).await {
                    Ok(more) => kinds.extend(more),
                    // An aggregated API that is unavailable hides only its own kinds.
                    Err(error) if error.status().is_some() => {
                        tracing::debug!(group = %group.name, version = %version.version, %error, "API group not available");
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(kinds)
    }

    async fn discover_version(&self, group: &Str, version: &Str) -> Result<Vec<Kind>, ApiError> {
        let path = if group.is_empty() {
            format!("/api/{version}")
        } else {
            format!("/apis/{group}/{version}")
        };
        let found: Resources = self.read(&path).await?;
        let whole = found
            .resources
            .into_iter()
            .filter(|resource| !resource.name.contains('/'));
        Ok(whole
            .map(|resource| Kind {
                group: group.clone(),
                version: version.clone(),
                kind: resource.kind,
                plural: resource.name,
                namespaced: resource.namespaced,
            })
            .collect())
    }
}

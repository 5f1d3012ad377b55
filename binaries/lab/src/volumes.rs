// SPDX-License-Identifier: Apache-2.0

//! Projected volumes of pods: tokens of their service accounts, ConfigMaps, and fields of their own.
//!
//! The files lie in the lab's folder and are mounted into the pod, which all its containers share. A token is requested
//! anew when four fifths of its time are over. Other kinds of volumes are ignored.

pub mod spec;

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Component, Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};
use skep_k8s_client::{ApiError, Client, WriteOptions};
use skep_k8s_types::Kind;

use crate::{enter::Mount, pod::Pod};
use spec::{Source, Token, Volume};

/// Wait before a token is requested again that could not be had.
const RETRY: Duration = Duration::from_secs(10);

/// Why a volume of a pod is not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum VolumeError {
    /// Create the ConfigMap or the service account.
    #[error("MountVolume.SetUp failed for volume {volume:?} : {cause}")]
    Source { volume: String, cause: String },
    /// Name a key that the ConfigMap has.
    #[error(
        "MountVolume.SetUp failed for volume {volume:?} : configmap references non-existent config key: {key}"
    )]
    Key { volume: String, key: String },
    /// A path of a file must stay inside its volume.
    #[error("MountVolume.SetUp failed for volume {volume:?} : invalid path {path:?}")]
    Path { volume: String, path: String },
    /// The lab's folder cannot be written.
    #[error("MountVolume.SetUp failed for volume {volume:?} : {cause}")]
    File {
        volume: String,
        /// The error of the system call.
        cause: String,
    },
}

/// The volumes of a pod, with their files in `folder`.
pub(crate) struct Volumes {
    client: Arc<dyn Client>,
    pod: Pod,
    folder: PathBuf,
}

impl Volumes {
    pub(crate) fn new(client: Arc<dyn Client>, pod: &Pod, folder: PathBuf) -> Self {
        Self {
            client,
            pod: pod.clone(),
            folder,
        }
    }

    /// Writes the files of all volumes; returns where they belong.
    pub(crate) async fn write(&self) -> Result<Vec<Mount>, VolumeError> {
        let mut mounts = Vec::new();
        for volume in &self.pod.volumes {
            let folder = self.folder.join(&volume.name);
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
            // Programs in the pod may be any user.
            made.and_then(|()| fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)))
                .map_err(|cause| volume.file_error(&cause))?;
            for source in &volume.sources {
                self.write_source(volume, source).await?;
            }
            mounts.extend(volume.targets.iter().map(|target| Mount {
                source: folder.clone(),
                target: target.into(),
            }));
        }
        Ok(mounts)
    }

    async fn write_source(&self, volume: &Volume, source: &Source) -> Result<(), VolumeError> {
        let failed = |cause: ApiError| volume.source_error(&cause);
        match source {
            Source::Text(path, text) => self.write_file(volume, path, text),
            Source::Token(token) => {
                let text = self.request(token).await.map_err(failed)?;
                self.write_file(volume, &token.path, &text)
            }
            Source::ConfigMap {
                name,
                is_optional,
                items,
            } => {
                let found = match self
                    .client
                    .get(&Kind::CONFIG_MAP, &self.pod.namespace, name)
                    .await
                {
                    Err(err) if err.is_not_found() && *is_optional => return Ok(()),
                    other => other.and_then(|object| Ok(object.to_value()?)).map_err(failed)?,
                };
                let data = found["data"].as_object();
                let value = |key: &str| data.and_then(|data| data.get(key)).and_then(Value::as_str);
                let mut items = items.clone();
                if items.is_empty() {
                    let keys = data.into_iter().flat_map(serde_json::Map::keys);
                    items.extend(keys.map(|key| (key.clone(), key.clone())));
                }
                for (key, path) in items {
                    match value(&key) {
                        Some(text) => self.write_file(volume, &path, text)?,
                        None if *is_optional => {}
                        None => {
                            return Err(VolumeError::Key {
                                volume: volume.name.clone(),
                                key,
                            });
                        }
                    }
                }
                Ok(())
            }
        }
    }

    /// Requests a token that ends with the pod.
    async fn request(&self, token: &Token) -> Result<String, ApiError> {
        let pod = &self.pod;
        let path = format!("serviceaccounts/{}/token", pod.service_account);
        let kind = Kind {
            plural: path.as_str().into(),
            ..Kind::new("", "v1", "TokenRequest", "", true)
        };
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {
                "audiences": token.audience.iter().collect::<Vec<_>>(),
                "expirationSeconds": token.lifetime,
                "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid},
            },
        });
        let options = WriteOptions::default();
        let made = self.client.create(&kind, &pod.namespace, request, &options);
        let made = made.await?.to_value()?;
        Ok(made["status"]["token"].as_str().unwrap_or_default().to_owned())
    }

    /// Writes a file whole: a reader sees the old text or the new one.
    fn write_file(&self, volume: &Volume, path: &str, text: &str) -> Result<(), VolumeError> {
        let relative = Path::new(path);
        let is_inside = relative
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        if path.is_empty() || !is_inside {
            return Err(VolumeError::Path {
                volume: volume.name.clone(),
                path: path.to_owned(),
            });
        }
        let target = self.folder.join(&volume.name).join(relative);
        let mut partial = target.clone().into_os_string();
        partial.push(".new");
        let write = || -> io::Result<()> {
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent)?;
            }
            let mut options = fs::OpenOptions::new();
            let mut file = options
                .create(true)
                .truncate(true)
                .write(true)
                .mode(volume.mode)
                .open(&partial)?;
            io::Write::write_all(&mut file, text.as_bytes())?;
            fs::rename(&partial, &target)
        };
        write().map_err(|cause| volume.file_error(&cause))
    }

    /// Requests tokens anew before they expire; never returns.
    pub(crate) async fn keep_fresh(self) -> std::convert::Infallible {
        let tokens = self.pod.volumes.iter().flat_map(|volume| {
            let sources = volume.sources.iter();
            sources.filter_map(move |source| match source {
                Source::Token(token) => Some((volume, token)),
                Source::ConfigMap { .. } | Source::Text(..) => None,
            })
        });
        let all = tokens.map(|(volume, token)| self.keep_one_fresh(volume, token));
        futures::future::join_all(all).await;
        std::future::pending().await
    }

    async fn keep_one_fresh(&self, volume: &Volume, token: &Token) {
        let interval = Duration::from_secs(token.lifetime) * 4 / 5;
        let mut wait = interval;
        loop {
            tokio::time::sleep(wait).await;
            let requested = self.request(token).await;
            let written = requested
                .map_err(|err| volume.source_error(&err))
                .and_then(|text| self.write_file(volume, &token.path, &text));
            wait = match written {
                Ok(()) => interval,
                Err(err) => {
                    tracing::warn!(error = %err, pod = %self.pod.id(), "Cannot renew token");
                    RETRY
                }
            };
        }
    }
}

impl Volume {
    fn source_error(&self, cause: &ApiError) -> VolumeError {
        VolumeError::Source {
            volume: self.name.clone(),
            cause: cause.to_string(),
        }
    }

    fn file_error(&self, cause: &io::Error) -> VolumeError {
        VolumeError::File {
            volume: self.name.clone(),
            cause: cause.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use skep_k8s_memory::{ApiServer, Gvr, Mode, Registry, Rows, Settings, Tracker, in_process_client};

    use super::*;

    fn server() -> ApiServer {
        let tracker = Tracker::new(Rows::new(&statedb::Db::new()).unwrap(), 100, false);
        let settings = Settings {
            root_ca: Some("CERTIFICATE".to_owned()),
            ..Settings::default()
        };
        ApiServer::new(tracker, Registry::builtin(), Mode::Real(settings))
    }

    fn created(api: &ApiServer, spec: Value) -> Pod {
        let pod = json!({ "metadata": { "name": "web-0", "labels": { "app": "web" } }, "spec": spec });
        let options = skep_k8s_memory::WriteOptions::default();
        let made = api.create(&Gvr::new("", "v1", "pods"), "default", pod, &options);
        Pod::read(&made.unwrap().object)
    }

    fn volumes(api: &ApiServer, pod: &Pod, folder: &Path) -> Volumes {
        Volumes::new(Arc::new(in_process_client(api)), pod, folder.to_owned())
    }

    #[tokio::test]
    async fn a_pod_finds_token_certificate_and_namespace() {
        let (api, folder) = (server(), tempfile::tempdir().unwrap());
        let pod = created(
            &api,
            json!({ "containers": [{ "name": "web", "image": "skep-lab/echo" }] }),
        );

        let own = folder.path().join("web-0");
        let mounts = volumes(&api, &pod, &own).write().await.unwrap();

        let [mount] = &mounts[..] else {
            panic!("one mount, not {mounts:?}")
        };
        assert_eq!(
            mount.target,
            Path::new("/var/run/secrets/kubernetes.io/serviceaccount")
        );
        let text = |name: &str| fs::read_to_string(mount.source.join(name)).unwrap();
        assert_eq!(
            (text("ca.crt").as_str(), text("namespace").as_str()),
            ("CERTIFICATE", "default")
        );
        assert_ne!(text("token"), "");
        let mode = fs::metadata(&own).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "others cannot read tokens");
    }

    #[tokio::test]
    async fn other_sources_are_projected_and_what_is_missing_is_named() {
        let (api, folder) = (server(), tempfile::tempdir().unwrap());
        let sources = json!([
            { "configMap": { "name": "settings" } },
            { "downwardAPI": { "items": [{ "path": "own/labels", "fieldRef": { "fieldPath": "metadata.labels" } }] } },
        ]);
        let pod = created(
            &api,
            json!({
                "automountServiceAccountToken": false,
                "containers": [{ "name": "web", "image": "i", "volumeMounts": [{ "name": "v", "mountPath": "/etc/v" }] }],
                "volumes": [{ "name": "v", "projected": { "sources": sources } }],
            }),
        );
        let volumes = volumes(&api, &pod, folder.path());

        let error = volumes.write().await.unwrap_err().to_string();
        assert!(error.contains("configmaps \"settings\" not found"), "{error}");
        let options = skep_k8s_memory::WriteOptions::default();
        let config = json!({ "metadata": { "name": "settings" }, "data": { "a": "1" } });
        api.create(&Gvr::new("", "v1", "configmaps"), "default", config, &options)
            .unwrap();
        let mounts = volumes.write().await.unwrap();

        assert_eq!(mounts[0].target, Path::new("/etc/v"));
        let text = |name: &str| fs::read_to_string(mounts[0].source.join(name)).unwrap();
        assert_eq!(text("a"), "1");
        assert_eq!(text("own/labels"), "app=\"web\"\n");
    }

    #[tokio::test]
    async fn files_stay_inside_their_volume() {
        let (api, folder) = (server(), tempfile::tempdir().unwrap());
        let pod = created(&api, json!({ "containers": [{ "name": "web", "image": "i" }] }));
        let volumes = volumes(&api, &pod, folder.path());
        let volume = &pod.volumes[0];

        for path in ["../token", "/token", "", "a/../../b"] {
            assert!(
                matches!(
                    volumes.write_file(volume, path, "x"),
                    Err(VolumeError::Path { .. })
                ),
                "{path}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_are_renewed_before_they_expire() {
        let (api, folder) = (server(), tempfile::tempdir().unwrap());
        let pod = created(&api, json!({ "containers": [{ "name": "web", "image": "i" }] }));
        let mounts = volumes(&api, &pod, folder.path()).write().await.unwrap();
        let token = || fs::read_to_string(mounts[0].source.join("token")).unwrap();
        let first = token();

        let renewal = volumes(&api, &pod, folder.path()).keep_fresh();
        let _ = tokio::time::timeout(Duration::from_secs(2_800), renewal).await;
        assert_eq!(token(), first);
        let renewal = volumes(&api, &pod, folder.path()).keep_fresh();
        let _ = tokio::time::timeout(Duration::from_secs(3_000), renewal).await;

        assert_ne!(token(), first);
    }
}

// SPDX-License-Identifier: Apache-2.0

//! Volumes of pods. Those made of objects are replaced as a whole when the objects change.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use base64::{Engine, prelude::BASE64_STANDARD as BASE64};
use serde_json::{Value, json};
use skep_k8s_client::{ApiError, Client, WriteOptions};
use skep_k8s_types::Kind;

use crate::{
    env::field,
    node::Node,
    object::{flag, list, number, text},
};

/// Lifetime of a token if the volume does not say.
const LIFETIME: u64 = 3600;
/// Link to the present files of a volume.
const DATA: &str = "..data";

/// Why a volume is not there.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeError {
    #[error("MountVolume.SetUp failed for volume {volume:?} : {cause}")]
    Source { volume: String, cause: Box<ApiError> },
    #[error("MountVolume.SetUp failed for volume {volume:?} : references non-existent key: {key}")]
    Key { volume: String, key: String },
    #[error("MountVolume.SetUp failed for volume {volume:?} : {cause}")]
    File { volume: String, cause: io::Error },
    #[error(
        "MountVolume.SetUp failed for volume {volume:?} : hostPath type check failed: {path} is not a {kind}"
    )]
    HostPath {
        volume: String,
        path: String,
        kind: String,
    },
    #[error("MountVolume.SetUp failed for volume {volume:?} : kind of volume not supported")]
    Kind { volume: String },
}

/// Files of a volume: content and mode by path.
type Files = BTreeMap<String, (Vec<u8>, u32)>;

/// The volumes of a pod.
#[derive(Default)]
pub(crate) struct Volumes {
    /// Where each volume is, by the view of the runtime.
    pub(crate) paths: BTreeMap<String, PathBuf>,
    written: BTreeMap<String, Files>,
    /// Tokens by path in their volume, and when each is requested again.
    tokens: BTreeMap<(String, String), (String, Instant)>,
    count: u64,
}

impl Volumes {
    /// Makes all volumes, and brings those made of objects up to date.
    pub(crate) async fn write(
        &mut self,
        client: &dyn Client,
        node: &Node,
        pod: &Value,
    ) -> Result<(), VolumeError> {
        for volume in list(pod, "/spec/volumes") {
            let name = text(volume, "/name").to_owned();
            let file = |cause| VolumeError::File {
                volume: name.clone(),
                cause,
            };
            if volume["hostPath"].is_object() {
                let path = host_path(node, &name, volume)?;
                self.paths.insert(name, path);
                continue;
            }
            let folder = node
                .pod_folder(text(pod, "/metadata/uid"))
                .join("volumes")
                .join(&name);
            make_folder(&folder).map_err(file)?;
            if !volume["emptyDir"].is_object() {
                let files = self.files(client, pod, &name, volume).await?;
                if self.written.get(&name) != Some(&files) {
                    self.count += 1;
                    let group =
                        number(pod, "/spec/securityContext/fsGroup").and_then(|id| u32::try_from(id).ok());
                    replace(&folder, &files, group, self.count).map_err(file)?;
                    self.written.insert(name.clone(), files);
                }
            } else if !self.paths.contains_key(&name) {
                // Any user writes there.
                fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).map_err(file)?;
            }
            self.paths.insert(name, folder);
        }
        Ok(())
    }

    async fn files(
        &mut self,
        client: &dyn Client,
        pod: &Value,
        name: &str,
        volume: &Value,
    ) -> Result<Files, VolumeError> {
        let mut files = Files::new();
        let (sources, mode) = if volume["projected"].is_object() {
            let projected = &volume["projected"];
            (
                list(projected, "/sources").to_vec(),
                number(projected, "/defaultMode"),
            )
        } else {
            let known = ["configMap", "secret", "downwardAPI"];
            let kind = known.into_iter().find(|kind| volume[kind].is_object());
            let kind = kind.ok_or_else(|| VolumeError::Kind {
                volume: name.to_owned(),
            })?;
            let mut source = volume[kind].clone();
            if kind == "secret" {
                source["name"] = source["secretName"].clone();
            }
            let mode = number(&source, "/defaultMode");
            (vec![json!({ kind: source })], mode)
        };
        let mode = mode.and_then(|mode| u32::try_from(mode).ok()).unwrap_or(0o644);
        for source in &sources {
            if source["serviceAccountToken"].is_object() {
                let token = self
                    .token(client, pod, name, &source["serviceAccountToken"])
                    .await?;
                let path = text(source, "/serviceAccountToken/path").to_owned();
                files.insert(path, (token.into_bytes(), mode));
            }
            for item in list(source, "/downwardAPI/items") {
                let value = field(pod, text(item, "/fieldRef/fieldPath"), &[]);
                files.insert(text(item, "/path").to_owned(), (value.into_bytes(), mode));
            }
            for (kind, key) in [(&Kind::CONFIG_MAP, "configMap"), (&Kind::SECRET, "secret")] {
                if source[key].is_object() {
                    keys(client, pod, name, kind, &source[key], mode, &mut files).await?;
                }
            }
        }
        files.retain(|path, _| {
            let mut parts = Path::new(path).components();
            !path.is_empty() && parts.all(|part| matches!(part, std::path::Component::Normal(_)))
        });
        Ok(files)
    }

    async fn token(
        &mut self,
        client: &dyn Client,
        pod: &Value,
        volume: &str,
        source: &Value,
    ) -> Result<String, VolumeError> {
        let key = (volume.to_owned(), text(source, "/path").to_owned());
        if let Some((token, until)) = self.tokens.get(&key)
            && *until > Instant::now()
        {
            return Ok(token.clone());
        }
        let lifetime = number(source, "/expirationSeconds").unwrap_or(LIFETIME);
        let account = text(pod, "/spec/serviceAccountName");
        let plural = format!("serviceaccounts/{account}/token");
        let kind = Kind {
            plural: plural.as_str().into(),
            ..Kind::new("", "v1", "TokenRequest", "", true)
        };
        let audiences: Vec<&Value> = source["audience"]
            .as_str()
            .map(|_| &source["audience"])
            .into_iter()
            .collect();
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {
                "audiences": audiences,
                "expirationSeconds": lifetime,
                "boundObjectRef": {
                    "apiVersion": "v1", "kind": "Pod",
                    "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"],
                },
            },
        });
        let namespace = text(pod, "/metadata/namespace");
        let options = WriteOptions::default();
        let made = client.create(&kind, namespace, request, &options).await;
        let made = made.and_then(|made| Ok(made.to_value()?));
        let made = made.map_err(|cause: ApiError| VolumeError::Source {
            volume: volume.to_owned(),
            cause: Box::new(cause),
        })?;
        let token = text(&made, "/status/token").to_owned();
        let until = Instant::now() + Duration::from_secs(lifetime) * 4 / 5;
        self.tokens.insert(key, (token.clone(), until));
        Ok(token)
    }
}

/// Adds the keys of a ConfigMap or Secret.
async fn keys(
    client: &dyn Client,
    pod: &Value,
    volume: &str,
    kind: &Kind,
    source: &Value,
    mode: u32,
    files: &mut Files,
) -> Result<(), VolumeError> {
    let is_optional = flag(source, "/optional");
    let found = client
        .get(kind, text(pod, "/metadata/namespace"), text(source, "/name"))
        .await;
    let found = match found {
        Err(err) if err.is_not_found() && is_optional => return Ok(()),
        other => other.and_then(|object| Ok(object.to_value()?)),
    };
    let found = found.map_err(|cause: ApiError| VolumeError::Source {
        volume: volume.to_owned(),
        cause: Box::new(cause),
    })?;
    let mut all = data(&found);
    let items = list(source, "/items");
    if items.is_empty() {
        files.extend(
            std::mem::take(&mut all)
                .into_iter()
                .map(|(key, content)| (key, (content, mode))),
        );
    }
    for item in items {
        let (key, path) = (text(item, "/key"), text(item, "/path"));
        let own = number(item, "/mode").and_then(|mode| u32::try_from(mode).ok());
        match all.remove(key) {
            Some(content) => {
                files.insert(path.to_owned(), (content, own.unwrap_or(mode)));
            }
            None if is_optional => {}
            None => {
                return Err(VolumeError::Key {
                    volume: volume.to_owned(),
                    key: key.to_owned(),
                });
            }
        }
    }
    Ok(())
}

/// Keys and values of a ConfigMap or Secret.
pub(crate) fn data(object: &Value) -> BTreeMap<String, Vec<u8>> {
    let is_secret = object["kind"] == "Secret";
    let mut all = BTreeMap::new();
    for (field, is_encoded) in [("data", is_secret), ("binaryData", true)] {
        for (key, value) in object[field].as_object().into_iter().flatten() {
            let value = value.as_str().unwrap_or_default();
            let content = match is_encoded {
                true => BASE64.decode(value).unwrap_or_default(),
                false => value.as_bytes().to_vec(),
            };
            all.insert(key.clone(), content);
        }
    }
    all
}

fn make_folder(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Writes all files in a new folder, for a group of users if there is one, and turns the links of the volume to it.
fn replace(folder: &Path, files: &Files, group: Option<u32>, count: u64) -> io::Result<()> {
    let fresh = format!("..{count}");
    let data = folder.join(&fresh);
    make_folder(&data)?;
    for (path, (content, mode)) in files {
        let target = data.join(path);
        make_folder(target.parent().unwrap_or(&data))?;
        fs::write(&target, content)?;
        let of_group = group.map_or(0, |_| mode >> 3 & 0o050);
        fs::set_permissions(&target, fs::Permissions::from_mode(mode | of_group))?;
        chown(&target, None, group)?;
    }
    let before = fs::read_link(folder.join(DATA)).ok();
    let link = folder.join("..link");
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink(&fresh, &link)?;
    fs::rename(&link, folder.join(DATA))?;
    let names: std::collections::BTreeSet<&str> =
        files.keys().filter_map(|path| path.split('/').next()).collect();
    for entry in fs::read_dir(folder)?.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with("..") && !names.contains(&*name) {
            fs::remove_file(entry.path())?;
        }
    }
    for name in names {
        let link = folder.join(name);
        if fs::symlink_metadata(&link).is_err() {
            std::os::unix::fs::symlink(Path::new(DATA).join(name), &link)?;
        }
    }
    match before {
        Some(before) => fs::remove_dir_all(folder.join(before)),
        None => Ok(()),
    }
}

/// Checks or makes a host path; where the runtime finds it.
fn host_path(node: &Node, volume: &str, source: &Value) -> Result<PathBuf, VolumeError> {
    let wanted = text(source, "/hostPath/path");
    let kind = text(source, "/hostPath/type");
    let path = node.host_path(wanted);
    let outside = node.outside(&path);
    let file = |cause| VolumeError::File {
        volume: volume.to_owned(),
        cause,
    };
    match kind {
        "DirectoryOrCreate" => make_folder(&outside).map_err(file)?,
        "FileOrCreate" => {
            make_folder(outside.parent().unwrap_or(&outside)).map_err(file)?;
            fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(&outside)
                .map_err(file)?;
        }
        _ => {}
    }
    let metadata = fs::metadata(&outside);
    let is_right = match kind {
        // The runtime makes a folder that is not there.
        "" => true,
        "Directory" | "DirectoryOrCreate" => metadata.is_ok_and(|found| found.is_dir()),
        "File" | "FileOrCreate" => metadata.is_ok_and(|found| found.is_file()),
        "Socket" => metadata.is_ok_and(|found| found.file_type().is_socket()),
        _ => metadata.is_ok(),
    };
    match is_right {
        true => Ok(path),
        false => Err(VolumeError::HostPath {
            volume: volume.to_owned(),
            path: wanted.to_owned(),
            kind: kind.to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_replaced_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let files = |pairs: &[(&str, &str)]| -> Files {
            let pairs = pairs.iter();
            pairs
                .map(|(path, text)| ((*path).to_owned(), (text.as_bytes().to_vec(), 0o600)))
                .collect()
        };

        replace(folder.path(), &files(&[("a", "1"), ("own/b", "2")]), None, 1).unwrap();
        let first = fs::canonicalize(folder.path().join(DATA)).unwrap();
        replace(folder.path(), &files(&[("a", "3")]), Some(65_532), 2).unwrap();

        assert_eq!(fs::read_to_string(folder.path().join("a")).unwrap(), "3");
        assert_eq!(
            fs::metadata(folder.path().join("a"))
                .unwrap()
                .permissions()
                .mode()
                & 0o777,
            0o640
        );
        assert!(!folder.path().join("own").exists());
        assert!(!first.exists());
    }

    #[test]
    fn values_of_secrets_are_decoded() {
        let secret = json!({"kind": "Secret", "data": {"a": "aGk="}});
        assert_eq!(data(&secret)["a"], b"hi");
        let config = json!({"kind": "ConfigMap", "data": {"a": "hi"}, "binaryData": {"b": "aGk="}});
        assert_eq!(data(&config)["b"], data(&config)["a"]);
    }
}

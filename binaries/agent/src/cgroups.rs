// SPDX-License-Identifier: Apache-2.0

//! `GET /v1/cgroup-dump-metadata`: control groups of the containers of the node's pods, for those who see only the id
//! of a control group in a trace.

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::DirEntryExt as _,
    path::{Path, PathBuf},
};

use axum::{Json, extract::State};
use hive::{Cell, Cfg, Member};
use skep_base_api::Routes;
use skep_base_api_types::{CgroupContainerMetadata, CgroupDumpMetadata, CgroupPodMetadata};
use skep_base_settings::SocketLbConfig;
use skep_k8s_reflectors::tables::LocalPod;
use statedb::{Db, Table};
use utoipa_axum::{router::OpenApiRouter, routes};

hive::catalogue!(cell);

/// Where the system mounts control groups.
const ROOTS: [&str; 2] = ["/run/cilium/cgroupv2", "/sys/fs/cgroup"];
/// Levels of control groups above those of containers, at most.
const DEPTH: usize = 8;
/// Length of a container id in hexadecimal digits.
const ID: usize = 64;

pub(crate) fn cell() -> Cell {
    Cell::module("pod-cgroups", "Control groups of pods in the API of the agent").provide(routes)
}

#[derive(Clone, hive::Params)]
struct CgroupParams {
    config: Cfg<SocketLbConfig>,
    pods: Table<LocalPod>,
    db: Db,
}

fn routes(params: CgroupParams) -> Member<Routes> {
    Member(Routes::new(
        OpenApiRouter::new().routes(routes!(dump)).with_state(params),
    ))
}

/// Lists the control groups of the node's pods.
#[utoipa::path(get, path = "/cgroup-dump-metadata", responses(
    (status = 200, description = "The pods", body = CgroupDumpMetadata),
    (status = 500, description = "They cannot be listed", body = String)))]
async fn dump(State(params): State<CgroupParams>) -> Json<CgroupDumpMetadata> {
    let configured = params.config.configured_cgroup_root().map(Path::to_owned);
    let found = tokio::task::spawn_blocking(move || {
        let roots = configured.into_iter().chain(ROOTS.map(PathBuf::from));
        let roots = roots.map(|root| containers(&root));
        roots
            .into_iter()
            .find(|found| !found.is_empty())
            .unwrap_or_default()
    });
    let found = found.await.unwrap_or_default();
    let snapshot = params.db.read();
    let pods = params.pods.all(&snapshot).map(|row| {
        let statuses = row.pod.status.container_statuses.iter();
        let containers = statuses.filter_map(|status| {
            let (_, id) = status.container_id.split_once("://")?;
            found.get(id).cloned()
        });
        CgroupPodMetadata {
            containers: containers.collect(),
            ips: row.pod.addresses().map(str::to_owned).collect(),
            name: row.pod.metadata.name.to_string(),
            namespace: row.pod.metadata.namespace.to_string(),
        }
    });
    Json(CgroupDumpMetadata {
        pod_metadatas: pods.filter(|pod| !pod.containers.is_empty()).collect(),
    })
}

/// Control groups of containers below a directory, by the container's id.
fn containers(root: &Path) -> HashMap<String, CgroupContainerMetadata> {
    let mut found = HashMap::new();
    let mut pending = vec![(root.to_owned(), 0)];
    while let Some((directory, depth)) = pending.pop() {
        // It may be gone.
        let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            let name = entry.file_name();
            match container_id(&name.to_string_lossy()) {
                Some(id) => {
                    let group = CgroupContainerMetadata {
                        cgroup_id: entry.ino(),
                        cgroup_path: entry.path().display().to_string(),
                    };
                    found.insert(id.to_owned(), group);
                }
                None if depth < DEPTH => pending.push((entry.path(), depth + 1)),
                None => {}
            }
        }
    }
    found
}

/// The container's id in the name of its control group, such as `cri-containerd-<id>.scope`.
fn container_id(name: &str) -> Option<&str> {
    let name = name.strip_suffix(".scope").unwrap_or(name);
    let id = name.rsplit(['-', ':']).next().unwrap_or(name);
    let is_id = id.len() == ID && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_groups_are_found_by_the_ids_in_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let [cri, plain] = ["a", "b"].map(|digit| digit.repeat(ID));
        let paths = [
            format!("kubepods.slice/kubepods-pod1.slice/cri-containerd-{cri}.scope/init"),
            format!("kubepods/burstable/pod2/{plain}"),
        ];
        for path in &paths {
            fs::create_dir_all(folder.path().join(path)).unwrap();
        }

        let found = containers(folder.path());

        assert_eq!(found.len(), 2);
        assert!(found[&cri].cgroup_path.ends_with(".scope"));
        assert_ne!(found[&plain].cgroup_id, 0);
        assert_eq!(container_id("system.slice"), None);
    }
}

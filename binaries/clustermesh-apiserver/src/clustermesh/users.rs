// SPDX-License-Identifier: Apache-2.0

//! Cell: keeps the users of etcd as a file lists them, so that the other clusters of the mesh may read.
//! Requires: settings of the key-value store.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hive::config::open_regular;
use hive::{Cell, Cfg, Job, JobCtx, Jobs, SpawnError};
use serde::Deserialize;
use skep_kvstore_client::BackendError;
use skep_kvstore_etcd::{Etcd, EtcdOptions, KvstoreConfig};
use tokio::time::sleep;

/// Time between two looks at the file, and before a failed change is retried.
const POLL: Duration = Duration::from_secs(2);

/// Where users are listed.
#[derive(Debug, Clone, hive::Config)]
pub(super) struct Config {
    /// Manage the etcd users of remote clusters.
    #[config(default = false)]
    pub cluster_users_enabled: bool,
    /// File with the users of etcd and their roles.
    #[config(default = "/var/lib/cilium/etcd-config/users.yaml")]
    pub cluster_users_config_path: PathBuf,
}

hive::catalogue!(cell);

/// Keeps the users of etcd as a file lists them.
pub(super) fn cell() -> Cell {
    Cell::module("clustermesh-users-management", "Users of other clusters in etcd")
        .config::<Config>()
        .run(start)
}

fn start(config: Cfg<Config>, kvstore: Cfg<KvstoreConfig>, jobs: Jobs) -> Result<(), SpawnError> {
    let options = EtcdOptions::parse(&kvstore.kvstore_opt).ok();
    let Some(options) = options.filter(|_| config.cluster_users_enabled) else {
        return Ok(());
    };
    let path = config.cluster_users_config_path.clone();
    jobs.spawn(Job::once("users", move |cx: JobCtx| {
        let etcd = Etcd::new(options.source.clone(), options.transport);
        let path = path.clone();
        async move {
            let mut users = Users::default();
            cx.until_cancelled(users.follow(&etcd, &path, &cx)).await;
        }
    }))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Listed {
    users: Vec<Listing>,
}

#[derive(Debug, Deserialize)]
struct Listing {
    name: String,
    role: String,
}

/// Why the users are not as they should be.
#[derive(Debug, thiserror::Error)]
enum UserError {
    /// The file is missing, or cannot be read.
    #[error("file `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    /// The file does not list users. The former list stays in force.
    #[error("invalid file `{}`", path.display())]
    Parse {
        path: PathBuf,
        #[source]
        cause: serde_norway::Error,
    },
    /// etcd rejects a change, which is retried.
    #[error("user `{name}`")]
    Etcd {
        name: String,
        #[source]
        cause: BackendError,
    },
}

#[derive(Debug, Default)]
struct Users {
    /// Roles by name, as the file lists them: it says what a cluster may read, and nothing else does.
    wanted: BTreeMap<String, BTreeSet<String>>,
    managed: BTreeSet<String>,
    /// Roles by name, as they were set.
    granted: BTreeMap<String, BTreeSet<String>>,
}

impl Users {
    async fn follow(&mut self, etcd: &Etcd, path: &Path, cx: &JobCtx) {
        let mut reported = None;
        loop {
            let read = self.read(path);
            let applied = self.apply(etcd).await;
            let result = read.and(applied);
            let text = result.as_ref().err().map(|error| hive::error_chain(error));
            if reported.as_ref() != Some(&text) {
                match result {
                    Ok(()) => cx.health.ok("Users are up to date"),
                    Err(error) => cx.health.degraded("Cannot update users", &error),
                }
                reported = Some(text);
            }
            sleep(POLL).await;
        }
    }

    fn read(&mut self, path: &Path) -> Result<(), UserError> {
        let text = open_regular(path).and_then(std::io::read_to_string);
        let text = text.map_err(|cause| UserError::Read {
            path: path.to_owned(),
            cause,
        })?;
        let listed: Listed = serde_norway::from_str(&text).map_err(|cause| UserError::Parse {
            path: path.to_owned(),
            cause,
        })?;
        self.wanted.clear();
        for user in listed.users {
            self.wanted.entry(user.name).or_default().insert(user.role);
        }
        self.managed.extend(self.wanted.keys().cloned());
        Ok(())
    }

    /// Makes the changes that are left. One that fails does not stop the others.
    async fn apply(&mut self, etcd: &Etcd) -> Result<(), UserError> {
        let mut failed = None;
        for (name, roles) in &self.wanted {
            if self.granted.get(name) == Some(roles) {
                continue;
            }
            match etcd.set_roles(name, roles).await {
                Ok(()) => {
                    self.granted.insert(name.clone(), roles.clone());
                }
                Err(cause) => failed = Some((name.clone(), cause)),
            }
        }
        let gone: Vec<String> = self
            .managed
            .iter()
            .filter(|name| !self.wanted.contains_key(*name))
            .cloned()
            .collect();
        for name in gone {
            match etcd.delete_user(&name).await {
                Ok(()) => {
                    self.granted.remove(&name);
                    self.managed.remove(&name);
                }
                Err(cause) => failed = Some((name, cause)),
            }
        }
        failed.map_or(Ok(()), |(name, cause)| Err(UserError::Etcd { name, cause }))
    }
}

#[cfg(test)]
mod tests {
    use hive::{Hive, Settings, testing};
    use skep_kvstore_etcd::testing::EtcdServer;
    use skep_kvstore_etcd::{ConfigSource, EtcdConfig, TransportOptions};

    use super::*;

    async fn until(etcd: &Etcd, expected: &[&str]) {
        let wait = async {
            while etcd.users().await.expect("etcd answers") != expected {
                sleep(Duration::from_millis(50)).await;
            }
        };
        let patience = Duration::from_secs(30);
        tokio::time::timeout(patience, wait)
            .await
            .expect("the users are these");
    }

    #[tokio::test]
    async fn users_are_those_of_the_file() {
        let server = EtcdServer::start().await;
        let address = format!("http://127.0.0.1:{}", server.port());
        let mut admin = etcd_client::Client::connect([&address], None)
            .await
            .expect("etcd answers");
        for role in ["remote", "local"] {
            admin.role_add(role).await.expect("there was none");
        }
        admin.user_add("root", "x", None).await.expect("there was none");
        let config = EtcdConfig::of_address(&address).expect("it is valid");
        let etcd = Etcd::new(ConfigSource::Config(config), TransportOptions::default());
        let folder = tempfile::tempdir().expect("there is a folder");
        let file = folder.path().join("users.yaml");
        let write = |text: &str| std::fs::write(&file, text).expect("it is written");
        write("users: [{name: remote-birch, role: remote}, {name: remote-cedar, role: remote}]");
        let path = format!("--cluster-users-config-path={}", file.display());
        let option = format!("--kvstore-opt=etcd.address={address}");
        let flags = ["--cluster-users-enabled", "--kvstore=etcd", &path, &option];
        let declared = Cell::group([]).config::<KvstoreConfig>();

        let running = testing::start_with(Hive::new([cell(), declared]), Settings::new().args(flags)).await;

        until(&etcd, &["remote-birch", "remote-cedar", "root"]).await;
        let user = admin.user_get("remote-birch").await.expect("it exists");
        assert_eq!(user.roles(), ["remote"]);
        write("users: {");
        write("users: [{name: remote-birch, role: local}]");
        until(&etcd, &["remote-birch", "root"]).await;
        let mut has = async |roles: &[&str]| {
            let wait = async {
                while admin.user_get("remote-birch").await.expect("it exists").roles() != roles {
                    sleep(Duration::from_millis(50)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(30), wait)
                .await
                .expect("it has these roles");
        };
        has(&["local"]).await;
        write("users: [{name: remote-birch, role: local}, {name: remote-birch, role: remote}]");
        has(&["local", "remote"]).await;
        testing::stop(running).await;
    }
}

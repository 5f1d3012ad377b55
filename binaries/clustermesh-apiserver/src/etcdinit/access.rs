// SPDX-License-Identifier: Apache-2.0

//! Users of the etcd, and what they may read.
//!
//! Only role `root` may write. A range request must lie inside one granted range.

use etcd_client::{Client, Permission, UserAddOptions};

use super::EtcdInitError;

/// Creates users without passwords, and roles, and enables authentication.
pub async fn grant(client: &mut Client, cluster: &str) -> Result<(), EtcdInitError> {
    role(client, "root", Vec::new()).await?;
    user(client, "root", "root").await?;
    user(client, &format!("admin-{cluster}"), "root").await?;
    role(client, "local", local()).await?;
    user(client, &format!("local-{cluster}"), "local").await?;
    role(client, "remote", remote(cluster)).await?;
    user(client, "remote", "remote").await?;
    let enabled = client.auth_enable().await;
    enabled
        .map(drop)
        .map_err(step("enable authentication".to_owned()))
}

/// What agents of this cluster read: what was copied here from other clusters.
fn local() -> Vec<Permission> {
    [
        "cilium/.heartbeat",
        "cilium/cache/",
        "cilium/cluster-config/",
        "cilium/synced/",
    ]
    .map(prefix)
    .into()
}

/// What other clusters read: the state of this one.
fn remote(cluster: &str) -> Vec<Permission> {
    vec![
        prefix("cilium/.heartbeat"),
        prefix("cilium/state/"),
        Permission::read(format!("cilium/cluster-config/{cluster}")),
        prefix(&format!("cilium/synced/{cluster}/")),
    ]
}

fn prefix(prefix: &str) -> Permission {
    Permission::read(prefix).with_prefix()
}

async fn role(client: &mut Client, name: &str, permissions: Vec<Permission>) -> Result<(), EtcdInitError> {
    let added = client.role_add(name).await;
    added.map_err(step(format!("create role `{name}`")))?;
    for permission in permissions {
        let key = String::from_utf8_lossy(permission.key()).into_owned();
        let granted = client.role_grant_permission(name, permission).await;
        granted.map_err(step(format!("grant role `{name}` access to `{key}`")))?;
    }
    Ok(())
}

async fn user(client: &mut Client, name: &str, role: &str) -> Result<(), EtcdInitError> {
    let options = UserAddOptions::new().with_no_pwd();
    let added = client.user_add(name, "", Some(options)).await;
    added.map_err(step(format!("create user `{name}`")))?;
    let granted = client.user_grant_role(name, role).await;
    granted
        .map(drop)
        .map_err(step(format!("grant user `{name}` role `{role}`")))
}

fn step(step: String) -> impl FnOnce(etcd_client::Error) -> EtcdInitError {
    |cause| EtcdInitError::Access {
        step,
        cause: Box::new(cause),
    }
}

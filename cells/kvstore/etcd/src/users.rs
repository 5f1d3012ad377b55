// SPDX-License-Identifier: Apache-2.0

//! Users of etcd that authenticate by the names in their certificates.

use std::collections::BTreeSet;

use etcd_client::UserAddOptions;
use futures::FutureExt;
use skep_kvstore_client::BackendError;

use crate::backend::{Clients, Etcd};
use crate::failure::About;

impl Etcd {
    /// Creates a user without a password, unless it exists, and gives it these roles and no others. Only a user with role `root`
    /// may.
    ///
    /// # Errors
    ///
    /// [`BackendError`], also if there is no such role: then the user has those of before, too.
    pub async fn set_roles(&self, name: &str, roles: &BTreeSet<String>) -> Result<(), BackendError> {
        let users = self.users().await?;
        if !users.iter().any(|user| user == name) {
            let add = |mut clients: Clients| {
                let name = name.to_owned();
                let options = UserAddOptions::new().with_no_pwd();
                async move { clients.auth.user_add(name, "", Some(options)).await }.boxed()
            };
            self.request(false, About::default(), add).await?;
        }
        let get = |mut clients: Clients| {
            let name = name.to_owned();
            async move { clients.auth.user_get(name).await }.boxed()
        };
        let user = self.request(true, About::default(), get).await?;
        let present: BTreeSet<String> = user.roles().iter().cloned().collect();
        for role in roles.difference(&present) {
            let grant = |mut clients: Clients| {
                let (name, role) = (name.to_owned(), role.clone());
                async move { clients.auth.user_grant_role(name, role).await }.boxed()
            };
            self.request(false, About::default(), grant).await?;
        }
        for role in present.difference(roles) {
            let revoke = |mut clients: Clients| {
                let (name, role) = (name.to_owned(), role.clone());
                async move { clients.auth.user_revoke_role(name, role).await }.boxed()
            };
            self.request(false, About::default(), revoke).await?;
        }
        Ok(())
    }

    /// Deletes a user, if it exists. Only a user with role `root` may.
    ///
    /// # Errors
    ///
    /// [`BackendError`].
    pub async fn delete_user(&self, name: &str) -> Result<(), BackendError> {
        let users = self.users().await?;
        if !users.iter().any(|user| user == name) {
            return Ok(());
        }
        let delete = |mut clients: Clients| {
            let name = name.to_owned();
            async move { clients.auth.user_delete(name).await }.boxed()
        };
        self.request(false, About::default(), delete).await.map(drop)
    }

    /// The names of all users.
    ///
    /// # Errors
    ///
    /// [`BackendError`].
    pub async fn users(&self) -> Result<Vec<String>, BackendError> {
        let list = |mut clients: Clients| async move { clients.auth.user_list().await }.boxed();
        let users = self.request(true, About::default(), list).await?;
        Ok(users.users().to_vec())
    }
}

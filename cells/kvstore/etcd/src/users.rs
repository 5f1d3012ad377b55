// SPDX-License-Identifier: Apache-2.0

//! Users of etcd that authenticate by the names in their certificates.

use etcd_client::UserAddOptions;
use futures::FutureExt;
use skep_kvstore::BackendError;

use crate::backend::{Clients, Etcd};
use crate::failure::About;

impl Etcd {
    /// Creates a user without a password, unless it exists, and grants it a role. Only a user with role `root` may.
    ///
    /// # Errors
    ///
    /// [`BackendError`], also if there is no such role.
    pub async fn grant_user(&self, name: &str, role: &str) -> Result<(), BackendError> {
        let users = self.users().await?;
        if !users.iter().any(|user| user == name) {
            let add = |mut clients: Clients| {
                let name = name.to_owned();
                let options = UserAddOptions::new().with_no_pwd();
                async move { clients.auth.user_add(name, "", Some(options)).await }.boxed()
            };
            self.request(false, About::default(), add).await?;
        }
        let grant = |mut clients: Clients| {
            let (name, role) = (name.to_owned(), role.to_owned());
            async move { clients.auth.user_grant_role(name, role).await }.boxed()
        };
        self.request(false, About::default(), grant).await.map(drop)
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

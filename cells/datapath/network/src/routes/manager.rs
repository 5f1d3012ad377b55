// SPDX-License-Identifier: Apache-2.0

//! The writer of table `desired-routes`.

use std::{collections::BTreeSet, sync::Arc};

use statedb::{Db, InitGuard, RwTable, WriteTxn, reconciler::Status};

use super::row::{DesiredRoute, Place, TablePrefix};
use crate::owner::{Owner, OwnerError, Owners};

/// Why a route cannot be desired.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    #[error(transparent)]
    Owner(#[from] OwnerError),
    #[error("desired route must have a non-zero admin distance")]
    NoDistance,
    #[error(transparent)]
    Table(#[from] statedb::Error),
}

/// Writes table `desired-routes`.
#[derive(Debug, Clone)]
pub struct DesiredRoutes {
    db: Db,
    table: RwTable<DesiredRoute>,
    owners: Arc<Owners>,
}

impl hive::Value for DesiredRoutes {}

impl DesiredRoutes {
    pub(crate) fn new(db: Db, table: RwTable<DesiredRoute>) -> Self {
        Self {
            db,
            table,
            owners: Arc::default(),
        }
    }

    pub fn register_owner(&self, name: &str) -> Result<Owner, OwnerError> {
        self.owners.register(name)
    }

    /// Returns a registered owner.
    pub fn get_owner(&self, name: &str) -> Result<Owner, OwnerError> {
        self.owners.get(name)
    }

    /// Deletes all routes of an owner, and the owner.
    pub fn remove_owner(&self, owner: &Owner) -> Result<(), RouteError> {
        self.replace_all(owner, Vec::new())?;
        Ok(self.owners.remove(owner)?)
    }

    /// Registers a source of routes. Nothing is pruned before all sources are [initialized](Self::initialized).
    pub fn register_initializer(&self, name: &str) -> Result<InitGuard, statedb::Error> {
        let mut txn = self.db.write(&[&self.table]);
        let guard = self.table.register_initializer(&mut txn, name)?;
        txn.commit();
        Ok(guard)
    }

    /// Reports that a source has delivered all routes.
    pub fn initialized(&self, guard: &InitGuard) -> Result<(), statedb::Error> {
        let mut txn = self.db.write(&[&self.table]);
        txn.initialized(guard)?;
        txn.commit();
        Ok(())
    }

    pub fn upsert(&self, route: DesiredRoute) -> Result<(), RouteError> {
        self.write(&route.owner.clone(), vec![route], |_| false)
    }

    /// Deletes the route of the owner, table, prefix and priority of this one.
    pub fn delete(&self, route: &DesiredRoute) -> Result<(), RouteError> {
        let place = route.place();
        self.write(&route.owner, Vec::new(), |row| row.place() == place)
    }

    /// Replaces all routes of an owner.
    pub fn replace_all(&self, owner: &Owner, routes: Vec<DesiredRoute>) -> Result<(), RouteError> {
        self.write(owner, routes, |_| true)
    }

    /// Upserts routes of an owner, and deletes others of its routes that are `gone`.
    fn write(
        &self,
        owner: &Owner,
        routes: Vec<DesiredRoute>,
        gone: impl Fn(&DesiredRoute) -> bool,
    ) -> Result<(), RouteError> {
        self.owners.check(owner)?;
        if routes.iter().any(|route| route.admin_distance == 0) {
            return Err(RouteError::NoDistance);
        }
        let kept: BTreeSet<Place> = routes.iter().map(DesiredRoute::place).collect();
        let mut places = BTreeSet::new();
        let mut txn = self.db.write(&[&self.table]);
        let stale: Vec<_> = self
            .table
            .all(&txn)
            .filter(|row| row.owner == *owner && !kept.contains(&row.place()) && gone(row))
            .cloned()
            .collect();
        for row in stale {
            places.insert(row.place());
            self.table.delete(&mut txn, &row)?;
        }
        for mut route in routes {
            let present = self.table.get(&txn, DesiredRoute::BY_ID.key(&route.id()));
            if present.is_some_and(|present| present.is_same(&route)) {
                continue;
            }
            route.selected = present.is_some_and(|present| present.selected);
            route.status = Status::pending();
            places.insert(route.place());
            self.table.insert(&mut txn, route)?;
        }
        if places.is_empty() {
            return Ok(());
        }
        for place in places {
            self.select(&mut txn, &place)?;
        }
        txn.commit();
        Ok(())
    }

    /// Selects one of the routes of a place: that of the smallest admin distance, then the first owner by name.
    fn select(&self, txn: &mut WriteTxn, place: &Place) -> Result<(), statedb::Error> {
        let (table, prefix, _) = *place;
        let query = DesiredRoute::BY_TABLE_PREFIX.key(&TablePrefix::new(table, prefix));
        let mut rows: Vec<_> = self
            .table
            .list(txn, query)
            .filter(|row| row.place() == *place)
            .cloned()
            .collect();
        rows.sort_by(|a, b| (a.admin_distance, &a.owner).cmp(&(b.admin_distance, &b.owner)));
        for (at, row) in rows.iter().enumerate() {
            let is_selected = at == 0;
            if row.selected != is_selected {
                let mut row = (**row).clone();
                row.selected = is_selected;
                row.status = Status::pending();
                self.table.insert(txn, row)?;
            }
        }
        Ok(())
    }
}

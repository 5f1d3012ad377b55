// SPDX-License-Identifier: Apache-2.0

//! Operations on services and their frontends.

use std::sync::Arc;

use statedb::{Obj, WriteTxn};

use super::refresh::Selections;
use super::{Writer, WriterError};
use crate::types::{
    Frontend, FrontendKind, FrontendParams, L3n4Addr, ProxyRedirect, Service, ServiceName, ServiceRow,
};
use crate::{FRONTENDS_BY_ADDRESS, FRONTENDS_BY_SERVICE, SERVICES_BY_NAME};

/// A service in its table.
struct Upserted {
    row: ServiceRow,
    /// It was there, with other content.
    is_changed: bool,
    /// Its frontends, as they are.
    frontends: Vec<Obj<Frontend>>,
}

impl Writer {
    /// Adds or changes a service and makes `frontends` its only frontends. Nothing is written if one of the addresses
    /// belongs to another service. What is the same already is left alone; redirects to proxies survive unless the
    /// service names others.
    ///
    /// # Errors
    /// [`WriterError::Owned`].
    pub fn upsert_service_and_frontends(
        &self,
        txn: &mut WriteTxn,
        service: Service,
        frontends: Vec<FrontendParams>,
    ) -> Result<(), WriterError> {
        let table = &self.0.tables.frontends;
        let mut wanted = Vec::with_capacity(frontends.len());
        for params in frontends {
            if self.conflicts_with_node_port(txn, &service.name, &params) {
                continue;
            }
            let old = table.get(txn, FRONTENDS_BY_ADDRESS.key(&params.address));
            if let Some(old) = old
                && old.service.name != service.name
            {
                return Err(WriterError::Owned {
                    address: params.address,
                    owner: old.service.name.clone(),
                });
            }
            wanted.push((old.cloned(), params));
        }
        let upserted = self.put_service(txn, service)?;
        let row = &upserted.row;
        let mut gone = upserted.frontends;
        gone.retain(|old| {
            let mut wanted = wanted.iter();
            !wanted.any(|(_, params)| params.address == old.params.address)
        });
        let mut selections = Selections::default();
        for (old, params) in wanted {
            let frontend = match old {
                Some(old) if !upserted.is_changed && old.params == params => continue,
                Some(old) => Frontend {
                    params,
                    service: row.clone(),
                    ..Frontend::clone(&old)
                },
                None => Frontend::new(params, row.clone()),
            };
            self.put_selected(txn, frontend, &mut selections)?;
        }
        // Last: backends that new frontends share with them keep their ids, which connections rely on.
        for old in gone {
            self.delete_frontend(txn, &old)?;
        }
        Ok(())
    }

    /// Adds or changes a service and leaves it the frontends it has.
    ///
    /// # Errors
    /// If the transaction is not one of [`Writer::write`].
    pub fn upsert_service(&self, txn: &mut WriteTxn, service: Service) -> Result<(), WriterError> {
        let upserted = self.put_service(txn, service)?;
        if upserted.is_changed {
            self.renew_frontends(txn, &upserted.row, upserted.frontends)?;
        }
        Ok(())
    }

    /// Removes a service and its frontends; its backends stay until their source removes them. Returns whether there
    /// was one.
    ///
    /// # Errors
    /// If the transaction is not one of [`Writer::write`].
    pub fn delete_service_and_frontends(
        &self,
        txn: &mut WriteTxn,
        name: &ServiceName,
    ) -> Result<bool, WriterError> {
        for frontend in self.own_frontends(txn, name) {
            self.delete_frontend(txn, &frontend)?;
        }
        let old = self
            .0
            .tables
            .services
            .delete_by(txn, SERVICES_BY_NAME.key(name))?;
        Ok(old.is_some())
    }

    /// Removes the frontends of a service that `keeps` does not name, so that others can take their addresses within
    /// the same transaction.
    pub fn release_frontends(
        &self,
        txn: &mut WriteTxn,
        name: &ServiceName,
        keeps: impl Fn(&L3n4Addr) -> bool,
    ) -> Result<(), WriterError> {
        for frontend in self.own_frontends(txn, name) {
            if !keeps(&frontend.params.address) {
                self.delete_frontend(txn, &frontend)?;
            }
        }
        Ok(())
    }

    /// Lets a frontend use the backends of another service, or its own again. If the other service does not exist,
    /// the backends stay as they are until it does.
    ///
    /// # Errors
    /// [`WriterError::FrontendNotFound`].
    pub fn set_redirect_to(
        &self,
        txn: &mut WriteTxn,
        address: &L3n4Addr,
        target: Option<&ServiceName>,
    ) -> Result<(), WriterError> {
        let frontend = self
            .0
            .tables
            .frontends
            .get(txn, FRONTENDS_BY_ADDRESS.key(address));
        let frontend = frontend.cloned().ok_or(WriterError::FrontendNotFound(*address))?;
        if frontend.redirect_to.as_ref() == target {
            return Ok(());
        }
        let changed = Frontend {
            redirect_to: target.cloned(),
            ..Frontend::clone(&frontend)
        };
        self.put_selected(txn, changed, &mut Selections::default())
    }

    /// Sends traffic of a service to proxies; `None` ends it.
    ///
    /// # Errors
    /// [`WriterError::ServiceNotFound`], [`WriterError::Table`].
    pub fn set_proxy_redirects(
        &self,
        txn: &mut WriteTxn,
        name: &ServiceName,
        redirects: Option<Arc<[ProxyRedirect]>>,
    ) -> Result<(), WriterError> {
        let old = self.service(txn, name)?;
        if old.proxy_redirects == redirects {
            return Ok(());
        }
        let service = Service {
            proxy_redirects: redirects,
            ..Service::clone(&old)
        };
        let row = self.0.tables.services.insert_get(txn, service)?;
        let frontends = self.own_frontends(txn, name);
        self.renew_frontends(txn, &row, frontends)
    }

    fn put_service(&self, txn: &mut WriteTxn, mut service: Service) -> Result<Upserted, WriterError> {
        let services = &self.0.tables.services;
        let old = services.get(txn, SERVICES_BY_NAME.key(&service.name)).cloned();
        let (frontends, redirected) = self.frontends_of(txn, &service.name);
        if let Some(old) = &old {
            // Proxies set them, not the source of the service.
            if service.proxy_redirects.is_none() {
                service.proxy_redirects = old.proxy_redirects.clone();
            }
            if **old == service {
                return Ok(Upserted {
                    row: old.clone(),
                    is_changed: false,
                    frontends,
                });
            }
            service.name = old.name.clone();
        }
        let row = services.insert_get(txn, service)?;
        if old.is_none() && !redirected.is_empty() {
            // Others were redirected to it before it came.
            self.refresh_frontends(txn, &row.name)?;
        }
        Ok(Upserted {
            row,
            is_changed: old.is_some(),
            frontends,
        })
    }

    // A changed service is written into its frontends.
    fn renew_frontends(
        &self,
        txn: &mut WriteTxn,
        row: &ServiceRow,
        frontends: Vec<Obj<Frontend>>,
    ) -> Result<(), WriterError> {
        let mut selections = Selections::default();
        for frontend in frontends {
            let changed = Frontend {
                service: row.clone(),
                ..Frontend::clone(&frontend)
            };
            self.put_selected(txn, changed, &mut selections)?;
        }
        Ok(())
    }

    fn put_selected(
        &self,
        txn: &mut WriteTxn,
        mut frontend: Frontend,
        selections: &mut Selections,
    ) -> Result<(), WriterError> {
        if let Some(selected) = self.select(txn, &frontend, selections) {
            selected.put_into(&mut frontend);
        }
        self.put_frontend(txn, frontend)
    }

    pub(super) fn service(&self, txn: &WriteTxn, name: &ServiceName) -> Result<ServiceRow, WriterError> {
        let row = self.0.tables.services.get(txn, SERVICES_BY_NAME.key(name));
        row.cloned()
            .ok_or_else(|| WriterError::ServiceNotFound(name.clone()))
    }

    // Frontends of a service, without those redirected to it.
    pub(super) fn own_frontends(&self, txn: &WriteTxn, name: &ServiceName) -> Vec<Obj<Frontend>> {
        self.frontends_of(txn, name).0
    }

    // Frontends of a service, and those of others that are redirected to it.
    fn frontends_of(&self, txn: &WriteTxn, name: &ServiceName) -> (Vec<Obj<Frontend>>, Vec<Obj<Frontend>>) {
        let all = self.0.tables.frontends.list(txn, FRONTENDS_BY_SERVICE.key(name));
        all.cloned().partition(|frontend| frontend.service.name == *name)
    }

    fn conflicts_with_node_port(
        &self,
        txn: &WriteTxn,
        service: &ServiceName,
        frontend: &FrontendParams,
    ) -> bool {
        let conflicts = matches!(
            frontend.kind,
            FrontendKind::LoadBalancer | FrontendKind::ExternalIps
        ) && self.0.settings.node_ports.contains(frontend.address.port())
            && self.node(txn).addresses.answers_node_ports(frontend.address.ip());
        if conflicts {
            tracing::warn!(
                %service,
                address = %frontend.address,
                "Skipping LB/ExternalIP frontend conflicting with NodePort"
            );
        }
        conflicts
    }
}

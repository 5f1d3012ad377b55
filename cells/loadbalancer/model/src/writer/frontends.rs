// SPDX-License-Identifier: Apache-2.0

//! Operations on services and their frontends.

use std::sync::Arc;

use statedb::{Obj, WriteTxn};

use super::refresh::{Cache, Cause};
use super::{Writer, WriterError, log_error};
use crate::table::Tables;
use crate::types::{
    BackendParams, Frontend, FrontendKind, FrontendParams, L3n4Addr, ProxyRedirect, Service, ServiceName,
    ServiceRow,
};
use crate::{BACKENDS_BY_KEY, BackendKey, FRONTENDS_BY_ADDRESS, FRONTENDS_BY_SERVICE, SERVICES_BY_NAME};

/// A service that was not written because others have its addresses.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub error: WriterError,
    /// The service.
    pub service: Service,
    /// Its frontends.
    pub frontends: Vec<FrontendParams>,
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
        let upserted = self.upsert_or_refuse(txn, service, frontends)?;
        upserted.map_err(|refused| refused.error)
    }

    /// As [`upsert_service_and_frontends`](Self::upsert_service_and_frontends), but gives back what is refused because
    /// others have its addresses.
    pub fn upsert_or_refuse(
        &self,
        txn: &mut WriteTxn,
        service: Service,
        mut frontends: Vec<FrontendParams>,
    ) -> Result<Result<(), Box<Refused>>, WriterError> {
        frontends.retain(|frontend| !self.conflicts_with_node_port(txn, &service.name, frontend));
        for params in &frontends {
            if let Some(owner) = self.other_owner(txn, &params.address, &service.name) {
                return Ok(Err(Box::new(Refused {
                    error: WriterError::Owned {
                        address: params.address,
                        owner: owner.clone(),
                    },
                    service,
                    frontends,
                })));
            }
        }
        self.put_service_and_frontends(txn, service, frontends).map(Ok)
    }

    fn other_owner<'a>(
        &'a self,
        txn: &'a WriteTxn,
        address: &L3n4Addr,
        service: &ServiceName,
    ) -> Option<&'a ServiceName> {
        let table = &self.0.tables.frontends;
        let owner = table.get(txn, FRONTENDS_BY_ADDRESS.key(address))?;
        Some(&owner.service.name).filter(|owner| *owner != service)
    }

    /// Whether nothing is known of a service: it is not in the table, has no backends, is not redirected to, and would
    /// get its frontends.
    pub fn is_unknown(&self, txn: &WriteTxn, name: &ServiceName, frontends: &[FrontendParams]) -> bool {
        let Tables {
            services,
            frontends: table,
            backends: rows,
            ..
        } = &self.0.tables;
        let of_service = BACKENDS_BY_KEY.key(&BackendKey::of_service(name));
        services.get(txn, SERVICES_BY_NAME.key(name)).is_none()
            && table.get(txn, FRONTENDS_BY_SERVICE.key(name)).is_none()
            && rows.prefix(txn, of_service).next().is_none()
            && !frontends
                .iter()
                .any(|params| self.other_owner(txn, &params.address, name).is_some())
    }

    /// Adds a service that [is unknown](Self::is_unknown), and its backends. Its frontends are given back, to be put with
    /// [`put_new_frontends`](Self::put_new_frontends) later in the transaction; their order decides about numbers.
    pub fn add_unknown_service(
        &self,
        txn: &mut WriteTxn,
        service: Service,
        frontends: Vec<FrontendParams>,
        backends: Vec<BackendParams>,
    ) -> Result<Vec<Frontend>, WriterError> {
        let row = self.0.tables.services.insert_get(txn, service)?;
        let backends = self.put_first_backends(txn, &row.name, backends)?;
        // There is nothing to share with one frontend.
        let mut cache = (frontends.len() > 1).then(Cache::default);
        let mut made = Vec::with_capacity(frontends.len());
        for params in frontends {
            if self.conflicts_with_node_port(txn, &row.name, &params) {
                continue;
            }
            let mut frontend = Frontend::new(params, row.clone());
            (frontend.backends, frontend.health_check_backends) =
                self.select_first(txn, &frontend, &backends, cache.as_mut());
            made.push(frontend);
        }
        Ok(made)
    }

    /// Puts frontends of a service that was added with [`add_unknown_service`](Self::add_unknown_service).
    pub fn put_new_frontends(&self, txn: &mut WriteTxn, frontends: Vec<Frontend>) -> Result<(), WriterError> {
        // Pending since they were made.
        for frontend in frontends {
            self.put_frontend(txn, frontend)?;
        }
        Ok(())
    }

    fn put_service_and_frontends(
        &self,
        txn: &mut WriteTxn,
        service: Service,
        frontends: Vec<FrontendParams>,
    ) -> Result<(), WriterError> {
        let table = &self.0.tables.frontends;
        let (row, is_changed) = self.put_service(txn, service)?;
        let mut gone = self.own_frontends(txn, &row.name);
        gone.retain(|old| {
            let mut wanted = frontends.iter();
            !wanted.any(|params| params.address == old.params.address)
        });
        let mut cache = Cache::default();
        for params in frontends {
            let old = table.get(txn, FRONTENDS_BY_ADDRESS.key(&params.address)).cloned();
            match old {
                Some(old) if !is_changed && old.params == params => {}
                Some(old) => {
                    let changed = Frontend {
                        params,
                        service: row.clone(),
                        ..Frontend::clone(&old)
                    };
                    self.put_selected(txn, changed, &mut cache)?;
                }
                None => self.put_selected(txn, Frontend::new(params, row.clone()), &mut cache)?,
            }
        }
        // Last: backends that new frontends share with them keep their numbers, which connections rely on.
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
        let (row, is_changed) = self.put_service(txn, service)?;
        if is_changed {
            self.renew_frontends(txn, &row)?;
        }
        Ok(())
    }

    /// Adds or changes one frontend of a service that exists.
    ///
    /// # Errors
    /// [`WriterError::ServiceNotFound`], [`WriterError::Owned`].
    pub fn upsert_frontend(
        &self,
        txn: &mut WriteTxn,
        service: &ServiceName,
        params: FrontendParams,
    ) -> Result<(), WriterError> {
        let row = self.service(txn, service)?;
        let old = self
            .0
            .tables
            .frontends
            .get(txn, FRONTENDS_BY_ADDRESS.key(&params.address))
            .cloned();
        let frontend = match old {
            Some(old) if old.service.name != *service => {
                return Err(WriterError::Owned {
                    address: params.address,
                    owner: old.service.name.clone(),
                });
            }
            Some(old) if old.params == params => return Ok(()),
            Some(old) => Frontend {
                params,
                service: row,
                ..Frontend::clone(&old)
            },
            None => Frontend::new(params, row),
        };
        self.put_selected(txn, frontend, &mut Cache::default())
    }

    /// Removes a service and its frontends; its backends stay until their source removes them. Gives whether there
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
    ) {
        for frontend in self.own_frontends(txn, name) {
            if !keeps(&frontend.params.address) {
                log_error(self.delete_frontend(txn, &frontend));
            }
        }
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
        self.put_selected(txn, changed, &mut Cache::default())
    }

    /// Sends traffic of a service to proxies; `None` ends it. Gives whether there is such a service.
    pub fn set_proxy_redirects(
        &self,
        txn: &mut WriteTxn,
        name: &ServiceName,
        redirects: Option<Arc<[ProxyRedirect]>>,
    ) -> bool {
        let Ok(old) = self.service(txn, name) else {
            return false;
        };
        if old.proxy_redirects == redirects {
            return true;
        }
        let service = Service {
            proxy_redirects: redirects,
            ..Service::clone(&old)
        };
        match self.0.tables.services.insert_get(txn, service) {
            Ok(row) => log_error(self.renew_frontends(txn, &row)),
            Err(error) => log_error::<(), _>(Err(error)),
        }
        true
    }

    fn put_service(
        &self,
        txn: &mut WriteTxn,
        mut service: Service,
    ) -> Result<(ServiceRow, bool), WriterError> {
        let old = self
            .0
            .tables
            .services
            .get(txn, SERVICES_BY_NAME.key(&service.name))
            .cloned();
        if let Some(old) = &old {
            // Proxies set them, not the source of the service.
            if service.proxy_redirects.is_none() {
                service.proxy_redirects = old.proxy_redirects.clone();
            }
            if **old == service {
                return Ok((old.clone(), false));
            }
            service.name = old.name.clone();
        }
        let row = self.0.tables.services.insert_get(txn, service)?;
        if old.is_none() {
            // Others may have been redirected to it before it came.
            self.refresh_frontends(txn, &row.name, &Cause::Everything)?;
        }
        Ok((row, old.is_some()))
    }

    // A changed service is written into its frontends.
    fn renew_frontends(&self, txn: &mut WriteTxn, row: &ServiceRow) -> Result<(), WriterError> {
        let mut cache = Cache::default();
        for frontend in self.own_frontends(txn, &row.name) {
            let changed = Frontend {
                service: row.clone(),
                ..Frontend::clone(&frontend)
            };
            self.put_selected(txn, changed, &mut cache)?;
        }
        Ok(())
    }

    fn put_selected(
        &self,
        txn: &mut WriteTxn,
        mut frontend: Frontend,
        cache: &mut Cache,
    ) -> Result<(), WriterError> {
        if let Some((backends, to_check)) = self.select(txn, &frontend, &Cause::Everything, cache) {
            (frontend.backends, frontend.health_check_backends) = (backends, to_check);
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
        let all = self.0.tables.frontends.list(txn, FRONTENDS_BY_SERVICE.key(name));
        all.filter(|frontend| frontend.service.name == *name)
            .cloned()
            .collect()
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
        ) && self.0.settings.node_ports.contains(&frontend.address.port())
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

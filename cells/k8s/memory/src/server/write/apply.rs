// SPDX-License-Identifier: Apache-2.0

//! Server-side apply.

use std::sync::Arc;

use serde_json::Value;

use super::{Request, Subresource, place};
use crate::error::{ApiError, Fault};
use crate::object;
use crate::patch::apply::apply;
use crate::server::service::Plan;
use crate::server::{ApiServer, present};
use crate::tracker::Transaction;

impl ApiServer {
    pub(super) fn apply_in(
        &self,
        tx: &mut Transaction<'_>,
        plan: &mut Plan,
        request: &Request<'_>,
        stored: Option<&Value>,
        config: &Value,
        warnings: &mut Vec<String>,
    ) -> Result<(Arc<Value>, bool), ApiError> {
        let Request {
            kind,
            namespace,
            name,
            subresource,
            options,
        } = *request;
        if options.field_manager.is_empty() {
            let fault = Fault::required("fieldManager", "is required for apply patch");
            return Err(ApiError::invalid("meta.k8s.io", "PatchOptions", "", &[fault]));
        }
        let mut config = config.clone();
        self.receive(kind, &mut config, options, warnings)?;
        if object::name(&config).is_empty() {
            object::set_metadata(&mut config, "name", name);
        }
        let api_version = kind.api_version();
        let manager = request.manager(&api_version);
        let sent_version = object::resource_version(&config).to_owned();
        if let Some(live) = stored
            && !sent_version.is_empty()
            && sent_version != object::resource_version(live)
        {
            return Err(ApiError::modified(&kind.gvr, name));
        }
        let live = stored.map(|s| (*present(kind, Arc::new(s.clone()))).clone());
        let shape = kind.shape.of_resource();
        let (mut new, applied) = apply(&shape, live.as_ref(), &config, &manager, options.force)?;
        if let Some(live) = &live {
            for key in ["uid", "resourceVersion"] {
                object::copy_metadata(&mut new, live, key);
            }
        }
        place(kind, namespace, &mut new)?;
        match stored {
            Some(old) => {
                let old = Arc::new(old.clone());
                Ok((
                    self.update_in(tx, plan, request, &old, new, Some(applied))?,
                    false,
                ))
            }
            None if subresource != Subresource::None => Err(ApiError::not_found(&kind.gvr, name)),
            None => {
                object::set_metadata(&mut new, "resourceVersion", "");
                Ok((self.create_in(tx, plan, request, new, Some(applied))?, true))
            }
        }
    }
}

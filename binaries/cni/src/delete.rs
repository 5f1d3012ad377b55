// SPDX-License-Identifier: Apache-2.0

//! DEL: the endpoint first, then the interface. It succeeds for what is gone.

use std::{fs::File, io};

use crate::{
    add::inside,
    call::Call,
    chain,
    error::{CniError, plain},
    ipam,
    log::Log,
    queue::{Deleter, Outcome},
    removal,
};

pub(crate) fn delete(call: &Call, log: &Log) -> Result<(), CniError> {
    log.debug("Processing CNI DEL request", &[]);
    let is_chained = chain::mode(call, log)?.is_some();
    match Deleter::new(log).delete(&call.container) {
        Ok(Outcome::Deleted | Outcome::Queued) => {}
        // The endpoint is gone, or the agent deletes it when its interface is gone.
        Ok(Outcome::Refused(error)) => {
            log.warn("Errors encountered while deleting endpoint", &[("error", &error)]);
        }
        Err(cause) => {
            let message = format!("client failed: {cause}");
            log.error("Failed to delete endpoint", &[("error", &message)]);
            return Err(CniError::internal(message));
        }
    }
    if is_chained {
        return Ok(());
    }
    if !call.config.ipam.kind.is_empty() {
        ipam::delegate(call)?;
    }
    let about = [
        ("interface", call.interface.as_str()),
        ("netNamespace", &call.netns),
    ];
    match File::open(call.netns_path()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let error = format!(
                "namespace {0} no longer exist: open {0}: {1}",
                call.netns,
                plain(&error)
            );
            let fields = [("error", error.as_str()), about[0], about[1]];
            log.warn(
                "Unable to open network namespace, will not delete interface",
                &fields,
            );
            return Ok(());
        }
        opened => opened.map_err(|error| {
            let cause = plain(&error);
            CniError::internal(format!(
                "opening netns pinned at {0}: open {0}: {cause}",
                call.netns
            ))
        })?,
    };
    let deleted = match inside(call, || removal::delete(&call.interface)) {
        Ok(deleted) => deleted,
        Err(error) => Err(error.message),
    };
    if let Err(error) = deleted {
        let fields = [("error", error.as_str()), about[0], about[1]];
        log.warn(
            "Unable to delete interface in namespace, will not delete interface",
            &fields,
        );
    }
    Ok(())
}

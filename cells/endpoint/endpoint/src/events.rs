// SPDX-License-Identifier: Apache-2.0

//! Options of endpoints → events of the programs: the options of the host endpoint are those of the node, and programs contain
//! debug messages while an endpoint has them.

use std::sync::Arc;

use hive::JobCtx;
use skep_datapath_hooks::EventSwitch;

use crate::Endpoints;

pub(crate) struct EndpointEvents {
    pub(crate) endpoints: Endpoints,
    pub(crate) switch: Arc<EventSwitch>,
}

impl EndpointEvents {
    pub(crate) async fn follow(&self, _: &JobCtx) {
        let table = self.endpoints.table();
        // The programs begin with the options of the settings, which are those of new endpoints.
        let mut of_host = self.endpoints.default_options().events();
        loop {
            let snapshot = self.endpoints.db().read();
            let changed = table.table_watch(&snapshot);
            let mut debugs = false;
            for row in table.all(&snapshot).filter(|row| row.is_live()) {
                let events = row.options.events();
                debugs |= events.debug;
                if row.is_host && events != of_host {
                    of_host = events;
                    self.switch.set(events);
                }
            }
            self.switch.set_endpoint_debug(debugs);
            drop(snapshot);
            changed.closed().await;
        }
    }
}

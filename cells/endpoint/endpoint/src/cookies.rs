// SPDX-License-Identifier: Apache-2.0

//! Cell: cookies of the network namespaces of endpoints, by which redirect policies (`skipRedirectFromBackend`) leave the
//! traffic of their own backends alone.
//! Requires: table `endpoints`; [`NetnsCookies`], which are there if redirect policies are on.

use std::{collections::BTreeMap, sync::Arc};

use hive::{Cell, Job, JobCtx, Jobs, Params, SpawnError};
use skep_loadbalancer_redirectpolicy::{CookieSource, NetnsCookies};
use statedb::{Db, Table};

use crate::{Endpoint, Phase};

/// Cookies of the network namespaces of endpoints.
#[must_use]
pub fn cell() -> Cell {
    Cell::module(
        "endpoint-cookies",
        "Cookies of the network namespaces of endpoints",
    )
    .run(start)
}

hive::catalogue!(cell);

#[derive(Params)]
struct CookieParams {
    db: Db,
    endpoints: Table<Endpoint>,
    cookies: Option<NetnsCookies>,
    jobs: Jobs,
}

fn start(params: CookieParams) -> Result<(), SpawnError> {
    let CookieParams {
        db,
        endpoints,
        cookies,
        jobs,
    } = params;
    let Some(cookies) = cookies else {
        return Ok(());
    };
    let source = Arc::new(cookies.register());
    jobs.spawn(Job::once("set-cookies", move |cx: JobCtx| {
        let (db, endpoints, source) = (db.clone(), endpoints.clone(), source.clone());
        async move {
            let work = follow(&db, &endpoints, &source, &cx);
            cx.until_cancelled(work).await.unwrap_or(Ok(()))
        }
    }))
}

/// Keeps the cookies of pods those of their endpoints.
async fn follow(
    db: &Db,
    endpoints: &Table<Endpoint>,
    source: &CookieSource,
    cx: &JobCtx,
) -> Result<(), statedb::Error> {
    let mut known: BTreeMap<String, u64> = BTreeMap::new();
    loop {
        let snapshot = db.read();
        // Complete when those of the run before are restored.
        let (is_complete, completed) = endpoints.initialized_watch(&snapshot);
        let changed = endpoints.table_watch(&snapshot);
        let now: BTreeMap<String, u64> = endpoints.all(&snapshot).filter_map(|row| cookie(row)).collect();
        drop(snapshot);
        for (pod, cookie) in now
            .iter()
            .filter(|(pod, cookie)| known.get(*pod) != Some(*cookie))
        {
            source.set(pod, Some(*cookie))?;
        }
        for pod in known.keys().filter(|pod| !now.contains_key(*pod)) {
            source.set(pod, None)?;
        }
        known = now;
        if is_complete {
            source.delivered();
        }
        cx.health.ok(format!("{} cookies", known.len()));
        tokio::select! {
            () = changed.closed() => {}
            () = completed.closed(), if !is_complete => {}
        }
    }
}

/// Pod and cookie of an endpoint that is not being taken down.
fn cookie(endpoint: &Endpoint) -> Option<(String, u64)> {
    let is_up = matches!(endpoint.phase, Phase::Live | Phase::Restored);
    let cookie = endpoint.spec.netns_cookie;
    (is_up && cookie != 0).then_some((endpoint.spec.pod_name()?, cookie))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hive::{Hive, Running};
    use skep_loadbalancer_redirectpolicy::{SKIP_BY_POD, SkipRedirects};
    use statedb::{RwTable, reconciler::Status};

    use super::*;
    use crate::{EndpointSpec, endpoint};

    fn skips(db: Db) -> Result<RwTable<SkipRedirects>, statedb::Error> {
        RwTable::builder("desired-skiplbmap")
            .primary(SKIP_BY_POD)
            .build(&db)
    }

    struct Bench {
        running: Running,
        db: Db,
        endpoints: RwTable<Endpoint>,
        restore: statedb::InitGuard,
    }

    impl Bench {
        async fn start() -> Self {
            let tables = Cell::module("tables", "What other cells provide")
                .provide(endpoint::new_table)
                .provide(endpoint::read_only)
                .provide(skips)
                .provide(NetnsCookies::new);
            let hive = Hive::new([statedb::cell(), tables, cell()])
                .root::<Db>()
                .root::<RwTable<Endpoint>>()
                .root::<RwTable<SkipRedirects>>()
                .root::<NetnsCookies>();
            let built = hive.plan(hive::Settings::new()).unwrap().build().unwrap();
            let (db, endpoints) = (
                built.get::<Db>().unwrap(),
                built.get::<RwTable<Endpoint>>().unwrap(),
            );
            let mut txn = db.write(&[&endpoints]);
            let restore = endpoints.register_initializer(&mut txn, "restore").unwrap();
            txn.commit();
            Self {
                running: built.start().await.unwrap(),
                db,
                endpoints,
                restore,
            }
        }

        fn put(&self, id: u16, netns_cookie: u64, phase: Phase) {
            let spec = EndpointSpec {
                namespace: "shop".to_owned(),
                pod: format!("cart-{id}"),
                interface: format!("lxc{id}"),
                netns_cookie,
                ..EndpointSpec::default()
            };
            let row = Endpoint {
                id,
                spec: spec.into(),
                phase,
                status: Status::pending(),
                ..Endpoint::default()
            };
            let mut txn = self.db.write(&[&self.endpoints]);
            self.endpoints.insert(&mut txn, row).unwrap();
            txn.commit();
        }

        fn is_complete(&self) -> bool {
            self.running.get::<NetnsCookies>().unwrap().are_complete()
        }

        fn cookies(&self) -> Vec<String> {
            let table: RwTable<SkipRedirects> = self.running.get().unwrap();
            let text = |row: &SkipRedirects| format!("{} {:?}", row.pod, row.cookie);
            table.all(&self.db.read()).map(|row| text(row)).collect()
        }

        async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
            let waited = tokio::time::timeout(Duration::from_secs(10), async {
                while !is_so(self) {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            });
            waited
                .await
                .unwrap_or_else(|_| panic!("not {what}: {:?}", self.cookies()));
        }
    }

    #[tokio::test]
    async fn cookies_are_those_of_endpoints_and_complete_when_these_are_restored() {
        let bench = Bench::start().await;
        bench.put(7, 4711, Phase::Restored);
        bench.put(8, 0, Phase::Live);
        bench
            .until("known", |bench| bench.cookies() == ["shop/cart-7 Some(4711)"])
            .await;
        assert!(!bench.is_complete(), "others may be restored");

        let mut txn = bench.db.write(&[&bench.endpoints]);
        txn.initialized(&bench.restore).unwrap();
        txn.commit();
        bench.until("complete", Bench::is_complete).await;

        bench.put(7, 4711, Phase::Disconnecting);
        bench.until("gone", |bench| bench.cookies().is_empty()).await;
        hive::testing::stop(bench.running).await;
    }
}

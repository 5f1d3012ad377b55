// SPDX-License-Identifier: Apache-2.0

//! What is left to do while map operations fail.

use super::*;

#[test]
fn empty_maps_mean_that_nothing_is_left_to_do() {
    let fake: Arc<dyn LbMaps> = Arc::new(FakeMaps::default());
    let faulty: Arc<dyn LbMaps> = Arc::new(FaultyMaps::new(fake.clone(), 0.2));
    let mut ops = annotated(&faulty);
    let mut service = Service::new(ServiceName::new("shop", "web"), Source::Kubernetes);
    service.session_affinity = true;
    service.source_ranges = Some(Arc::from([
        "10.0.0.0/8".parse().unwrap(),
        "192.0.2.0/24".parse().unwrap(),
    ]));
    let active = |n: u8| backend(&format!("10.20.0.{n}:8080/TCP"), BackendState::Active);
    let frontends = [
        ("0.0.0.0:30080/TCP", FrontendKind::NodePort),
        ("10.50.0.9:80/TCP", FrontendKind::ClusterIp),
        ("172.30.0.9:80/TCP", FrontendKind::LoadBalancer),
    ]
    .map(|(address, kind)| frontend_of(service.clone(), address, kind, &[active(5), active(6)]));

    for _ in 0..200 {
        let mut left: Vec<&Frontend> = frontends.iter().collect();
        while !left.is_empty() {
            left.iter().for_each(|frontend| ops.upsert(frontend, &node()));
            let mut results = ops.finish().into_iter();
            left.retain(|_| results.next().unwrap().is_err());
        }
        let mut left: Vec<&Frontend> = frontends.iter().collect();
        while !left.is_empty() {
            left.iter().for_each(|frontend| ops.remove(frontend.address()));
            let mut results = ops.finish().into_iter();
            left.retain(|_| results.next().unwrap().is_err());
            if dump(&fake).is_empty() {
                assert_eq!(ops.summary(), Summary::default());
            }
        }
        assert_eq!(dump(&fake), "");
    }
}

#[test]
fn deletions_that_fail_do_not_pile_up() {
    let fake: Arc<dyn LbMaps> = Arc::new(FakeMaps::default());
    let faulty: Arc<dyn LbMaps> = Arc::new(FaultyMaps::new(fake.clone(), 0.3));
    let mut service = Service::new(ServiceName::new("shop", "web"), Source::Kubernetes);
    service.session_affinity = true;
    let in_state = |state| {
        let rows = [5, 6, 7].map(|n| backend(&format!("10.20.0.{n}:8080/TCP"), state));
        frontend_of(
            service.clone(),
            "10.50.0.9:80/TCP",
            FrontendKind::ClusterIp,
            &rows,
        )
    };
    let states = [BackendState::Active, BackendState::Terminating].map(in_state);

    for _ in 0..20 {
        let mut ops = ops(&faulty);
        for state in &states {
            let is_written = (0..5000).any(|_| {
                ops.upsert(state, &());
                ops.finish().iter().all(Result::is_ok)
            });
            assert!(is_written);
        }
        assert!(!dump(&fake).contains("AFF:"), "{}", dump(&fake));
    }
}

// SPDX-License-Identifier: Apache-2.0

//! When the cell runs its job.

use hive::{Cell, Hive, Settings};
use skep_loadbalancer_model::Writer;

use super::surroundings;
use crate::control::INITIALIZER;

/// Jobs of the cell, and its source of frontends if that is awaited.
async fn started(flags: &[&str]) -> (Vec<String>, Vec<String>) {
    let source = |writer: Writer| writer.register_initializer("k8s-services").map(std::mem::forget);
    let source = Cell::module("source", "Has not delivered yet").run(source);
    let cells = surroundings().into_iter().chain([crate::cell(), source]);
    let settings = Settings::new().args(flags.iter().copied());
    let running = hive::testing::start_with(Hive::new(cells).root::<Writer>(), settings).await;
    let writer: Writer = running.get().unwrap();
    let jobs = running.controller().jobs();
    let of_cell = jobs
        .iter()
        .filter(|job| job.module.to_string() == "loadbalancer-healthserver");
    let mut sources = writer.frontends().pending_initializers(&writer.db().read());
    sources.retain(|source| source == INITIALIZER);
    (of_cell.map(|job| job.name.to_string()).collect(), sources)
}

#[tokio::test]
async fn runs_with_the_replacement_of_kube_proxy_unless_switched_off() {
    let none: Vec<String> = Vec::new();
    let job = vec!["control-loop".to_owned()];
    let replacement = "--kube-proxy-replacement=true";

    assert_eq!(started(&[replacement]).await, (job.clone(), none.clone()));
    assert_eq!(
        started(&[replacement, "--enable-health-check-loadbalancer-ip=true"]).await,
        (job, vec![INITIALIZER.to_owned()])
    );
    assert_eq!(
        started(&["--kube-proxy-replacement=false"]).await,
        (none.clone(), none.clone())
    );
    let off = "--enable-health-check-nodeport=false";
    assert_eq!(started(&[replacement, off]).await, (none.clone(), none));
}

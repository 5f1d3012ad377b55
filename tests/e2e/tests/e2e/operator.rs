// SPDX-License-Identifier: Apache-2.0

//! The operator of a lab.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use skep_e2e::{TestLab, lab_options};
use skep_k8s_types::Kind;
use skep_lab::lab_options::LabOptions;

static LEASES: Kind = Kind::new("coordination.k8s.io", "v1", "Lease", "leases", true);

#[tokio::test(flavor = "multi_thread")]
async fn a_lab_with_an_operator_is_up_when_that_leads() {
    let lab = TestLab::up_with(
        "operator",
        LabOptions {
            operator: true,
            operator_config: vec!["identity-management-mode=operator".to_owned()],
            ..lab_options(1, &[], None)
        },
    )
    .await;

    let client = lab.session.client();
    let lease = client
        .get(&LEASES, "kube-system", "cilium-operator-resource-lock")
        .await
        .unwrap();

    let lease = lease.to_value().unwrap();
    let holder = lease["spec"]["holderIdentity"].as_str();
    assert!(holder.is_some_and(|holder| !holder.is_empty()), "{lease}");
}

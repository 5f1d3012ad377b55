// SPDX-License-Identifier: Apache-2.0

//! Settings.

use hive::{Hive, Settings};

use super::world::seconds;
use crate::Config;

fn config(flags: &[&str]) -> Result<Config, String> {
    let cell = hive::Cell::module("leader-election", "Elects").config::<Config>();
    let plan = Hive::new([cell])
        .plan(Settings::new().args(flags.iter().copied()))
        .map_err(|report| report.to_string())?;
    Ok(plan.config::<Config>().unwrap().clone())
}

#[test]
fn defaults_are_those_of_cilium() {
    let settings = config(&[]).unwrap().settings("a".to_owned());

    assert_eq!(settings.namespace, "default");
    assert_eq!(settings.name, "cilium-operator-resource-lock");
    assert_eq!(settings.lease_duration, seconds(15));
    assert_eq!(settings.renew_deadline, seconds(10));
    assert_eq!(settings.retry_period, seconds(2));
    assert_eq!(settings.request_timeout, seconds(5));
}

#[test]
fn requests_have_a_second_at_least_and_what_is_configured() {
    let quick = [
        "--leader-election-renew-deadline=1500ms",
        "--leader-election-retry-period=1s",
        "--k8s-namespace=kube-system",
    ];
    let settings = config(&quick).unwrap().settings("a".to_owned());
    assert_eq!(settings.request_timeout, seconds(1));
    assert_eq!(settings.namespace, "kube-system");

    let own = config(&["--leader-election-resource-lock-timeout=3s"]).unwrap();
    assert_eq!(own.settings("a".to_owned()).request_timeout, seconds(3));
}

#[test]
fn times_that_cannot_work_are_errors() {
    let cases = [
        (
            "--leader-election-lease-duration=10s",
            "leader-election-renew-deadline",
        ),
        (
            "--leader-election-lease-duration=100ms",
            "leader-election-lease-duration",
        ),
        (
            "--leader-election-retry-period=0s",
            "leader-election-retry-period",
        ),
        (
            "--leader-election-retry-period=9s",
            "leader-election-retry-period",
        ),
    ];
    for (flag, names) in cases {
        let report = config(&[flag]).expect_err(flag);
        assert!(report.contains(&format!("`--{names}`")), "{flag}: {report}");
    }
}

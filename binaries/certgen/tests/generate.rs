// SPDX-License-Identifier: Apache-2.0

//! The program against an API server in memory.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use base64::{Engine as _, prelude::BASE64_STANDARD};
use clap::Parser;
use serde_json::{Value, json};
use skep_certgen::{GenerateError, Options, generate};
use skep_k8s_memory::testing::TestCluster;
use skep_k8s_types::Kind;
use x509_parser::{pem::parse_x509_pem, prelude::GeneralName};

const CERTS: &str = "certs:
- name: clustermesh-apiserver-server-cert
  namespace: kube-system
  commonName: clustermesh-apiserver.kube-system.svc
  hosts: [clustermesh-apiserver.kube-system.svc, '*.mesh.cilium.io', 127.0.0.1, '::1']
  usage: [signing, key encipherment, server auth]
  validity: 8760h
- name: clustermesh-apiserver-remote-cert
  namespace: kube-system
  commonName: remote-east
  usage: [signing, key encipherment, client auth]
  validity: 8760h
";

fn options(more: &[&str]) -> Options {
    let chart = [
        "skep-certgen",
        "--ca-reuse-secret",
        "--ca-secret-namespace=kube-system",
        "--ca-secret-name=cilium-ca",
        "--ca-common-name=Cilium CA",
        "--ca-enforce-validity-throughout-leaves-duration=true",
        "--config",
        CERTS,
    ];
    Options::parse_from(chart.iter().chain(more))
}

async fn pem(cluster: &TestCluster, secret: &str, key: &str) -> String {
    let secret = cluster.get(&Kind::SECRET, "kube-system", secret).await;
    let text = secret["data"][key]
        .as_str()
        .unwrap_or_else(|| panic!("{key} in {secret}"));
    String::from_utf8(BASE64_STANDARD.decode(text).unwrap()).unwrap()
}

async fn store(cluster: &TestCluster, certificate: &str, key: &str) {
    let data =
        json!({ "ca.crt": BASE64_STANDARD.encode(certificate), "ca.key": BASE64_STANDARD.encode(key) });
    let object: Value =
        json!({ "metadata": { "namespace": "kube-system", "name": "cilium-ca" }, "data": data });
    cluster.create(&Kind::SECRET, object).await;
}

#[tokio::test]
async fn creates_then_renews_under_one_authority() {
    let cluster = TestCluster::new();
    cluster.namespace("kube-system").await;

    generate(cluster.client(), &options(&["--ca-generate=true"]))
        .await
        .unwrap();
    let (authority, first) = (
        pem(&cluster, "cilium-ca", "ca.crt").await,
        pem(&cluster, "clustermesh-apiserver-server-cert", "tls.crt").await,
    );
    generate(cluster.client(), &options(&["--ca-generate=true"]))
        .await
        .unwrap();
    let second = pem(&cluster, "clustermesh-apiserver-server-cert", "tls.crt").await;

    assert_ne!(first, second);
    assert_eq!(authority, pem(&cluster, "cilium-ca", "ca.crt").await);
    assert_eq!(
        authority,
        pem(&cluster, "clustermesh-apiserver-remote-cert", "ca.crt").await
    );
    let (_, authority) = parse_x509_pem(authority.as_bytes()).unwrap();
    let (_, second) = parse_x509_pem(second.as_bytes()).unwrap();
    let (authority, second) = (authority.parse_x509().unwrap(), second.parse_x509().unwrap());
    assert_eq!(second.issuer(), authority.subject());
    assert_eq!(
        second.subject().to_string(),
        "CN=clustermesh-apiserver.kube-system.svc"
    );
    let names = second.subject_alternative_name().unwrap().unwrap();
    let (dns, addresses): (Vec<_>, Vec<_>) = names
        .value
        .general_names
        .iter()
        .partition(|name| matches!(name, GeneralName::DNSName(_)));
    assert_eq!((dns.len(), addresses.len()), (2, 2));
    let usage = second.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.server_auth && !usage.client_auth);
    let days = (second.validity().not_after.timestamp() - second.validity().not_before.timestamp()) / 86_400;
    assert_eq!(days, 365);
}

/// Keys of Helm and cfssl.
#[tokio::test]
async fn uses_authorities_of_helm_and_cfssl() {
    for (certificate, key) in [
        (include_str!("testdata/rsa.crt"), include_str!("testdata/rsa.key")),
        (include_str!("testdata/ec.crt"), include_str!("testdata/ec.key")),
    ] {
        let cluster = TestCluster::new();
        cluster.namespace("kube-system").await;
        store(&cluster, certificate, key).await;

        generate(cluster.client(), &options(&[])).await.unwrap();

        let leaf = pem(&cluster, "clustermesh-apiserver-remote-cert", "tls.crt").await;
        let (_, authority) = parse_x509_pem(certificate.as_bytes()).unwrap();
        let (_, leaf) = parse_x509_pem(leaf.as_bytes()).unwrap();
        let (authority, leaf) = (authority.parse_x509().unwrap(), leaf.parse_x509().unwrap());
        assert_eq!(leaf.issuer(), authority.subject());
    }
}

#[tokio::test]
async fn without_generate_an_authority_is_required() {
    let cluster = TestCluster::new();
    cluster.namespace("kube-system").await;

    let refused = generate(cluster.client(), &options(&[])).await;

    assert!(
        matches!(refused, Err(GenerateError::Authority { .. })),
        "{refused:?}"
    );
}

#[tokio::test]
async fn authority_that_expires_early_is_replaced() {
    let cluster = TestCluster::new();
    cluster.namespace("kube-system").await;
    let short = options(&["--ca-generate=true", "--ca-validity-duration=24h"]);
    generate(cluster.client(), &short).await.unwrap();
    let before = pem(&cluster, "cilium-ca", "ca.crt").await;

    let lines = generate(cluster.client(), &options(&["--ca-generate=true"]))
        .await
        .unwrap();

    assert_ne!(before, pem(&cluster, "cilium-ca", "ca.crt").await);
    assert!(
        lines[0].contains("it expires before certificates would"),
        "{lines:?}"
    );
}

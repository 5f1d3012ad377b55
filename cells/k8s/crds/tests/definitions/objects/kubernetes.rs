// SPDX-License-Identifier: Apache-2.0

//! What `kubectl` shows: tables by the printer columns, and names.

use serde_json::{Value, json};
use skep_k8s_apiserver::{HttpOptions, HttpServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::Cluster;

/// The answer to a GET with an `Accept` header.
async fn get(address: std::net::SocketAddr, path: &str, accept: &str) -> Value {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nAccept: {accept}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let start = answer.find("\r\n\r\n").unwrap();
    let body: String = if answer[..start]
        .to_lowercase()
        .contains("transfer-encoding: chunked")
    {
        let mut rest = &answer[start + 4..];
        let mut body = String::new();
        while let Some((size, after)) = rest.split_once("\r\n") {
            let size = usize::from_str_radix(size, 16).unwrap();
            body.push_str(&after[..size]);
            rest = after[size..].trim_start_matches("\r\n");
        }
        body
    } else {
        answer[start + 4..].to_owned()
    };
    serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

#[tokio::test]
async fn tables_have_the_columns_of_the_definitions() {
    let cluster = Cluster::new();
    let pool = json!({ "spec": { "blocks": [] } });
    cluster.create("CiliumLoadBalancerIPPool", pool).unwrap();
    let node = json!({ "spec": { "addresses": [{ "type": "CiliumInternalIP", "ip": "10.0.0.1" }, { "type": "InternalIP", "ip": "192.0.2.1" }] } });
    cluster.create("CiliumNode", node).unwrap();
    let endpoint = json!({ "status": { "state": "ready", "identity": { "id": 7 }, "networking": { "addressing": [{ "ipv4": "10.0.0.9" }] } } });
    cluster.create("CiliumEndpoint", endpoint).unwrap();
    let identity =
        json!({ "metadata": { "labels": { "io.kubernetes.pod.namespace": "shop" } }, "security-labels": {} });
    cluster.create("CiliumIdentity", identity).unwrap();
    cluster
        .create("CiliumCIDRGroup", json!({ "spec": { "externalCIDRs": [] } }))
        .unwrap();
    let server = HttpServer::bind(
        "127.0.0.1:0".parse().unwrap(),
        cluster.0.clone(),
        HttpOptions::default(),
    )
    .unwrap();
    let address = server.address();
    let stop = tokio_util::sync::CancellationToken::new();
    let serving = server.serve(stop.clone());
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";

    let check = async {
        for (path, columns, cells) in [
            (
                "/apis/cilium.io/v2/ciliumloadbalancerippools",
                json!(["Name", "Disabled", "Conflicting", "IPs Available", "Age"]),
                json!(["x", false, null, null]),
            ),
            (
                "/apis/cilium.io/v2/ciliumnodes",
                json!(["Name", "CiliumInternalIP", "InternalIP", "Age"]),
                json!(["x", "10.0.0.1", "192.0.2.1"]),
            ),
            (
                "/apis/cilium.io/v2/namespaces/default/ciliumendpoints",
                json!([
                    "Name",
                    "Security Identity",
                    "Ingress Enforcement",
                    "Egress Enforcement",
                    "Endpoint State",
                    "IPv4",
                    "IPv6"
                ]),
                json!(["x", 7, null, null, "ready", "10.0.0.9", null]),
            ),
            (
                "/apis/cilium.io/v2/ciliumidentities",
                json!(["Name", "Namespace", "Age"]),
                json!(["x", "shop"]),
            ),
            (
                "/apis/cilium.io/v2/ciliumcidrgroups",
                json!(["Name", "Age"]),
                json!(["x"]),
            ),
        ] {
            let answer = get(address, path, table).await;
            let names: Vec<&Value> = answer["columnDefinitions"]
                .as_array()
                .unwrap()
                .iter()
                .map(|column| &column["name"])
                .collect();
            assert_eq!(json!(names), columns, "{path}");
            let found = answer["rows"][0]["cells"].as_array().unwrap();
            let cells = cells.as_array().unwrap();
            assert_eq!(&found[..cells.len()], &cells[..], "{path}");
        }
        let metadata = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json";
        let list = get(
            address,
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            metadata,
        )
        .await;
        assert_eq!(list["kind"], "PartialObjectMetadataList");
        assert!(list["items"][0].get("spec").is_none() && list["items"].as_array().unwrap().len() == 24);
        let resources = get(address, "/apis/cilium.io/v2", "application/json").await;
        let resources = resources["resources"].as_array().unwrap();
        let policy = resources
            .iter()
            .find(|r| r["name"] == "ciliumnetworkpolicies")
            .unwrap();
        assert_eq!(policy["shortNames"], json!(["cnp", "ciliumnp"]));
        assert_eq!(policy["categories"], json!(["cilium", "ciliumpolicy"]));
        assert!(
            resources.iter().all(|r| r["name"] != "ciliumpodippools"),
            "v2 of it is not served"
        );
        stop.cancel();
    };
    tokio::join!(serving, check);
}

// SPDX-License-Identifier: Apache-2.0

//! Values that Cilium wrote, read and written again; and values that its readers reject.

use prost::Message;
use serde_json::Value;
use skep_clustermesh_types::{
    CiliumClusterConfig, ClusterEndpointSlice, ClusterInfo, ClusterService, Identity, IpIdentityPair, Kind,
    MaxConnectedClusters, Node, RemoteInfo, ServiceExport, ValueError, keys,
};

fn cases(part: &str) -> Vec<Value> {
    let cases: Value =
        serde_json::from_str(include_str!("../../testdata/golden.json")).expect("the file is JSON");
    cases[part].as_array().expect("there is such a part").clone()
}

fn text<'a>(case: &'a Value, field: &str) -> &'a str {
    case[field].as_str().expect("it is a text")
}

fn bytes(hex: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("it is hexadecimal");
    (0..hex.len()).step_by(2).map(byte).collect()
}

fn alder() -> RemoteInfo {
    remote("alder", 7)
}

fn remote(name: &str, id: u32) -> RemoteInfo {
    RemoteInfo {
        name: name.parse().expect("it is valid"),
        id,
        max_connected_clusters: MaxConnectedClusters::Max255,
    }
}

/// The cluster of a key, and the name below its prefix.
fn name_of(kind: Kind, key: &str) -> (RemoteInfo, String) {
    for remote in [alder(), remote("birch", 9)] {
        for is_cached in [false, true] {
            let prefix = kind.prefix(remote.name.as_str(), is_cached);
            if let Some(name) = key.strip_prefix(&prefix).and_then(|rest| rest.strip_prefix('/')) {
                return (remote, name.to_owned());
            }
        }
    }
    panic!("{key} is not of {kind}");
}

/// Reads a value and writes it again.
fn rewrite(kind: Kind, key: &str, value: &[u8]) -> Result<Vec<u8>, ValueError> {
    let (remote, name) = name_of(kind, key);
    match kind {
        Kind::Services => ClusterService::decode(&remote, &name, value)?.encode(),
        Kind::Nodes => Node::decode(&remote, &name, value)?.encode(),
        Kind::Ips => IpIdentityPair::decode(&remote, &name, value)?.encode(),
        Kind::ServiceExports => ServiceExport::decode(&remote, &name, value)?.encode(),
        Kind::Identities => Ok(Identity::decode(&remote, &name, value)?.encode()),
        Kind::EndpointSlices => Ok(ClusterEndpointSlice::decode_value(&remote, &name, value)?.encode_value()),
    }
}

#[track_caller]
fn assert_same_bytes(part: &str, kind: Kind, exceptions: &[(&str, &str)]) {
    for case in cases(part) {
        let (name, key, value) = (text(&case, "name"), text(&case, "key"), text(&case, "value"));
        let exception = exceptions.iter().find(|(exception, _)| *exception == name);
        let expected = exception.map_or(value, |(_, expected)| expected);

        let written =
            rewrite(kind, key, value.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error:?}"));

        assert_eq!(String::from_utf8_lossy(&written), expected, "{name}");
    }
}

#[test]
fn services_are_written_as_they_were_read() {
    assert_same_bytes(
        "service",
        Kind::Services,
        &[
            // Readers take `null` for empty; writers never write it.
            (
                "null-maps",
                r#"{"cluster":"alder","namespace":"shop","name":"cart","frontends":{},"backends":{},"labels":{},"selector":{},"includeExternal":false,"shared":false,"clusterID":7}"#,
            ),
            (
                "tolerant-order",
                r#"{"cluster":"alder","namespace":"shop","name":"cart","frontends":{},"backends":{"10.4.1.15":{"http":{"Protocol":"TCP","Port":8080}}},"labels":{},"selector":{},"includeExternal":true,"shared":true,"clusterID":7}"#,
            ),
        ],
    );
}

#[test]
fn nodes_are_written_as_they_were_read() {
    assert_same_bytes("node", Kind::Nodes, &[]);
}

#[test]
fn addresses_are_written_as_they_were_read() {
    assert_same_bytes("ip", Kind::Ips, &[]);
}

#[test]
fn service_exports_are_written_as_they_were_read() {
    assert_same_bytes("serviceexport", Kind::ServiceExports, &[]);
}

#[test]
fn identities_are_written_as_they_were_read() {
    for case in cases("identity") {
        let (key, value) = (text(&case, "key"), text(&case, "value"));
        // Readers of other clusters do not read who uses an identity.
        if key.contains("/value/") {
            continue;
        }
        let written = rewrite(Kind::Identities, key, value.as_bytes()).expect("it is valid");
        assert_eq!(written, value.as_bytes());
    }
}

#[test]
fn cluster_configurations_are_written_as_they_were_read() {
    for case in cases("cluster-config") {
        let value = text(&case, "value");
        let config = CiliumClusterConfig::decode(value.as_bytes()).expect("it is valid");
        assert_eq!(config.encode().expect("it is JSON"), value.as_bytes());
    }
}

#[test]
fn endpoint_slices_have_the_same_content_when_written_again() {
    for case in cases("endpointslice") {
        let (name, key) = (text(&case, "name"), text(&case, "key"));
        let (remote, object) = name_of(Kind::EndpointSlices, key);

        let slice = ClusterEndpointSlice::decode_value(&remote, &object, &bytes(text(&case, "value_hex")))
            .unwrap_or_else(|error| panic!("{name}: {error:?}"));

        assert_eq!(
            slice.encode_to_vec(),
            bytes(text(&case, "protobuf_hex")),
            "{name}"
        );
        assert_eq!(slice.key_name(), object);
        let decoded = &case["decoded"];
        assert_eq!(
            slice.service(),
            decoded["labels"]["kubernetes.io/service-name"].as_str()
        );
        assert_eq!(
            slice.endpoints.len(),
            decoded["endpoints"].as_array().map_or(0, Vec::len)
        );
        let written = slice.encode_value();
        assert!(written.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]), "{written:?}");
        let again = ClusterEndpointSlice::decode_value(&remote, &object, &written).expect("it is valid");
        assert_eq!(again, slice);
    }
}

#[test]
fn cached_copies_are_read_like_the_originals() {
    let mut seen = Vec::new();
    for case in cases("cache") {
        let key = text(&case, "key");
        let Some(kind) = Kind::ALL
            .into_iter()
            .find(|kind| key.starts_with(kind.cache_prefix()))
        else {
            continue;
        };
        let value = match case.get("value_hex") {
            Some(hex) => bytes(hex.as_str().expect("it is a text")),
            None => text(&case, "value").as_bytes().to_vec(),
        };
        rewrite(kind, key, &value).unwrap_or_else(|error| panic!("{key}: {error:?}"));
        let (_, name) = name_of(kind, key);
        assert_eq!(kind.key("alder", true, &name), key);
        seen.push(kind);
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, {
        let mut all = Kind::ALL;
        all.sort_unstable();
        all
    });
}

#[test]
fn canaries_and_configurations_are_under_ciliums_keys() {
    let written: Vec<String> = cases("control")
        .iter()
        .map(|case| text(case, "key").to_owned())
        .collect();

    let ours: Vec<String> = Kind::ALL
        .into_iter()
        .flat_map(|kind| [false, true].map(|is_cached| keys::canary("alder", kind, is_cached)))
        .collect();
    for kind in Kind::ALL {
        assert!(written.contains(&keys::canary("alder", kind, false)), "{kind}");
    }
    let prefix = keys::canary_prefix("alder");
    for key in written.iter().filter(|key| key.starts_with(&prefix)) {
        assert!(ours.contains(key), "{key}");
    }
    for case in cases("cluster-config")
        .iter()
        .filter(|case| case["name"] == "operator-kvstore-mode")
    {
        assert_eq!(text(case, "key"), keys::cluster_config("birch"));
    }
}

/// What a reader does with a value, and why it rejects it.
fn outcome(key: &str, value: &[u8]) -> Result<(), String> {
    let local = ClusterInfo {
        name: "birch".parse().expect("it is valid"),
        id: 9,
        max_connected_clusters: MaxConnectedClusters::Max255,
    };
    if key == keys::cluster_config("alder") {
        let config = CiliumClusterConfig::decode(value).map_err(|error| error.to_string())?;
        return config
            .check(&alder().name, &local)
            .map_err(|error| error.to_string());
    }
    let kind = Kind::ALL
        .into_iter()
        .find(|kind| key.starts_with(kind.state_prefix()));
    rewrite(kind.expect("it has a kind"), key, value)
        .map(drop)
        .map_err(|error| error.to_string())
}

#[test]
fn readers_reject_what_ciliums_readers_reject() {
    for case in cases("invalid") {
        let (name, expect) = (text(&case, "name"), text(&case, "expect"));
        let result = outcome(text(&case, "key"), text(&case, "value").as_bytes());
        assert_eq!(result.is_err(), expect == "reject", "{name}: {result:?}");
    }
}

#[test]
fn rejections_say_why() {
    for (name, expected) in [
        (
            "service-wrong-cluster",
            "unexpected cluster name: got `cedar`, expected `alder`",
        ),
        ("service-wrong-id", "unexpected cluster id: got 8, expected 7"),
        (
            "service-wrong-name",
            "name `shop/other` does not match key `shop/cart`",
        ),
        ("service-no-namespace", "namespace is empty"),
        ("service-truncated", "unable to unmarshal JSON"),
        (
            "node-wrong-cluster",
            "unexpected cluster name: got `cedar`, expected `alder`",
        ),
        (
            "ip-key-mismatch",
            "name `10.4.1.15` does not match key `10.4.1.99`",
        ),
        (
            "ip-foreign-identity",
            "identity 600000 is outside of the range 458752 to 524287 of the cluster",
        ),
        (
            "identity-no-cluster-label",
            "unexpected cluster name: got ``, expected `alder`",
        ),
        ("identity-not-a-number", "`abc` is not an identity"),
        ("identity-empty", "labels is empty"),
        ("export-bad-type", "unsupported type `Weird`"),
        ("endpointslice-plain-json", "unable to decompress"),
    ] {
        let case = cases("invalid")
            .into_iter()
            .find(|case| case["name"] == name)
            .expect(name);
        let error = outcome(text(&case, "key"), text(&case, "value").as_bytes()).expect_err(name);
        assert_eq!(error, expected, "{name}");
    }
}

#[test]
fn ports_that_are_null_are_skipped() {
    let case = cases("invalid")
        .into_iter()
        .find(|case| case["name"] == "service-null-port")
        .expect("it is there");

    let service =
        ClusterService::decode(&alder(), "shop/cart", text(&case, "value").as_bytes()).expect("it is valid");

    assert_eq!(service.backends.len(), 1);
    assert!(service.backends.values().all(|ports| ports.is_empty()));
}

#[test]
fn the_host_of_another_cluster_is_a_remote_node() {
    let case = cases("invalid")
        .into_iter()
        .find(|case| case["name"] == "ip-reserved-identity")
        .expect("it is there");

    let pair =
        IpIdentityPair::decode(&alder(), "10.4.1.15", text(&case, "value").as_bytes()).expect("it is valid");

    assert_eq!((pair.id, pair.identity()), (1, 6));
}

#[test]
fn prefixes_differ_from_addresses() {
    let pair = |mask: Option<&str>| IpIdentityPair {
        ip: Some([10, 4, 1, 15].into()),
        mask: mask.map(Into::into),
        ..IpIdentityPair::default()
    };

    assert_eq!(pair(None).key_name().expect("valid"), "10.4.1.15");
    assert_eq!(pair(Some("/////w==")).key_name().expect("valid"), "10.4.1.15/32");
    assert_eq!(pair(Some("//8AAA==")).key_name().expect("valid"), "10.4.1.15/16");
    pair(Some("/w==")).key_name().expect_err("the mask is too short");
    let net = "10.4.0.0/16".parse().expect("valid");
    assert_eq!(IpIdentityPair::mask_of(net), "//8AAA==");
}

#[test]
fn addresses_in_ipv6_form_are_ipv4() {
    let value = br#"{"IP":"::ffff:10.4.1.15","HostIP":"::ffff:192.168.50.21","ID":459001}"#;

    let pair = IpIdentityPair::decode(&alder(), "10.4.1.15", value).expect("it is valid");

    assert_eq!(pair.host_ip, Some([192, 168, 50, 21].into()));
}

#[test]
fn exports_of_old_writers_have_the_other_spelling_alone() {
    let value = br#"{"cluster":"alder","name":"cart","namespace":"shop","Labels":{"a":"b"},"Annotations":{"c":"d"},"exportCreationTimestamp":"2026-06-01T09:30:00Z","ports":null,"type":"ClusterSetIP","sessionAffinity":"None"}"#;

    let export = ServiceExport::decode(&alder(), "shop/cart", value).expect("it is valid");

    assert_eq!(export.labels["a"], "b");
    assert_eq!(export.annotations["c"], "d");
    let both = br#"{"cluster":"alder","name":"cart","namespace":"shop","labels":{"a":"new"},"Labels":{"a":"old"},"exportCreationTimestamp":"2026-06-01T09:30:00Z","ports":null,"type":"ClusterSetIP","sessionAffinity":"None"}"#;
    let export = ServiceExport::decode(&alder(), "shop/cart", both).expect("it is valid");
    assert_eq!(export.labels["a"], "new");
}

#[test]
fn exports_need_valid_texts_and_a_time() {
    let base = r#"{"cluster":"alder","name":"cart","namespace":"shop","exportCreationTimestamp":"2026-06-01T09:30:00Z","ports":[{"protocol":"TCP","port":1}],"type":"ClusterSetIP","sessionAffinity":"None","ipFamilies":["IPv4"],"internalTrafficPolicy":"Local","trafficDistribution":"PreferSameNode"}"#;
    let decode = |value: &str| ServiceExport::decode(&alder(), "shop/cart", value.as_bytes());
    decode(base).expect("it is valid");

    for (from, to) in [
        ("\"TCP\"", "\"tcp\""),
        ("\"None\"", "\"Never\""),
        ("\"IPv4\"", "\"IPv5\""),
        ("\"Local\"", "\"Near\""),
        ("\"PreferSameNode\"", "\"\""),
        ("\"2026-06-01T09:30:00Z\"", "null"),
        ("\"2026-06-01T09:30:00Z\"", "\"yesterday\""),
        ("\"cart\"", "\"\""),
    ] {
        decode(&base.replace(from, to)).expect_err(to);
    }
}

#[test]
fn endpoint_slices_have_addresses_of_their_type() {
    let case = cases("endpointslice")
        .into_iter()
        .find(|case| case["name"] == "small")
        .expect("it is there");
    let name = "shop/cart-x7k2p";
    let slice =
        ClusterEndpointSlice::decode_value(&alder(), name, &bytes(text(&case, "value_hex"))).expect("valid");
    let rejected = |change: &dyn Fn(&mut ClusterEndpointSlice)| {
        let mut slice = slice.clone();
        change(&mut slice);
        ClusterEndpointSlice::decode_value(&alder(), name, &slice.encode_value())
            .expect_err("it is invalid")
            .to_string()
    };

    assert_eq!(
        rejected(&|slice| slice.address_type = Some("FQDN".into())),
        "unsupported addressType `FQDN`"
    );
    assert_eq!(
        rejected(&|slice| slice.address_type = Some("IPv6".into())),
        "invalid addresses `10.4.1.15`"
    );
    assert_eq!(
        rejected(&|slice| slice.endpoints[0].addresses[0] = "x".into()),
        "invalid addresses `x`"
    );
    assert_eq!(
        rejected(&|slice| slice.cluster_id = Some(9)),
        "unexpected cluster id: got 9, expected 7"
    );
    assert_eq!(
        rejected(&|slice| slice.cluster = Some("birch".into())),
        "unexpected cluster name: got `birch`, expected `alder`"
    );
    assert_eq!(
        rejected(&|slice| slice.name = Some("other".into())),
        "name `shop/other` does not match key `shop/cart-x7k2p`"
    );
}

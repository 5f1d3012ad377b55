// SPDX-License-Identifier: Apache-2.0

//! Definitions of Cilium's kinds, as its operator registers them.

use serde_json::Value;
use skep_k8s_crds::{Definition, definitions};

pub(super) fn all() -> Vec<Value> {
    definitions::cilium().iter().map(Definition::to_object).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use skep_k8s_apiserver::OpenApiSchemas;
    use skep_k8s_memory::{
        ApiServer, Gvr, Mode, Registry, Rows, Settings, Subresource, Tracker, WriteOptions,
    };
    use statedb::Db;

    use super::*;

    fn server() -> ApiServer {
        let tracker = Tracker::new(Rows::new(&Db::new()).unwrap(), 100, false);
        let settings = Settings {
            schemas: Some(Arc::new(OpenApiSchemas)),
            ..Settings::default()
        };
        let api = ApiServer::new(tracker, Registry::builtin(), Mode::Real(settings));
        let kind = Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions");
        for definition in all() {
            let name = definition["metadata"]["name"].clone();
            if let Err(error) = api.create(&kind, "", definition, &WriteOptions::default()) {
                panic!("{name}: {error}");
            }
        }
        api
    }

    #[test]
    fn objects_of_ciliums_kinds_are_checked() {
        let api = server();
        let policies = Gvr::new("cilium.io", "v2", "ciliumlocalredirectpolicies");
        let policy = |port: Value, matcher: Value| {
            json!({
                "apiVersion": "cilium.io/v2", "kind": "CiliumLocalRedirectPolicy", "metadata": { "name": "p" },
                "spec": {
                    "redirectFrontend": matcher,
                    "redirectBackend": {
                        "localEndpointSelector": { "matchLabels": { "app": "dns" } },
                        "toPorts": [{ "port": port, "protocol": "UDP" }],
                    },
                },
            })
        };
        let address = json!({ "addressMatcher": {
            "ip": "169.254.20.10", "toPorts": [{ "port": "53", "protocol": "UDP" }] } });
        let options = WriteOptions::default();
        let create = |object: Value| api.create(&policies, "default", object, &options);

        for (object, reason) in [
            (policy(json!(53), address.clone()), "must be of type string"),
            (policy("53".into(), json!({})), "spec.redirectFrontend"),
            (
                policy(
                    "53".into(),
                    json!({ "addressMatcher": { "ip": "x", "toPorts": [] } }),
                ),
                "addressMatcher.ip",
            ),
        ] {
            let error = create(object).map(drop).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        let made = create(policy("53".into(), address)).unwrap().object;
        assert_eq!(made["spec"]["skipRedirectFromBackend"], false);

        let rules = Gvr::new("cilium.io", "v2", "ciliumnetworkpolicies");
        let rule = |spec: Value| json!({ "metadata": { "name": "r" }, "spec": spec });
        let error = api.create(
            &rules,
            "default",
            rule(json!({ "endpointSelector": 3, "ingress": [] })),
            &options,
        );
        assert!(error.is_err());
        let allow = json!({ "endpointSelector": {}, "ingress": [{ "fromEntities": ["host"] }] });
        api.create(&rules, "default", rule(allow), &options).unwrap();

        let nodes = Gvr::new("cilium.io", "v2", "ciliumnodes");
        let node = json!({ "metadata": { "name": "n" }, "spec": { "ipam": { "pool": { "10.0.0.1": {} } } } });
        api.create(&nodes, "", node, &options).unwrap();
        let status = json!({ "metadata": { "name": "n" }, "status": { "ipam": { "used": 3 } } });
        let refused = api.update(&nodes, "", "n", Subresource::Status, status, &options);
        assert!(refused.is_err());
    }
}

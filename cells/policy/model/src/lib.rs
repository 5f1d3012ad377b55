// SPDX-License-Identifier: Apache-2.0

//! Network policies as a library: what would these objects do for these identities? No Kubernetes client, no BPF, no hive.
//!
//! | step | module |
//! |---|---|
//! | objects are validated and turned into rules | [`object`], [`rule`] |
//! | rules that select a subject become filters: ports, peers, verdicts | [`resolve`], [`filter`], [`levels`] |
//! | selectors know the identities that they select | [`selector`], [`cache`] |
//! | filters and identities become map entries | [`map_state`], [`entries`] |
//! | all of it for the endpoints of a node, kept current | [`policies`] |
//! | which rules decide about a packet | [`explain`] |
//! | rules and filters in the form of Cilium's API | [`document`] |
//!
//! ```
//! use std::{collections::BTreeMap, sync::Arc};
//! use serde_json::json;
//! use skep_identity::{Labels, NumericIdentity};
//! use skep_policy_model::{Content, Context, Direction, IdentityLabels, Policies, PolicyObject, PolicySettings, Protocol};
//!
//! let mut policies = Policies::new(PolicySettings::default());
//! let labels = |text: &str| Arc::new(IdentityLabels::from(&text.parse::<Labels>().unwrap()));
//! let pod = |app: &str| labels(&format!("k8s:app={app};k8s:io.kubernetes.pod.namespace=shop;"));
//! let (web, api) = (NumericIdentity::new(1000), NumericIdentity::new(1001));
//! policies.update_identities([(web, pod("web")), (api, pod("api"))], [], &BTreeMap::new());
//! policies.set_endpoint(7, web, pod("web"), Default::default());
//!
//! let object = json!({
//!     "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": "p", "namespace": "shop" },
//!     "spec": { "podSelector": {}, "ingress": [{ "ports": [{ "port": 80 }] }] },
//! });
//! let context = Context { settings: policies.settings(), services: &[] };
//! let object = PolicyObject::parse(&object, &context)?;
//! if let Content::Rules(rules) = &object.content {
//!     policies.replace(&object.resource, Some(rules));
//! }
//! policies.refresh(&BTreeMap::new());
//!
//! let map = policies.map_of(7).ok_or("no map")?;
//! assert!(map.lookup(Direction::Ingress, api, Protocol::TCP, 80).is_some());
//! assert!(map.lookup(Direction::Ingress, api, Protocol::TCP, 81).is_none());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod cache;
pub mod document;
pub mod entries;
pub mod explain;
pub mod filter;
pub mod fqdn;
pub mod l7;
pub mod labels;
pub mod levels;
pub mod map_state;
pub mod object;
pub mod policies;
pub mod ports;
pub mod resolve;
pub mod rule;
pub mod selector;
pub mod settings;

pub use cache::SelectorCache;
pub use labels::IdentityLabels;
pub use map_state::{EndpointFacts, MapState};
pub use object::{Content, Context, ObjectError, PolicyObject, validate};
pub use policies::Policies;
pub use ports::Protocol;
pub use rule::{Direction, ResourceId, RuleSet};
pub use selector::Selector;
pub use settings::PolicySettings;

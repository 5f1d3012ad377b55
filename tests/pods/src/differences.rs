// SPDX-License-Identifier: Apache-2.0

//! Intended differences from the recordings, each with a name.

use std::net::IpAddr;

use serde_json::Value;

use crate::bindings::Mismatch;

/// Name, reason, and whether a difference is one of it.
type Named = (&'static str, &'static str, fn(&Mismatch) -> bool);

const NAMED: &[Named] = &[
    (
        "revisions",
        "Revisions of policies count what happened to a cluster before.",
        |mismatch| {
            let is_revision = ["revision", "/build"]
                .iter()
                .any(|end| mismatch.place.ends_with(end));
            let is_number = |value: &Value| value.as_u64().is_some_and(|number| number > 0);
            is_revision && is_number(&mismatch.expected) && is_number(&mismatch.found)
        },
    ),
    (
        TABLES,
        "Tables are those of this agent, with their columns.",
        |mismatch| mismatch.place.starts_with(TABLES),
    ),
    (
        NOW,
        "The status is of the moment of the request; Cilium's is some seconds old.",
        |mismatch| mismatch.place.starts_with(&format!("{NOW}/json/ipam/")),
    ),
    (
        "subsystems",
        "What subsystems tell for bug reports is in the words of this program.",
        |mismatch| mismatch.place.contains("json/subsystem/"),
    ),
    (
        "other-metrics",
        "Metrics of Go, and of parts that this program has not, or has with other insides.",
        |mismatch| {
            let Some(name) = mismatch.place.strip_prefix("metrics/") else {
                return false;
            };
            let expected = mismatch.expected.as_str().unwrap_or_default();
            let has_more = |found: &Value| {
                let found: Vec<&str> = found.as_str().unwrap_or_default().split(',').collect();
                expected.is_empty() || expected.split(',').all(|label| found.contains(&label))
            };
            let all = mismatch.found.as_array();
            // No revision of the build.
            name == "cilium_version"
                || mismatch.found.is_null()
                || all.is_some_and(|all| all.iter().any(has_more))
        },
    ),
    (
        "identities-of-before",
        "Identities of pods and names of earlier scenarios, and numbers of local ones, which count up.",
        |mismatch| {
            let values = [&mismatch.expected, &mismatch.found];
            let is_local = |id: &Value| id.is_null() || id.as_u64().is_some_and(|id| id > 0xff_ffff);
            let is_local = |value: &&Value| {
                is_local(value) || value.as_array().is_some_and(|ids| ids.iter().all(is_local))
            };
            let labels = mismatch.expected["labels"].as_array().into_iter().flatten();
            let mut labels = labels.filter_map(Value::as_str);
            let is_other = mismatch.expected["labels"].is_array()
                && !labels.any(|label| {
                    ["=gc-shop", "=gc-ops", "reserved:"]
                        .iter()
                        .any(|part| label.contains(part))
                });
            match mismatch.place.contains("identities") {
                true => {
                    mismatch.expected.is_number() && mismatch.found.is_null() || values.iter().all(is_local)
                }
                false => !mismatch.expected["id"].is_null() && mismatch.found.is_null() && is_other,
            }
        },
    ),
    (
        "options-of-before",
        "The recorded endpoint had options of earlier scenarios.",
        |mismatch| mismatch.place.ends_with("/options/debug") && mismatch.found.is_null(),
    ),
    (
        "aggregation-levels",
        "A level as a number is applied; Cilium accepts it, and keeps the level before.",
        |mismatch| {
            mismatch
                .place
                .ends_with("/realized/options/MonitorAggregationLevel")
                && mismatch.found.is_string()
        },
    ),
    (
        "pre-allocation-in-force",
        "The settings have the pre-allocation in force, Cilium's the default.",
        |mismatch| mismatch.place.contains("/IPAMMultiPoolPreAllocation/"),
    ),
    (
        "no-big-tcp",
        "BIG TCP is not in this program: packets are as large as devices have them.",
        |mismatch| {
            let place = &mismatch.place;
            let is_size = ["MaxSize", "/maxGRO", "/maxGSO"]
                .iter()
                .any(|end| place.ends_with(end));
            is_size || place.contains("-big-tcp/") && place.ends_with("/enabled")
        },
    ),
    (
        "no-hubble",
        "Hubble is not in this program, nor the reader of events that it is in Cilium.",
        |mismatch| {
            let places = [
                "/hubble/",
                "/hubble-metrics/",
                "/nodeMonitor",
                "/nodemonitor",
                "/EnableHubble",
            ];
            places.iter().any(|place| mismatch.place.contains(place))
        },
    ),
    (
        "no-authentication-map",
        "Mutual authentication is not in this program.",
        |mismatch| {
            let is_row = mismatch
                .expected
                .as_str()
                .is_some_and(|text| text.starts_with("Auth "));
            (is_row || mismatch.expected["name"] == "Auth") && mismatch.found.is_null()
        },
    ),
    (
        "modules-in-status",
        "The status has the health of modules, which Cilium's clients read from a table.",
        |mismatch| mismatch.place.ends_with("/modules-health") && mismatch.expected.is_null(),
    ),
    (
        "empty-addresses",
        "Cilium's list of addresses begins with as many empty texts.",
        |mismatch| {
            let lists = [
                "/kube-proxy-replacement/deviceList/",
                "/kubeproxyreplacement/devicelist/",
            ];
            let is_list = lists.iter().any(|list| mismatch.place.contains(list));
            is_list && mismatch.expected == "" && mismatch.found.is_null()
        },
    ),
    (
        "server-version",
        "The version of the API server is that of the tests' server.",
        |mismatch| {
            mismatch.place.ends_with("/kubernetes/msg") && mismatch.expected.to_string().contains("1.36 (")
        },
    ),
    ("times-and-loads", "Times and loads of the machine.", |mismatch| {
        let ends = ["/latency", "/uptime", "/last1min", "/last5min", "/last15min"];
        ends.iter().any(|end| mismatch.place.ends_with(end)) && !mismatch.found.is_null()
    }),
    (
        "other-log",
        "What happened to an endpoint depends on the recorder's waits, and on how often policies were computed.",
        |mismatch| {
            let texts = [&mismatch.expected, &mismatch.found];
            let words = [
                "egenerat",
                "Policy Map",
                "ready",
                "Endpoint creation",
                "waiting-for-",
            ];
            let is_ok = |value: &Value| {
                let text = value.as_str().unwrap_or_default();
                value.is_null() || value["code"] == "OK" || words.iter().any(|word| text.contains(word))
            };
            let mut place = mismatch.place.split('/').skip(2);
            let is_log = mismatch.place.contains("/log/")
                || matches!((place.next(), place.next()), (Some("message" | "state"), None))
                || texts.iter().any(|value| value["timestamp"].is_string());
            let is_row = mismatch.place.starts_with("endpoint log ");
            (is_log || is_row) && texts.iter().all(|value| is_ok(value))
        },
    ),
    (
        "not-recorded",
        "The recorder left the answer out, or refers to another file.",
        |mismatch| {
            let text = mismatch.expected.as_str().unwrap_or_default();
            ["(as in ", "(not recorded)", "(list)"]
                .iter()
                .any(|start| text.starts_with(start))
        },
    ),
    (
        "controller-times",
        "When a controller last ran depends on how long the recorder waited.",
        |mismatch| mismatch.place.contains("/controllers/") && mismatch.place.ends_with("-timestamp"),
    ),
    (
        "written-at-once",
        "CiliumEndpoints have a new identity at once; Cilium's have the state before for up to ten seconds.",
        |mismatch| mismatch.place.starts_with(WRITTEN_AT_ONCE),
    ),
    (
        "order-of-addresses",
        "Backends have places in the order of their addresses, which are random.",
        |mismatch| mismatch.place.starts_with(ADDRESS_ORDER),
    ),
    (
        "other-maps",
        "Maps of features that are not in this program, and its own.",
        |mismatch| mismatch.place.starts_with(OTHER_MAPS),
    ),
    (
        "addresses-of-the-node",
        "Listings of `cilium_lxc` have the addresses of the node, too.",
        |mismatch| {
            let is_own = mismatch.found.to_string().contains("(localhost)");
            mismatch.place.starts_with("map list ") && mismatch.expected.is_null() && is_own
        },
    ),
    (
        "caches-of-all-maps",
        "The agent shows the entries of all its maps, Cilium's of those that it writes.",
        |mismatch| mismatch.place.starts_with(CACHES),
    ),
    (
        FLOWS,
        "Maps of flows have entries of the same kinds: which flows there are depends on the moment.",
        |mismatch| mismatch.place == FLOWS,
    ),
    (
        "no-client-of-kubernetes",
        "The command has no client of Kubernetes, and does not look for one.",
        |mismatch| {
            mismatch
                .expected
                .to_string()
                .contains("Could not initialize k8s client")
        },
    ),
    (
        "no-templates",
        "Programs are not made from templates: there are no hashes of them.",
        |mismatch| mismatch.place.contains("bpf sha "),
    ),
    (
        "no-runtime-map",
        "Programs have their settings as constants; there is no map of them, nor of the agent's liveness.",
        |mismatch| mismatch.place.contains("bpf config list"),
    ),
    (
        "version-of-go",
        "The recorded program shows the version of Go in place of its own.",
        |mismatch| {
            let is_version =
                mismatch.place.starts_with("version ") || mismatch.place.contains("none.sock version ");
            is_version
                && (mismatch.place.contains("/Version")
                    || mismatch.place.contains("/Arch")
                    || [&mismatch.expected, &mismatch.found].iter().any(|value| {
                        value
                            .as_str()
                            .is_some_and(|text| text.starts_with("Client:") || text.starts_with("Daemon:"))
                    }))
        },
    ),
    (
        "other-jobs",
        "Background jobs of this agent have their own names, and there are more or fewer of them.",
        |mismatch| {
            let is_missing = mismatch.expected.is_null() || mismatch.found.is_null();
            let is_row = is_row(
                mismatch,
                &[
                    "Controller Status:",
                    " never 0 no error",
                    "Last success Last error",
                ],
            );
            mismatch.place.contains("/controllers/") && is_missing || is_row
        },
    ),
    (
        "other-modules",
        "Modules of this agent have their own names, and there are more or fewer of them.",
        |mismatch| {
            is_row(
                mismatch,
                &["Modules Health:", "Degraded modules:", "── ", " [OK] "],
            ) || is_name_of_module(mismatch)
        },
    ),
    (
        "no-hubble-in-text",
        "Hubble is not in this program.",
        |mismatch| is_row(mismatch, &["Hubble:", "NodeMonitor:", "MonitorNumPages"]),
    ),
    (
        "installation-of-the-recorder",
        "Paths and addresses of the recorder's installation.",
        |mismatch| {
            mismatch.place.ends_with("daemonConfigurationMap/ToFQDNsPreCache")
                || is_row(
                    mismatch,
                    &[
                        "CGroupRoot ",
                        "ConfigDir ",
                        "SocketPath ",
                        "ToFQDNsPreCache ",
                        "k8s-configuration",
                        "k8s-endpoint",
                    ],
                )
        },
    ),
    (
        "statistics-of-names",
        "The proxy for DNS does not count requests by endpoint.",
        |mismatch| mismatch.place.contains("/policy/proxy-statistics") && mismatch.found.is_null(),
    ),
    (
        "ids-of-nodes",
        "Ids of nodes are the lowest free ones, Cilium's random ones.",
        |mismatch| {
            let number = |value: &Value| value.as_u64().unwrap_or_default();
            let is_id = mismatch.place.starts_with("json/") && mismatch.place.ends_with("/id");
            is_id && number(&mismatch.expected) > 4095 && (1..=9).contains(&number(&mismatch.found))
        },
    ),
    (
        "addresses-of-before",
        "The recorded node has addresses of earlier agents in the map of node ids.",
        |mismatch| {
            let is_address =
                |value: &Value| value.as_str().is_some_and(|text| text.parse::<IpAddr>().is_ok());
            mismatch.place.contains("nodeid list ")
                && mismatch.found.is_null()
                && is_address(&mismatch.expected)
        },
    ),
    (
        "no-policy-of-the-host",
        "The host endpoint has a policy map with the host firewall alone.",
        |mismatch| {
            let text = mismatch.expected.to_string();
            let is_map = text.contains("cilium_policy_v2_${EP_HOST}");
            let places = ["bpf policy ", "map list "];
            let is_listed = places.iter().any(|place| mismatch.place.starts_with(place));
            is_map && is_listed && mismatch.found.is_null()
        },
    ),
    (
        "repeated-writes",
        "Entries of endpoints are written once, Cilium's with each regeneration, and events of its start are gone by then.",
        |mismatch| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (expected, found) = (text(&mismatch.expected), text(&mismatch.found));
            let is_update = expected.contains("action=update") && expected.contains("sec_id=");
            let is_start = found.contains("(localhost)") && found.contains("action=update");
            mismatch.place.starts_with("map events cilium_lxc ")
                && (is_update && mismatch.found.is_null() || is_start && mismatch.expected.is_null())
        },
    ),
    (
        "world-of-before",
        "The recorded identity of the API server has the label of the world of an earlier agent, with another address family.",
        |mismatch| {
            let is_label = mismatch.expected == "reserved:world" && mismatch.place.contains(" stdout");
            let is_selected = mismatch.place.starts_with("policy selectors ")
                && mismatch
                    .expected
                    .as_str()
                    .is_some_and(|text| text.starts_with("${LOCAL_"));
            (is_label || is_selected) && mismatch.found.is_null()
        },
    ),
    (
        "progress-of-probes",
        "How many paths were probed depends on how long the recorder waited.",
        |mismatch| {
            let is_probe = |value: &Value| {
                let first = value.as_array().and_then(|lines| lines.first());
                let text = first.unwrap_or(value).as_str().unwrap_or_default();
                let is_path = ["ICMP to stack:", "HTTP to agent:"]
                    .iter()
                    .any(|start| text.starts_with(start));
                let is_node = text.starts_with('n') && (text.contains("unknown)") || text.ends_with("2/2"));
                let is_summary = [
                    "Cluster health: 0/0",
                    "Cluster health: 1/1",
                    "Name IP Node Endpoints",
                ]
                .iter()
                .any(|start| text.starts_with(start));
                is_path && text.contains("OK, RTT=") || is_node || is_summary
            };
            let is_path = ["/http", "/icmp"].iter().any(|end| mismatch.place.ends_with(end));
            let is_probed = mismatch.expected.is_null() && !mismatch.found["lastProbed"].is_null();
            let is_status = mismatch.place.contains("status") && mismatch.place.contains(" stdout");
            is_status && (is_probe(&mismatch.expected) || is_probe(&mismatch.found) || is_path && is_probed)
        },
    ),
    (
        "other-programs",
        "Counters name lines and files of BPF programs, which are others here.",
        |mismatch| {
            let texts = [&mismatch.expected, &mismatch.found].map(|value| value.to_string());
            mismatch.place.contains("bpf metrics ")
                && texts
                    .iter()
                    .any(|text| text.contains(".c\"") || text.contains(".h\""))
        },
    ),
    (
        "random-addresses",
        "Addresses are allocated at random; the recording has this one as a text.",
        |mismatch| {
            let of = |value: &Value| value.as_str().and_then(|text| text.parse::<IpAddr>().ok());
            match (of(&mismatch.expected), of(&mismatch.found)) {
                (Some(IpAddr::V4(expected)), Some(IpAddr::V4(found))) => {
                    expected.octets()[..3] == found.octets()[..3]
                }
                (Some(IpAddr::V6(expected)), Some(IpAddr::V6(found))) => {
                    expected.segments()[..4] == found.segments()[..4]
                }
                _ => false,
            }
        },
    ),
    (
        "random-values",
        "Ids of clients and maps of memory differ in each run.",
        |mismatch| {
            let places = ["/client-id", "/cilium-memory-map"];
            places.iter().any(|place| mismatch.place.ends_with(place)) && !mismatch.found.is_null()
        },
    ),
    (
        "order-of-methods",
        "Methods of a path in the order of another hash map.",
        |mismatch| {
            let letters = |value: &Value| {
                let mut letters: Vec<char> = value.to_string().chars().collect();
                letters.sort_unstable();
                letters
            };
            mismatch.expected.to_string().contains("is not allowed, but [")
                && letters(&mismatch.expected) == letters(&mismatch.found)
        },
    ),
    (
        "of-the-recorder",
        "Paths and addresses of the recorder's installation.",
        |mismatch| {
            let places = [
                "/BPFRoot",
                "/CGroupRoot",
                "/ConfigDir",
                "/SocketPath",
                "/k8s-configuration",
                "/k8s-endpoint",
            ];
            places.iter().any(|place| mismatch.place.ends_with(place))
        },
    ),
    (
        SHORT_IDS,
        "Cilium's temporary names of interfaces are invalid for container ids of few letters.",
        |mismatch| mismatch.place.ends_with(SHORT_IDS),
    ),
    (
        "go-values",
        "Values and threads of Go in log lines.",
        |mismatch| {
            let expected = mismatch.expected.to_string();
            let texts = ["&{CNIVersion", "(terminating OS thread)", "{0x"];
            let is_code = mismatch.place.ends_with("/source") && expected.contains("github.com/cilium/");
            is_code
                || mismatch.place.contains("jsonpath={.cluster}")
                || texts.iter().any(|text| expected.contains(text))
        },
    ),
    (
        "json-error-texts",
        "The cause of invalid input is in the words of another JSON or address library; the code is the same.",
        |mismatch| {
            let is_text = ["/msg", "/details", "/stdout_text", "/stderr/", "/log_file_lines/"]
                .iter()
                .any(|part| mismatch.place.contains(part));
            let expected = mismatch.expected.to_string();
            let is_text = is_text || mismatch.place == "json" && mismatch.found.is_string();
            is_text
                && [
                    "invalid CIDR address",
                    "netip.ParsePrefix(",
                    "invalid character",
                    "json: ",
                    "ParseAddr(",
                    "TextConsumer",
                ]
                .iter()
                .any(|text| expected.contains(text))
        },
    ),
    (
        "debug-lines",
        "Debug lines show values of another program.",
        |mismatch| {
            let is_line = ["/stderr/", "/log_file_lines/"]
                .iter()
                .any(|part| mismatch.place.contains(part));
            let texts = [&mismatch.expected, &mismatch.found].map(|value| value.to_string().to_lowercase());
            is_line
                && texts
                    .iter()
                    .any(|text| text.contains("level=debug") || text.contains("\\\"level\\\":\\\"debug"))
        },
    ),
    (
        "version-texts",
        "The version names another program.",
        |mismatch| {
            let expected = mismatch.expected.to_string();
            ["Cilium CNI plugin ", " go version go"]
                .iter()
                .any(|text| expected.contains(text))
        },
    ),
];

const SHORT_IDS: &str = "short-container-ids";
const TABLES: &str = "tables-of-the-agent";
const NOW: &str = "status-of-now";
pub(crate) const WRITTEN_AT_ONCE: &str = "written-at-once ";
pub(crate) const ADDRESS_ORDER: &str = "order-of-addresses ";
pub(crate) const CACHES: &str = "caches-of-all-maps ";
pub(crate) const FLOWS: &str = "flows-of-the-moment";
pub(crate) const OTHER_MAPS: &str = "other-maps ";

/// Whether it is a line with the name of a module alone.
fn is_name_of_module(mismatch: &Mismatch) -> bool {
    let texts = [&mismatch.expected, &mismatch.found];
    let is_name = |text: &str| {
        !text.is_empty()
            && text
                .chars()
                .all(|letter| letter.is_ascii_lowercase() || "-.0123456789".contains(letter))
    };
    mismatch.place.starts_with("status --") && texts.iter().any(|value| value.as_str().is_some_and(is_name))
}

/// Whether a line or a part of the output of a command has one of these titles.
fn is_row(mismatch: &Mismatch, titles: &[&str]) -> bool {
    let texts = [&mismatch.expected, &mismatch.found].map(|value| value.to_string());
    let has = |title: &&str| texts.iter().any(|text| text.contains(*title));
    mismatch.place.contains(" stdout") && titles.iter().any(has)
}

/// The name of differences of the body of an answer, from which others are distinguished by the request; places begin with it.
pub(crate) fn of_request(step: &Value, changes_before: bool) -> Option<&'static str> {
    let asked = &step["request"];
    let path = asked["path"].as_str().unwrap_or_default();
    match asked["method"].as_str()? {
        "GET" if path.starts_with("/statedb/") => Some(TABLES),
        "GET" if path.starts_with("/v1/healthz") && changes_before => Some(NOW),
        _ => None,
    }
}

/// The name of the difference of a whole invocation, whose parts are not compared then.
pub(crate) fn of_step(step: &Value) -> Option<&'static str> {
    let text = step["stdout"]["msg"].as_str().unwrap_or_default();
    text.contains("unable to create veth pair: invalid argument")
        .then_some(SHORT_IDS)
}

/// The name of an intended difference.
pub(crate) fn name(mismatch: &Mismatch) -> Option<&'static str> {
    let mut named = NAMED.iter();
    named.find(|(_, _, is)| is(mismatch)).map(|(name, ..)| *name)
}

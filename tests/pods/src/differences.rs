// SPDX-License-Identifier: Apache-2.0

//! Intended differences from the recordings, each with a name.

use std::net::IpAddr;

use serde_json::Value;

use crate::bindings::Mismatch;

/// Name, reason, and whether a difference is one of it.
type Named = (&'static str, &'static str, fn(&Mismatch) -> bool);

const NAMED: [Named; 10] = [
    (
        "controller-times",
        "When a controller last ran depends on how long the recorder waited.",
        |mismatch| mismatch.place.contains("/controllers/") && mismatch.place.ends_with("-timestamp"),
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
            ["&{CNIVersion", "(terminating OS thread)"]
                .iter()
                .any(|text| expected.contains(text))
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
            is_text
                && ["invalid character", "json: ", "ParseAddr(", "TextConsumer"]
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
        |mismatch| mismatch.expected.to_string().contains("Cilium CNI plugin "),
    ),
];

const SHORT_IDS: &str = "short-container-ids";

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

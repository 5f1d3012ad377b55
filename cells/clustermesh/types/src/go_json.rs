// SPDX-License-Identifier: Apache-2.0

//! JSON as Go's `encoding/json` reads and writes it: the rules that make values of mixed meshes compatible.
//!
//! Reading: unknown fields are ignored; names of fields match regardless of case, the last of several wins; `null` is the
//! zero value; a wrong type anywhere is an error. Writing: no spaces, and `<`, `>`, `&`, U+2028 and U+2029 are escaped, so
//! that a value that Cilium wrote is written again byte by byte.

mod decode;
mod encode;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Reads a value.
///
/// # Errors
///
/// If the text is no JSON, or holds a value of a wrong type.
pub fn from_slice<T: DeserializeOwned>(text: &[u8]) -> Result<T, serde_json::Error> {
    // Invalid UTF-8 is replaced, as Go does.
    let text = String::from_utf8_lossy(text);
    T::deserialize(decode::Lenient(serde_json::from_str(&text)?))
}

/// Writes a value.
///
/// # Errors
///
/// If a value cannot be JSON, such as a map whose keys are no texts.
pub fn to_vec<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, serde_json::Error> {
    let mut text = Vec::new();
    value.serialize(&mut serde_json::Serializer::with_formatter(
        &mut text,
        encode::Escaping,
    ))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    struct Port {
        #[serde(rename = "Protocol")]
        protocol: String,
        #[serde(rename = "Port")]
        port: u16,
    }

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    struct Sample {
        name: String,
        ports: BTreeMap<String, Port>,
        list: Vec<Port>,
        maybe: Option<bool>,
        flag: bool,
    }

    fn read(text: &str) -> Result<Sample, String> {
        from_slice(text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn names_of_fields_match_regardless_of_case_but_keys_of_maps_do_not() {
        let sample = read(
            r#"{"NAME":"a","Ports":{"Http":{"PORT":1,"protocol":"TCP"},"http":{"port":2}},"other":[{}],"LIST":[{"pOrT":3}]}"#,
        )
        .expect("it is valid");

        assert_eq!(sample.name, "a");
        assert_eq!(
            sample
                .ports
                .iter()
                .map(|(name, port)| (name.as_str(), port.port))
                .collect::<Vec<_>>(),
            [("Http", 1), ("http", 2)]
        );
        assert_eq!(sample.list[0].port, 3);
    }

    #[test]
    fn the_last_of_several_spellings_wins_but_null_changes_nothing() {
        assert_eq!(read(r#"{"name":"a","Name":"b"}"#).expect("valid").name, "b");
        assert_eq!(read(r#"{"Name":"b","name":"a"}"#).expect("valid").name, "a");
        assert_eq!(read(r#"{"name":"a","NAME":null}"#).expect("valid").name, "a");
    }

    #[test]
    fn null_is_the_zero_value_everywhere() {
        let sample =
            read(r#"{"name":null,"ports":{"x":null},"list":[null,{"Port":null}],"maybe":null,"flag":null}"#)
                .expect("it is valid");

        assert_eq!(sample.name, "");
        assert_eq!(sample.ports["x"], Port::default());
        assert_eq!(sample.list, [Port::default(), Port::default()]);
        assert_eq!((sample.maybe, sample.flag), (None, false));
        assert_eq!(read("null"), Ok(Sample::default()));
        assert_eq!(read(r#"{"ports":null,"list":null}"#), Ok(Sample::default()));
    }

    #[test]
    fn wrong_types_are_errors() {
        for text in [
            r#"{"name":1}"#,
            r#"{"list":{}}"#,
            r#"{"ports":[]}"#,
            r#"{"list":[{"Port":"1"}]}"#,
            r#"{"list":[{"Port":65536}]}"#,
            r#"{"list":[{"Port":-1}]}"#,
            r#"{"list":[{"Port":1.0}]}"#,
            r#"{"maybe":"true"}"#,
            r#"{"name":"a"} x"#,
            r#"{"name":"a""#,
            r#""text""#,
            "[]",
            "",
        ] {
            read(text).expect_err(text);
        }
    }

    #[test]
    fn escapes_what_go_escapes() {
        let sample = Sample {
            name: "<a & b>\u{2028}\u{2029}\"\\\n\u{1}ü/".to_owned(),
            ..Sample::default()
        };

        let text = to_vec(&sample).expect("it is JSON");

        let text = String::from_utf8(text).expect("it is UTF-8");
        assert!(
            text.starts_with(r#"{"name":"\u003ca \u0026 b\u003e\u2028\u2029\"\\\n\u0001ü/","ports":{},"#),
            "{text}"
        );
        assert_eq!(read(&text), Ok(sample));
    }
}

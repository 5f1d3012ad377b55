// SPDX-License-Identifier: Apache-2.0

//! YAML in the two styles in which Go programs print it.
//!
//! [`emit_v3`] is the style of `gopkg.in/yaml.v3`: 4 spaces, lists indented, fields in the order given. [`emit_v2`] is
//! that of `sigs.k8s.io/yaml`: 2 spaces, lists not indented, keys sorted, long lines folded. Texts are quoted by the
//! rules of those libraries. Wrap what is a time or another plain scalar in [`Plain`], otherwise it is quoted as a
//! text that looks like a time.

mod emit;
mod node;
mod scalar;

pub use node::{Error, Node, Plain};

use serde::Serialize;

/// One document in the style of yaml.v3, ended by a newline.
///
/// ```
/// # use serde_json::json;
/// let text = hive_script::text::yaml::emit_v3(&json!({"name": "web", "addrs": ["[::1]:80", "yes"]})).unwrap();
/// assert_eq!(text, "name: web\naddrs:\n    - '[::1]:80'\n    - \"yes\"\n");
/// ```
pub fn emit_v3<T: Serialize + ?Sized>(value: &T) -> Result<String, Error> {
    Ok(emit::document(&Node::of(value)?, emit::Style::V3))
}

/// One document in the style of sigs.k8s.io/yaml, ended by a newline.
///
/// ```
/// # use serde_json::json;
/// let text = hive_script::text::yaml::emit_v2(&json!({"b": 1, "a": [{"z": "", "c": null}]})).unwrap();
/// assert_eq!(text, "a:\n- c: null\n  z: \"\"\nb: 1\n");
/// ```
pub fn emit_v2<T: Serialize + ?Sized>(value: &T) -> Result<String, Error> {
    Ok(emit::document(&Node::of(value)?, emit::Style::V2))
}

#[cfg(test)]
mod tests;

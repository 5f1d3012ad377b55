// SPDX-License-Identifier: Apache-2.0

//! Fields of objects. What is missing or of the wrong type counts as absent.

use serde_json::Value;

/// Text at a JSON pointer.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Items of the list at a JSON pointer.
pub(crate) fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    let found = object.pointer(pointer).and_then(Value::as_array);
    found.map(Vec::as_slice).unwrap_or_default()
}

/// Texts of the list at a JSON pointer.
pub(crate) fn texts(object: &Value, pointer: &str) -> Vec<String> {
    let items = list(object, pointer).iter();
    items
        .filter_map(|item| item.as_str().map(str::to_owned))
        .collect()
}

pub(crate) fn flag(object: &Value, pointer: &str) -> bool {
    object.pointer(pointer) == Some(&Value::Bool(true))
}

pub(crate) fn number(object: &Value, pointer: &str) -> Option<u64> {
    object.pointer(pointer).and_then(Value::as_u64)
}

/// The present time as the API writes it.
pub(crate) fn now() -> String {
    jiff::Timestamp::now().strftime("%FT%TZ").to_string()
}

/// A time of the container runtime as the API writes it.
pub(crate) fn time(nanoseconds: i64) -> String {
    let time = jiff::Timestamp::from_nanosecond(nanoseconds.into()).unwrap_or_default();
    time.strftime("%FT%TZ").to_string()
}

pub(crate) fn is_deleting(object: &Value) -> bool {
    object
        .pointer("/metadata/deletionTimestamp")
        .is_some_and(|time| !time.is_null())
}

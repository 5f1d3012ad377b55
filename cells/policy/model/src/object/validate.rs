// SPDX-License-Identifier: Apache-2.0

//! Label selectors and expressions that are valid.

use serde_json::Value;
use skep_k8s_types::slim::LabelSelector;

use super::error::{Fault, Faulty};
use crate::selector::SelectorOperator;

/// Keys are label keys, perhaps with a source before them; values are label values; operators have the values that they want.
pub(super) fn label_selector(field: &str, selector: &LabelSelector) -> Faulty<()> {
    let fault = |text: String| Err((field.to_owned(), Fault::LabelSelector(text)));
    for (key, value) in selector.match_labels.iter() {
        if let Err(reason) = label_key(key).and_then(|()| label_value(value)) {
            return fault(format!("matchLabels: {reason}"));
        }
    }
    for (index, expression) in selector.match_expressions.iter().enumerate() {
        let at = format!("matchExpressions[{index}]");
        if let Err(reason) = label_key(&expression.key) {
            return fault(format!("{at}.key: {reason}"));
        }
        let is_empty = expression.values.is_empty();
        match SelectorOperator::parse(&expression.operator) {
            None => {
                return fault(format!(
                    "{at}.operator: \"{}\" is not a valid selector operator",
                    expression.operator
                ));
            }
            Some(SelectorOperator::In | SelectorOperator::NotIn) if is_empty => {
                return fault(format!(
                    "{at}.values: must be specified when `operator` is 'In' or 'NotIn'"
                ));
            }
            Some(SelectorOperator::Exists | SelectorOperator::DoesNotExist) if !is_empty => {
                return fault(format!(
                    "{at}.values: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                ));
            }
            Some(_) => {}
        }
        if let Some(reason) = expression
            .values
            .iter()
            .find_map(|value| label_value(value).err())
        {
            return fault(format!("{at}.values: {reason}"));
        }
    }
    Ok(())
}

/// Fields that are objects: the decoder would take the elements of a list for their fields.
const OBJECTS: &[&str] = &[
    "metadata",
    "spec",
    "endpointSelector",
    "nodeSelector",
    "podSelector",
    "namespaceSelector",
    "cidrGroupSelector",
    "selector",
    "enableDefaultDeny",
    "log",
    "authentication",
    "rules",
    "listener",
    "envoyConfig",
    "terminatingTLS",
    "originatingTLS",
    "secret",
    "aws",
    "k8sService",
    "k8sServiceSelector",
    "subject",
    "pods",
    "namespaces",
    "nodes",
    "tcp",
    "udp",
    "sctp",
    "destinationPort",
    "range",
    "ipBlock",
];

/// The first field that is a list where an object is meant.
pub(super) fn list_for_object(field: &str, value: &Value) -> Option<String> {
    match value {
        Value::Object(fields) => fields.iter().find_map(|(name, value)| {
            let field = match field.is_empty() {
                true => name.clone(),
                false => format!("{field}.{name}"),
            };
            match value.is_array() && OBJECTS.contains(&name.as_str()) {
                true => Some(field),
                false => list_for_object(&field, value),
            }
        }),
        Value::Array(items) => items.iter().enumerate().find_map(|(index, item)| {
            let field = format!("{field}[{index}]");
            match item.is_array() {
                true => Some(field),
                false => list_for_object(&field, item),
            }
        }),
        _ => None,
    }
}

fn label_key(key: &str) -> Result<(), String> {
    let name = match key.split_once(':') {
        None => key,
        Some((source, name)) => {
            if source.is_empty()
                || name.contains(':')
                || !source.bytes().all(|byte| byte.is_ascii_alphanumeric())
            {
                return Err(format!(
                    "\"{key}\": ':' is only a separator after the source of a label"
                ));
            }
            name
        }
    };
    let (prefix, name) = match name.rsplit_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, name),
    };
    if name.is_empty() {
        return Err(format!("\"{key}\": name part must be non-empty"));
    }
    let is_subdomain = |text: &str| {
        let is_fine = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
        (1..=253).contains(&text.len())
            && text.bytes().all(is_fine)
            && text
                .split('.')
                .all(|part| !part.is_empty() && !part.starts_with('-') && !part.ends_with('-'))
    };
    match label_value(name).is_err() || prefix.is_some_and(|prefix| !is_subdomain(prefix)) {
        true => Err(format!("\"{key}\": not a label key")),
        false => Ok(()),
    }
}

fn label_value(value: &str) -> Result<(), String> {
    if value.len() > 63 {
        return Err(format!("\"{value}\": must be no more than 63 bytes"));
    }
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let ends = [value.bytes().next(), value.bytes().next_back()];
    let is_fine = value.bytes().all(is_inner) && ends.iter().flatten().all(u8::is_ascii_alphanumeric);
    match is_fine {
        true => Ok(()),
        false => Err(format!("\"{value}\": not a label value")),
    }
}

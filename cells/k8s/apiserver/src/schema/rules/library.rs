// SPDX-License-Identifier: Apache-2.0

//! Functions of rules: those of CEL, and `isIP` and `isCIDR` of Kubernetes. Rules with other functions are refused.

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use cel::common::types::STRING_TYPE;
use cel::common::value::{CowVal, Val};
use cel::parser::ParseErrors;
use cel::{DeclarationError, Env, ExecutionError, Program, Value, extensions};
use ipnet::IpNet;

/// Names of types, which are values.
pub(super) const TYPES: [&str; 13] = [
    "bool",
    "bytes",
    "double",
    "duration",
    "google",
    "int",
    "list",
    "map",
    "null_type",
    "optional_type",
    "string",
    "timestamp",
    "uint",
];

/// Namespaces of functions.
pub(super) const NAMESPACES: [&str; 1] = ["optional"];

/// Functions that rules can call.
const FUNCTIONS: &[&str] = &[
    "bool",
    "bytes",
    "charAt",
    "contains",
    "double",
    "duration",
    "dyn",
    "endsWith",
    "format",
    "getDate",
    "getDayOfMonth",
    "getDayOfWeek",
    "getDayOfYear",
    "getFullYear",
    "getHours",
    "getMilliseconds",
    "getMinutes",
    "getMonth",
    "getSeconds",
    "hasValue",
    "indexOf",
    "int",
    "isCIDR",
    "isIP",
    "join",
    "lastIndexOf",
    "lowerAscii",
    "matches",
    "optional.none",
    "optional.of",
    "optional.ofNonZeroValue",
    "or",
    "orValue",
    "replace",
    "reverse",
    "size",
    "split",
    "startsWith",
    "string",
    "substring",
    "timestamp",
    "trim",
    "type",
    "uint",
    "upperAscii",
    "value",
];

/// Whether there is a function of this name.
pub(super) fn has_function(name: &str) -> bool {
    FUNCTIONS.contains(&name)
}

/// What rules are compiled for and run in.
pub(super) fn environment() -> Arc<Env> {
    static ENVIRONMENT: LazyLock<Arc<Env>> =
        LazyLock::new(|| Arc::new(make().expect("functions have names and signatures of their own")));
    ENVIRONMENT.clone()
}

/// Parses an expression.
pub(super) fn compile(text: &str) -> Result<Program, ParseErrors> {
    environment().compile(text)
}

fn make() -> Result<Env, DeclarationError> {
    let mut env = Env::stdlib();
    env.add_extension(extensions::strings)?;
    env.add_overload("isIP", "kubernetes_isIP", vec![STRING_TYPE], is_ip)?;
    env.add_overload("isCIDR", "kubernetes_isCIDR", vec![STRING_TYPE], is_cidr)?;
    Ok(env)
}

fn is_ip<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    // IPv4 addresses in IPv6 are none.
    test(&arguments, |text| match text.parse() {
        Ok(IpAddr::V6(address)) => address.to_ipv4_mapped().is_none(),
        other => other.is_ok(),
    })
}

fn is_cidr<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    test(&arguments, |text| match text.parse() {
        Ok(IpNet::V6(network)) => network.addr().to_ipv4_mapped().is_none(),
        other => other.is_ok(),
    })
}

fn test<'b, 'v>(
    arguments: &[CowVal<'b, 'v>],
    holds: impl FnOnce(&str) -> bool,
) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let text = match arguments.first() {
        Some(argument) => Value::try_from(argument.as_ref())?,
        None => Value::Null,
    };
    let result = matches!(&text, Value::String(text) if holds(text));
    let result: Box<dyn Val> = Value::Bool(result).try_into()?;
    Ok(result.into())
}

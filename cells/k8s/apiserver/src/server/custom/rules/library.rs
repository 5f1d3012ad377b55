// SPDX-License-Identifier: Apache-2.0

//! Functions of rules: those of CEL, and those that Kubernetes adds for addresses, networks, lists, sets and regular
//! expressions. Quantities, URLs and named formats are missing: rules with them are refused.

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use cel::common::types::{DYN_TYPE, INT_TYPE, LIST_TYPE, STRING_TYPE, Type};
use cel::common::value::{CowVal, Val};
use cel::objects::Opaque;
use cel::parser::ParseErrors;
use cel::{DeclarationError, Env, ExecutionError, Program, Value, extensions};
use ipnet::IpNet;

use crate::server::custom::patterns;

/// Names of types, which are values.
pub(super) const TYPES: [&str; 14] = [
    "bool",
    "bytes",
    "double",
    "duration",
    "google",
    "int",
    "list",
    "map",
    "net",
    "null_type",
    "optional_type",
    "string",
    "timestamp",
    "uint",
];

/// Namespaces of functions.
pub(super) const NAMESPACES: [&str; 4] = ["cidr", "ip", "optional", "sets"];

/// Functions of CEL that rules can call.
const STANDARD: &[&str] = &[
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
    STANDARD.contains(&name) || OWN.contains(&name)
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

/// A type in a signature.
#[derive(Clone, Copy)]
enum Of {
    Any,
    Int,
    Text,
    List,
    Ip,
    Cidr,
}

impl Of {
    fn ty(self) -> Type {
        match self {
            Of::Any => DYN_TYPE,
            Of::Int => INT_TYPE,
            Of::Text => STRING_TYPE,
            Of::List => LIST_TYPE,
            Of::Ip => Type::new_opaque_type(IP),
            Of::Cidr => Type::new_opaque_type(CIDR),
        }
    }
}

/// How a function is called.
#[derive(Clone, Copy, PartialEq)]
enum Call {
    Plain,
    Member,
}

/// Declares functions: name, how it is called, types of receiver and arguments, what runs.
macro_rules! functions {
    ($($name:literal $call:ident [$($ty:ident),*] $function:expr;)*) => {
        const OWN: &[&str] = &[$($name),*];

        fn declare(env: &mut Env) -> Result<(), DeclarationError> {
            $({
                fn run<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
                    let function: fn(&[Value]) -> Result<Value, ExecutionError> = $function;
                    let arguments: Result<Vec<Value>, _> =
                        arguments.iter().map(|argument| Value::try_from(argument.as_ref())).collect();
                    let result: Box<dyn Val> = function(&arguments?)?.try_into()?;
                    Ok(result.into())
                }
                let types = [$(Of::$ty),*];
                let id = concat!("kubernetes_", $name, $("_", stringify!($ty)),*);
                let mut types = types.iter().map(|of| of.ty());
                match Call::$call {
                    Call::Plain => env.add_overload($name, id, types.collect(), run)?,
                    Call::Member => {
                        let receiver = types.next().expect("members have a receiver");
                        env.add_member_overload($name, id, receiver, types.collect(), run)?;
                    }
                }
            })*
            Ok(())
        }
    };
}

fn make() -> Result<Env, DeclarationError> {
    let mut env = Env::stdlib();
    env.add_extension(extensions::strings)?;
    for name in [IP, CIDR] {
        env.add_type(Type::new_opaque_type(name))?;
    }
    declare(&mut env)?;
    Ok(env)
}

functions! {
    "isIP" Plain [Text] |a| Ok(ip(&a[0]).is_ok().into());
    "ip" Plain [Text] |a| Ok(opaque(Ip(ip(&a[0])?)));
    "ip.isCanonical" Plain [Text] |a| Ok((ip(&a[0])?.to_string() == text(&a[0])).into());
    "string" Plain [Ip] |a| Ok(ip(&a[0])?.to_string().into());
    "family" Member [Ip] |a| Ok(Value::Int(if ip(&a[0])?.is_ipv4() { 4 } else { 6 }));
    "isUnspecified" Member [Ip] |a| Ok(ip(&a[0])?.is_unspecified().into());
    "isLoopback" Member [Ip] |a| Ok(ip(&a[0])?.is_loopback().into());
    "isLinkLocalMulticast" Member [Ip] |a| Ok(is_link_local_multicast(ip(&a[0])?).into());
    "isLinkLocalUnicast" Member [Ip] |a| Ok(is_link_local(ip(&a[0])?).into());
    "isGlobalUnicast" Member [Ip] |a| Ok(is_global_unicast(ip(&a[0])?).into());
    "isCIDR" Plain [Text] |a| Ok(cidr(&a[0]).is_ok().into());
    "cidr" Plain [Text] |a| Ok(opaque(Cidr(cidr(&a[0])?)));
    "string" Plain [Cidr] |a| Ok(cidr(&a[0])?.to_string().into());
    "containsIP" Member [Cidr, Text] |a| Ok(cidr(&a[0])?.contains(&ip(&a[1])?).into());
    "containsIP" Member [Cidr, Ip] |a| Ok(cidr(&a[0])?.contains(&ip(&a[1])?).into());
    "containsCIDR" Member [Cidr, Text] |a| Ok(cidr(&a[0])?.contains(&cidr(&a[1])?).into());
    "containsCIDR" Member [Cidr, Cidr] |a| Ok(cidr(&a[0])?.contains(&cidr(&a[1])?).into());
    "ip" Member [Cidr] |a| Ok(opaque(Ip(cidr(&a[0])?.addr())));
    "masked" Member [Cidr] |a| Ok(opaque(Cidr(cidr(&a[0])?.trunc())));
    "prefixLength" Member [Cidr] |a| Ok(Value::Int(cidr(&a[0])?.prefix_len().into()));
    "isSorted" Member [List] |a| Ok(list(&a[0]).windows(2).all(|two| two[0] <= two[1]).into());
    "sum" Member [List] |a| sum(list(&a[0]));
    "min" Member [List] |a| extreme(list(&a[0]), "min", |a, b| a < b);
    "max" Member [List] |a| extreme(list(&a[0]), "max", |a, b| a > b);
    "indexOf" Member [List, Any] |a| Ok(position(list(&a[0]).iter().position(|item| *item == a[1])));
    "lastIndexOf" Member [List, Any] |a| Ok(position(list(&a[0]).iter().rposition(|item| *item == a[1])));
    "sets.contains" Plain [List, List] |a| Ok(contains(list(&a[0]), list(&a[1])).into());
    "sets.equivalent" Plain [List, List] |a| {
        Ok((contains(list(&a[0]), list(&a[1])) && contains(list(&a[1]), list(&a[0]))).into())
    };
    "sets.intersects" Plain [List, List] |a| Ok(list(&a[0]).iter().any(|item| list(&a[1]).contains(item)).into());
    "find" Member [Text, Text] |a| {
        Ok(regex(&a[1])?.find(text(&a[0])).map_or("", |found| found.as_str()).into())
    };
    "findAll" Member [Text, Text] |a| find_all(text(&a[0]), &a[1], i64::MAX);
    "findAll" Member [Text, Text, Int] |a| find_all(text(&a[0]), &a[1], int(&a[2]));
}

const IP: &str = "net.IP";
const CIDR: &str = "net.CIDR";

/// An address.
#[derive(Debug, PartialEq, Eq)]
struct Ip(IpAddr);

impl Opaque for Ip {
    fn runtime_type_name(&self) -> &str {
        IP
    }
}

/// A network.
#[derive(Debug, PartialEq, Eq)]
struct Cidr(IpNet);

impl Opaque for Cidr {
    fn runtime_type_name(&self) -> &str {
        CIDR
    }
}

fn opaque(value: impl Opaque) -> Value {
    Value::Opaque(Arc::new(value))
}

fn text(value: &Value) -> &str {
    match value {
        Value::String(text) => text,
        _ => "",
    }
}

fn int(value: &Value) -> i64 {
    match value {
        Value::Int(number) => *number,
        _ => 0,
    }
}

fn list(value: &Value) -> &[Value] {
    match value {
        Value::List(items) => items,
        _ => &[],
    }
}

/// The address of an address or a text. IPv4 addresses in IPv6 are none.
fn ip(value: &Value) -> Result<IpAddr, ExecutionError> {
    if let Value::Opaque(opaque) = value
        && let Some(Ip(address)) = opaque.downcast_ref()
    {
        return Ok(*address);
    }
    let text = text(value);
    let failed = |why: String| ExecutionError::function_error("ip", why);
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => Err(failed(format!(
            "IPv4-mapped IPv6 address {text:?} is not allowed"
        ))),
        Ok(address) => Ok(address),
        Err(_) => Err(failed(format!(
            "IP Address {text:?} parse error during conversion from string"
        ))),
    }
}

/// The network of a network or a text.
fn cidr(value: &Value) -> Result<IpNet, ExecutionError> {
    if let Value::Opaque(opaque) = value
        && let Some(Cidr(network)) = opaque.downcast_ref()
    {
        return Ok(*network);
    }
    let text = text(value);
    let failed = |why: String| ExecutionError::function_error("cidr", why);
    match text.parse::<IpNet>() {
        Ok(IpNet::V6(network)) if network.addr().to_ipv4_mapped().is_some() => Err(failed(format!(
            "IPv4-mapped IPv6 address {text:?} is not allowed"
        ))),
        Ok(network) => Ok(network),
        Err(_) => Err(failed(format!(
            "network address parse error during conversion from string: {text:?}"
        ))),
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

fn is_link_local_multicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets()[..3] == [224, 0, 0],
        IpAddr::V6(address) => address.segments()[0] & 0xff0f == 0xff02,
    }
}

fn is_global_unicast(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(is_broadcast
        || address.is_unspecified()
        || address.is_loopback()
        || address.is_multicast()
        || is_link_local(address))
}

fn sum(items: &[Value]) -> Result<Value, ExecutionError> {
    let mut total = Value::Int(0);
    for (index, item) in items.iter().enumerate() {
        total = match (total, item) {
            (_, item) if index == 0 => item.clone(),
            (Value::Int(a), Value::Int(b)) => a
                .checked_add(*b)
                .map(Value::Int)
                .ok_or_else(|| ExecutionError::function_error("sum", "integer overflow"))?,
            (Value::UInt(a), Value::UInt(b)) => a
                .checked_add(*b)
                .map(Value::UInt)
                .ok_or_else(|| ExecutionError::function_error("sum", "unsigned integer overflow"))?,
            (Value::Float(a), Value::Float(b)) => Value::Float(a + b),
            (_, other) => {
                let types = vec!["list".to_owned(), other.type_of().to_string()];
                return Err(ExecutionError::no_such_member_overload("sum", types));
            }
        };
    }
    Ok(total)
}

fn extreme(
    items: &[Value],
    function: &str,
    is_better: fn(&Value, &Value) -> bool,
) -> Result<Value, ExecutionError> {
    let best = items
        .iter()
        .reduce(|best, item| if is_better(item, best) { item } else { best });
    best.cloned()
        .ok_or_else(|| ExecutionError::function_error(function, format!("{function} called on empty list")))
}

fn position(found: Option<usize>) -> Value {
    Value::Int(found.and_then(|at| i64::try_from(at).ok()).unwrap_or(-1))
}

fn contains(items: &[Value], wanted: &[Value]) -> bool {
    wanted.iter().all(|item| items.contains(item))
}

fn regex(pattern: &Value) -> Result<regex::Regex, ExecutionError> {
    patterns::compile_once(text(pattern)).map_err(|error| ExecutionError::function_error("find", error))
}

/// The matches, `most` at most; all if that is negative.
fn find_all(text: &str, pattern: &Value, most: i64) -> Result<Value, ExecutionError> {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let regex = regex(pattern)?;
    let found: Vec<Value> = regex
        .find_iter(text)
        .take(most)
        .map(|found| found.as_str().into())
        .collect();
    Ok(Value::List(Arc::new(found)))
}

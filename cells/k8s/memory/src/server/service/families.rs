// SPDX-License-Identifier: Apache-2.0

//! Address families of a service: what it asks for by policy, families and addresses must agree.

use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::invalid;
use crate::error::{ApiError, Fault};
use crate::object;

const POLICIES: [&str; 3] = ["SingleStack", "PreferDualStack", "RequireDualStack"];
const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];

pub(super) fn family(address: &IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

fn other(family: &str) -> &'static str {
    if family == "IPv4" { "IPv6" } else { "IPv4" }
}

/// Texts of a list of the spec.
pub(super) fn texts(service: &Value, key: &str) -> Vec<String> {
    object::items(service, &["spec", key])
        .iter()
        .filter_map(|value| value.as_str().map(str::to_owned))
        .collect()
}

/// Fills in policy and families, of those that are `available` on this cluster, preferred ones first.
pub(super) fn choose(available: &[&str], old: Option<&Value>, service: &mut Value) -> Result<(), ApiError> {
    let mut addresses = asked_addresses(service)?;
    let headless = addresses.first().is_some_and(|ip| ip == "None");
    let selectorless = object::at(service, &["spec", "selector"])
        .and_then(Value::as_object)
        .is_none_or(Map::is_empty);
    // Whoever makes the endpoints of such a service may use any family.
    let unbound = headless && selectorless;
    let mut families = texts(service, "ipFamilies");
    let mut policy = object::text(service, &["spec", "ipFamilyPolicy"]).to_owned();
    if old.is_some() && policy == "SingleStack" {
        // Going back from two families to one gives the second away.
        families.truncate(1);
        addresses.truncate(1);
    }
    check_known(service, &families)?;
    if policy.is_empty() {
        let several = families.len() > 1 || addresses.len() > 1;
        let both = several || (unbound && families.is_empty());
        policy = if both { "RequireDualStack" } else { "SingleStack" }.to_owned();
    }
    if !POLICIES.contains(&policy.as_str()) {
        let fault = Fault::not_supported("spec.ipFamilyPolicy", &json!(policy), &POLICIES);
        return Err(invalid(service, fault));
    }
    add_of_addresses(service, &addresses, &mut families)?;
    complete(service, available, unbound, &policy, &mut families)?;

    let spec = object::map_mut(service, "spec");
    spec.insert("ipFamilies".to_owned(), json!(families));
    spec.insert("ipFamilyPolicy".to_owned(), policy.into());
    if !addresses.is_empty() {
        spec.insert("clusterIPs".to_owned(), json!(addresses));
    }
    Ok(())
}

/// `clusterIPs` and `clusterIP` made one: either may be given alone.
fn asked_addresses(service: &mut Value) -> Result<Vec<String>, ApiError> {
    let single = object::text(service, &["spec", "clusterIP"]).to_owned();
    let mut addresses = texts(service, "clusterIPs");
    match addresses.first().cloned() {
        None if !single.is_empty() => addresses.push(single),
        Some(first) if single.is_empty() => {
            object::map_mut(service, "spec").insert("clusterIP".to_owned(), first.into());
        }
        Some(first) if first != single => {
            let detail = "first value must match `clusterIP`";
            let fault = Fault::invalid("spec.clusterIPs", &json!(addresses), detail);
            return Err(invalid(service, fault));
        }
        _ => {}
    }
    Ok(addresses)
}

fn check_known(service: &Value, families: &[String]) -> Result<(), ApiError> {
    for (index, family) in families.iter().enumerate() {
        let field = format!("spec.ipFamilies[{index}]");
        if !FAMILIES.contains(&family.as_str()) {
            let fault = Fault::not_supported(field, &json!(family), &FAMILIES);
            return Err(invalid(service, fault));
        }
        if families[..index].contains(family) {
            return Err(invalid(service, Fault::duplicate(field, &json!(family))));
        }
    }
    Ok(())
}

/// Addresses that were asked for tell their families, and must not contradict those that were named.
fn add_of_addresses(
    service: &Value,
    addresses: &[String],
    families: &mut Vec<String>,
) -> Result<(), ApiError> {
    for (index, address) in addresses.iter().enumerate().filter(|(_, ip)| *ip != "None") {
        let refuse = |detail: &str| {
            let field = format!("spec.clusterIPs[{index}]");
            Err(invalid(service, Fault::invalid(field, &json!(address), detail)))
        };
        let Ok(parsed) = address.parse::<IpAddr>() else {
            return refuse("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)");
        };
        let found = family(&parsed);
        match families.get(index) {
            None => families.push(found.to_owned()),
            Some(family) if family != found => {
                return refuse(&format!(
                    "expected an {family} value as indicated by `ipFamilies[{index}]`"
                ));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Adds what the policy asks for, and checks that the cluster has it.
fn complete(
    service: &Value,
    available: &[&str],
    unbound: bool,
    policy: &str,
    families: &mut Vec<String>,
) -> Result<(), ApiError> {
    if families.is_empty() {
        families.push(available.first().copied().unwrap_or("IPv4").to_owned());
    }
    if families.len() == 1 && policy != "SingleStack" {
        let second = other(&families[0]);
        if available.contains(&second) || (unbound && policy == "RequireDualStack") {
            families.push(second.to_owned());
        } else if policy == "RequireDualStack" {
            let detail = "this cluster is not configured for dual-stack services";
            let fault = Fault::invalid("spec.ipFamilyPolicy", &json!(policy), detail);
            return Err(invalid(service, fault));
        }
    }
    let missing = families
        .iter()
        .enumerate()
        .find(|(_, family)| !unbound && !available.contains(&family.as_str()));
    if let Some((index, family)) = missing {
        let field = format!("spec.ipFamilies[{index}]");
        let fault = Fault::invalid(field, &json!(family), "not configured on this cluster");
        return Err(invalid(service, fault));
    }
    Ok(())
}

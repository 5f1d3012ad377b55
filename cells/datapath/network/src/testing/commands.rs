// SPDX-License-Identifier: Apache-2.0

//! Commands on desired devices, routes and forwardable addresses.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use hive::Members;
use hive_script::{CommandError, CommandHandle, Context, Outcome, Spec, function};
use ipnet::IpNet;
use parking_lot::Mutex;
use serde::{Deserialize, Deserializer};
use skep_node_local::{
    Device,
    route::{parse_scope, parse_table, parse_type},
};
use statedb::{Db, InitGuard, Table};

use crate::{
    DesiredDevices, DesiredRoute, DesiredRoutes, DeviceRef, ForwardableIps, NextHop, Owner, OwnerError, Vlan,
};

/// Sources that a script has registered.
type Initializers = Arc<Mutex<BTreeMap<String, InitGuard>>>;

fn failed(error: impl std::error::Error + 'static) -> CommandError {
    CommandError::chain(&error)
}

fn done() -> Result<Outcome, CommandError> {
    Ok(Outcome::Silent)
}

fn read<T: serde::de::DeserializeOwned>(cx: &Context<'_>, file: &str) -> Result<T, CommandError> {
    let text = cx
        .read_file(file)
        .map_err(|error| CommandError::io("open", cx.path(file), &error))?;
    statedb::row::from_yaml(&text).map_err(|error| CommandError::new(format!("{file}: {error}")))
}

/// A command with one argument, a name.
fn named(
    spec: Spec,
    run: impl Fn(&str) -> Result<(), CommandError> + Send + Sync + 'static,
) -> CommandHandle {
    function(spec.args("name"), move |_, inv| {
        let [name] = inv.args() else {
            return Err(CommandError::usage("expected a name"));
        };
        run(name)?;
        done()
    })
}

/// Commands that register a source of rows and report that it has delivered.
fn initializers(
    names: [&str; 2],
    register: impl Fn(&str) -> Result<InitGuard, statedb::Error> + Send + Sync + 'static,
    finish: impl Fn(&InitGuard) -> Result<(), statedb::Error> + Send + Sync + 'static,
    missing: impl Fn(&str) -> String + Send + Sync + 'static,
) -> [CommandHandle; 2] {
    let all = Initializers::default();
    let added = all.clone();
    let [add_name, finish_name] = names;
    [
        named(Spec::new(add_name, "Register a source of rows"), move |name| {
            let guard = register(name).map_err(failed)?;
            added.lock().insert(name.to_owned(), guard);
            Ok(())
        }),
        named(
            Spec::new(finish_name, "Report that a source has delivered all rows"),
            move |name| {
                let Some(guard) = all.lock().remove(name) else {
                    return Err(CommandError::new(missing(name)));
                };
                finish(&guard).map_err(failed)
            },
        ),
    ]
}

#[derive(Deserialize)]
struct DeviceFile {
    name: String,
    #[serde(rename = "parentName", default)]
    parent_name: String,
    #[serde(rename = "vlanID", default)]
    vlan_id: u16,
    #[serde(default)]
    mtu: u32,
}

fn find_device(db: &Db, devices: &Table<Device>, name: &str) -> Option<DeviceRef> {
    let snapshot = db.read();
    let device = devices.get(&snapshot, Device::BY_NAME.key(name))?;
    Some(DeviceRef {
        name: device.name.clone(),
        index: device.index,
    })
}

pub(super) fn devices(db: Db, devices: Table<Device>, desired: DesiredDevices) -> Members<CommandHandle> {
    let (adding, removing) = (desired.clone(), desired.clone());
    let (registering, finishing) = (desired.clone(), desired);
    let add = Spec::new("add-device", "Desire a device").args("owner file");
    let add = function(add, move |cx, inv| {
        let [owner, file] = inv.args() else {
            return Err(CommandError::usage("expected owner and file"));
        };
        let file: DeviceFile = read(cx, file)?;
        let parent = find_device(&db, &devices, &file.parent_name).ok_or_else(|| {
            let (parent, name) = (&file.parent_name, &file.name);
            CommandError::new(format!(
                "parent device \"{parent}\" not found for VLAN device \"{name}\""
            ))
        })?;
        let owner = adding.owner(owner).map_err(failed)?;
        let vlan = Vlan {
            parent_name: parent.name,
            parent_index: parent.index,
            id: file.vlan_id,
            mtu: file.mtu,
        };
        adding.upsert(&owner, &file.name, vlan).map_err(failed)?;
        done()
    });
    let remove = Spec::new("remove-owner", "Delete the devices of an owner");
    let remove = named(remove, move |name| {
        let owner = removing.get_owner(name).map_err(failed)?;
        removing.remove_owner(&owner).map_err(failed)
    });
    let mut commands = vec![add, remove];
    commands.extend(initializers(
        ["add-initializer", "finish-initializer"],
        move |name| registering.register_initializer(name),
        move |guard| finishing.initialized(guard),
        |name| format!("initializer \"{name}\" not found"),
    ));
    Members(commands)
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct RouteFile {
    table: Option<Name>,
    prefix: Option<IpNet>,
    priority: u32,
    admin_distance: u32,
    #[serde(deserialize_with = "address")]
    nexthop: Option<IpAddr>,
    #[serde(deserialize_with = "address")]
    src: Option<IpAddr>,
    device: Option<String>,
    device_if_index: Option<u32>,
    multi_path: Vec<HopFile>,
    mtu: u32,
    scope: Option<Name>,
    r#type: Option<Name>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct HopFile {
    device: Option<String>,
    #[serde(deserialize_with = "address")]
    nexthop: Option<IpAddr>,
}

/// An address, none if the text is empty.
fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpAddr>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
    match text.as_str() {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(serde::de::Error::custom),
    }
}

/// A name or a number.
#[derive(Deserialize)]
#[serde(untagged)]
enum Name {
    Number(u32),
    Text(String),
}

impl Name {
    fn parse<T: TryFrom<u32>>(self, what: &str, parse: fn(&str) -> Option<T>) -> Result<T, CommandError> {
        let (text, found) = match self {
            Self::Number(number) => (number.to_string(), T::try_from(number).ok()),
            Self::Text(text) => {
                let found = parse(&text);
                (text, found)
            }
        };
        found.ok_or_else(|| CommandError::new(format!("invalid {what} \"{text}\"")))
    }
}

impl RouteFile {
    fn route(self, owner: &Owner, db: &Db, devices: &Table<Device>) -> Result<DesiredRoute, CommandError> {
        let device = |name: String| {
            find_device(db, devices, &name)
                .ok_or_else(|| CommandError::new(format!("device \"{name}\" not found")))
        };
        let prefix = self
            .prefix
            .ok_or_else(|| CommandError::new("prefix is missing"))?;
        let mut route = DesiredRoute::new(owner, prefix, self.admin_distance);
        if let Some(table) = self.table {
            route.table = table.parse("table", parse_table)?;
        }
        if let Some(scope) = self.scope {
            route.scope = scope.parse("scope", parse_scope)?;
        }
        if let Some(kind) = self.r#type {
            route.kind = kind.parse("type", parse_type)?;
        }
        route.priority = self.priority;
        route.nexthop = self.nexthop;
        route.src = self.src;
        route.mtu = self.mtu;
        route.device = match (self.device, self.device_if_index) {
            (Some(name), _) if !name.is_empty() => Some(device(name)?),
            (_, Some(index)) if index != 0 => {
                let snapshot = db.read();
                let row = devices.get(&snapshot, Device::BY_INDEX.key(&index));
                let row = row.ok_or_else(|| CommandError::new(format!("device \"{index}\" not found")))?;
                Some(DeviceRef {
                    name: row.name.clone(),
                    index,
                })
            }
            _ => None,
        };
        for hop in self.multi_path {
            route.multi_path.push(NextHop {
                device: hop
                    .device
                    .filter(|name| !name.is_empty())
                    .map(device)
                    .transpose()?,
                nexthop: hop.nexthop,
            });
        }
        Ok(route)
    }
}

pub(super) fn routes(db: Db, devices: Table<Device>, desired: DesiredRoutes) -> Members<CommandHandle> {
    let (owning, adding, removing) = (desired.clone(), desired.clone(), desired.clone());
    let (registering, finishing) = (desired.clone(), desired);
    let no_owner =
        |name: &str, error: OwnerError| CommandError::new(format!("failed to get owner \"{name}\": {error}"));
    let own = named(
        Spec::new("add-owner", "Register an owner of routes"),
        move |name| {
            let registered = owning.register_owner(name);
            registered
                .map(drop)
                .map_err(|error| CommandError::new(format!("failed to register owner \"{name}\": {error}")))
        },
    );
    let add = Spec::new("add-route", "Desire a route").args("owner file");
    let add = function(add, move |cx, inv| {
        let [name, file] = inv.args() else {
            return Err(CommandError::usage("expected owner and file"));
        };
        let owner = adding.get_owner(name).map_err(|error| no_owner(name, error))?;
        let file: RouteFile = read(cx, file)?;
        let route = file.route(&owner, &db, &devices)?;
        adding.upsert(route).map_err(failed)?;
        done()
    });
    let remove = named(
        Spec::new("remove-owner", "Delete the routes of an owner"),
        move |name| {
            let owner = removing.get_owner(name).map_err(|error| no_owner(name, error))?;
            removing.remove_owner(&owner).map_err(failed)
        },
    );
    let mut commands = vec![own, add, remove];
    commands.extend(initializers(
        ["add-initializer", "finish-initializer"],
        move |name| registering.register_initializer(name),
        move |guard| finishing.initialized(guard),
        |name| format!("failed to get initializer \"{name}\""),
    ));
    Members(commands)
}

pub(super) fn neighbors(ips: ForwardableIps) -> Members<CommandHandle> {
    let finishing = ips.clone();
    let commands = initializers(
        [
            "forwardable-ip/register-initializer",
            "forwardable-ip/finish-initializer",
        ],
        move |name| ips.register_initializer(name),
        move |guard| finishing.initialized(guard),
        |name| format!("no forwardable IP initializer registered with name \"{name}\""),
    );
    Members(commands.into())
}

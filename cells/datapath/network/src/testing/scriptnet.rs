// SPDX-License-Identifier: Apache-2.0

//! Commands on network namespaces and what is in them.

use std::{collections::BTreeMap, fmt::Write, net::IpAddr, sync::Arc};

use hive_script::{CommandError, CommandHandle, Flag, Invocation, Outcome, Spec, function};
use ipnet::IpNet;
use parking_lot::Mutex;
use skep_base_net::{
    LinkSpec, NetError, Netlink, Route, RouteFilter,
    netns::{Namespace, NetnsError},
    packet::route::RouteProtocol,
    sysctl,
};
use skep_node_local::{
    DeviceFlags, HardwareAddr,
    route::{parse_table, scope_name, table_name},
};

/// Name of the namespace that a script starts in.
const ROOT: &str = "root";

/// The network namespaces of a script.
pub(super) struct Scriptnet(Mutex<Spaces>);

struct Spaces {
    all: BTreeMap<String, Arc<Namespace>>,
    current: String,
}

fn failed(error: impl std::error::Error + 'static) -> CommandError {
    CommandError::chain(&error)
}

impl Scriptnet {
    /// The namespace of the calling thread is `root`.
    pub(super) fn new() -> Result<Self, NetnsError> {
        let root = Arc::new(Namespace::current()?);
        Ok(Self(Mutex::new(Spaces {
            all: BTreeMap::from([(ROOT.to_owned(), root)]),
            current: ROOT.to_owned(),
        })))
    }

    fn find(&self, name: &str) -> Result<Arc<Namespace>, CommandError> {
        let spaces = self.0.lock();
        let name = if name.is_empty() { &spaces.current } else { name };
        let found = spaces.all.get(name).cloned();
        found.ok_or_else(|| CommandError::new(format!("namespace \"{name}\" does not exist")))
    }

    fn create(&self, name: &str) -> Result<String, CommandError> {
        let mut spaces = self.0.lock();
        if spaces.all.contains_key(name) {
            return Err(CommandError::new(format!("namespace \"{name}\" already exists")));
        }
        let made = Namespace::new().map_err(failed)?;
        spaces.all.insert(name.to_owned(), Arc::new(made));
        Ok(format!("Created network namespace \"{name}\"\n"))
    }

    fn switch(&self, name: &str) -> Result<String, CommandError> {
        self.find(name)?;
        self.0.lock().current = name.to_owned();
        Ok(format!("Switched to network namespace \"{name}\"\n"))
    }

    fn list(&self) -> String {
        let spaces = self.0.lock();
        let names: String = spaces.all.keys().map(|name| format!("{name}\n")).collect();
        match names.is_empty() {
            true => "No network namespaces found.\n".to_owned(),
            false => names,
        }
    }
}

/// Runs in the namespace that a command names, or the current one.
type InNamespace = fn(&Scriptnet, &Netlink, &Invocation) -> Result<String, CommandError>;

fn command(net: &Arc<Scriptnet>, spec: Spec, run: InNamespace) -> CommandHandle {
    let net = net.clone();
    let spec = spec.flag(Flag::string(
        "netns",
        "",
        "Network namespace instead of the current one",
    ));
    function(spec, move |_, inv| {
        let space = net.find(inv.string("netns"))?;
        let work = || {
            let link = Netlink::open().map_err(failed)?;
            run(&net, &link, inv)
        };
        Ok(Outcome::stdout(space.inside(work).map_err(failed)??))
    })
}

pub(super) fn commands(net: Arc<Scriptnet>) -> Vec<CommandHandle> {
    let (creating, switching, listing) = (net.clone(), net.clone(), net.clone());
    let name = |inv: &Invocation| match inv.args() {
        [name] => Ok(name.clone()),
        _ => Err(CommandError::usage("expected a name")),
    };
    let add_route = |name: &str, summary: &str| {
        Spec::new(name, summary)
            .args("destination")
            .flag(Flag::string("gateway", "", "Next hop"))
            .flag(Flag::string("dev", "", "Interface"))
            .flag(Flag::string(
                "table",
                "",
                "Table: main, local, default or a number",
            ))
            .flag(Flag::int("mtu", 0, "MTU"))
            .flag(Flag::string("proto", "", "Protocol: kernel, static or a number"))
    };
    let no_mtu = |name: &str, summary: &str| {
        Spec::new(name, summary)
            .args("destination")
            .flag(Flag::string("gateway", "", "Next hop"))
            .flag(Flag::string("dev", "", "Interface"))
            .flag(Flag::string(
                "table",
                "",
                "Table: main, local, default or a number",
            ))
    };
    vec![
        function(Spec::new("netns/list", "List network namespaces"), move |_, _| {
            Ok(Outcome::stdout(listing.list()))
        }),
        function(
            Spec::new("netns/create", "Create a network namespace").args("name"),
            move |_, inv| Ok(Outcome::stdout(creating.create(&name(inv)?)?)),
        ),
        function(
            Spec::new("netns/switch", "Switch to another network namespace").args("name"),
            move |_, inv| Ok(Outcome::stdout(switching.switch(&name(inv)?)?)),
        ),
        command(
            &net,
            Spec::new("link/add", "Add an interface, which is down")
                .args("name dummy|veth")
                .flag(Flag::string("peername", "", "Name of the other end of a veth"))
                .flag(Flag::string("peerns", "", "Network namespace of the other end")),
            link_add,
        ),
        command(
            &net,
            Spec::new("link/set", "Change an interface").args("name up|down|mtu=N|hwaddr=MAC..."),
            link_set,
        ),
        command(
            &net,
            Spec::new("link/del", "Delete an interface").args("name"),
            link_del,
        ),
        command(&net, Spec::new("link/list", "List interfaces"), link_list),
        command(
            &net,
            Spec::new("addr/add", "Add an address to an interface").args("cidr dev"),
            addr_add,
        ),
        command(&net, add_route("route/add", "Add a route"), |_, net, inv| {
            net.add_route(&route_of(net, inv)?).map_err(failed)?;
            Ok(format!("Added route {}\n", inv.args()[0]))
        }),
        command(
            &net,
            add_route("route/replace", "Add or replace a route"),
            |_, net, inv| {
                net.replace_route(&route_of(net, inv)?).map_err(failed)?;
                Ok(format!("Replaced route {}\n", inv.args()[0]))
            },
        ),
        command(&net, no_mtu("route/del", "Delete a route"), route_del),
        command(
            &net,
            Spec::new("route/list", "List routes").flag(Flag::string(
                "table",
                "main",
                "Table: main, local, default, all or a number",
            )),
            route_list,
        ),
        command(
            &net,
            Spec::new("sysctl/get", "Read a setting").args("part..."),
            |_, _, inv| {
                let value = sysctl::get(&inv.args().join("/")).map_err(failed)?;
                Ok(format!("{} = {value}\n", inv.args().join(".")))
            },
        ),
        command(
            &net,
            Spec::new("sysctl/set", "Change a setting").args("part... value"),
            |_, _, inv| {
                let Some((value, parts)) = inv.args().split_last() else {
                    return Err(CommandError::usage("expected parts of the name and a value"));
                };
                sysctl::set(&parts.join("/"), value).map_err(failed)?;
                Ok(format!("Set {} = {value}\n", parts.join(".")))
            },
        ),
    ]
}

fn link_add(spaces: &Scriptnet, net: &Netlink, inv: &Invocation) -> Result<String, CommandError> {
    let [name, kind] = inv.args() else {
        return Err(CommandError::usage("expected name and type"));
    };
    match kind.as_str() {
        "dummy" => net.add_link(LinkSpec::dummy(name)).map_err(failed)?,
        "veth" => {
            let peer_name = inv.string("peername");
            if peer_name.is_empty() {
                return Err(CommandError::new("--peername must be specified for veth links"));
            }
            let mut peer = LinkSpec::new().name(peer_name);
            let space = match inv.string("peerns") {
                "" => None,
                space => Some(spaces.find(space)?),
            };
            if let Some(space) = &space {
                peer = peer.netns(std::os::fd::AsFd::as_fd(&**space));
            }
            net.add_link(LinkSpec::veth(name, peer)).map_err(failed)?;
        }
        kind => return Err(CommandError::new(format!("unsupported link type: {kind}"))),
    }
    Ok(format!("Created link \"{name}\" of type {kind}\n"))
}

fn link_set(_: &Scriptnet, net: &Netlink, inv: &Invocation) -> Result<String, CommandError> {
    let Some((name, properties)) = inv.args().split_first() else {
        return Err(CommandError::usage("expected name and properties"));
    };
    let link = net.link(name).map_err(failed)?;
    for property in properties {
        let (key, value) = property.split_once('=').unwrap_or((property, ""));
        let invalid = || CommandError::new(format!("invalid value \"{value}\" of property {key}"));
        let change = match key {
            "up" => LinkSpec::new().up(),
            "down" => LinkSpec::new().down(),
            "mtu" => LinkSpec::new().mtu(value.parse().map_err(|_| invalid())?),
            "hwaddr" => {
                let bytes: Result<Vec<u8>, _> = value
                    .split(':')
                    .map(|byte| u8::from_str_radix(byte, 16))
                    .collect();
                let mac = bytes.ok().and_then(|bytes| bytes.try_into().ok());
                LinkSpec::new().mac(mac.ok_or_else(invalid)?)
            }
            key => {
                return Err(CommandError::new(format!(
                    "unknown property \"{key}\", available: up, down, mtu, hwaddr"
                )));
            }
        };
        net.set_link(&link, change).map_err(failed)?;
    }
    Ok(String::new())
}

fn link_del(_: &Scriptnet, net: &Netlink, inv: &Invocation) -> Result<String, CommandError> {
    let [name] = inv.args() else {
        return Err(CommandError::usage("expected a name"));
    };
    let link = net.link(name).map_err(failed)?;
    net.delete_link(&link.name).map_err(failed)?;
    Ok(format!("Deleted link \"{name}\"\n"))
}

fn link_list(_: &Scriptnet, net: &Netlink, _: &Invocation) -> Result<String, CommandError> {
    let mut text = String::new();
    for link in net.links().map_err(failed)? {
        let kind = link.kind().unwrap_or_else(|| "device".to_owned());
        let flags = DeviceFlags::from_linux(link.flags.bits());
        let mac = HardwareAddr(link.mac.map(Into::into).unwrap_or_default());
        let state = link.state();
        let _ = writeln!(text, "{:4}: {} {kind} <{flags}>", link.index, link.name);
        let _ = writeln!(text, "      mtu: {}, state: {state}", link.mtu);
        let _ = writeln!(text, "      hwaddr: {mac}");
        for address in net.addresses(&link).map_err(failed)? {
            let _ = writeln!(text, "      addr: {}", address.address);
        }
    }
    Ok(text)
}

fn addr_add(_: &Scriptnet, net: &Netlink, inv: &Invocation) -> Result<String, CommandError> {
    let [cidr, dev] = inv.args() else {
        return Err(CommandError::usage("expected address and interface"));
    };
    let address: IpNet = cidr.parse().map_err(failed)?;
    net.add_address(&net.link(dev).map_err(failed)?, address)
        .map_err(failed)?;
    Ok(format!("Added address {cidr} to interface {dev}\n"))
}

/// The table of a flag.
fn table(text: &str) -> Result<u32, CommandError> {
    parse_table(text).ok_or_else(|| CommandError::new(format!("invalid table \"{text}\"")))
}

fn optional<T>(
    text: &str,
    parse: impl FnOnce(&str) -> Result<T, CommandError>,
) -> Result<Option<T>, CommandError> {
    match text {
        "" => Ok(None),
        text => parse(text).map(Some),
    }
}

fn address(text: &str) -> Result<IpAddr, CommandError> {
    text.parse().map_err(failed)
}

fn destination(inv: &Invocation) -> Result<IpNet, CommandError> {
    let [dst] = inv.args() else {
        return Err(CommandError::usage("expected a destination"));
    };
    let dst = if dst == "default" { "0.0.0.0/0" } else { dst };
    dst.parse::<IpNet>().map_err(failed)
}

fn device(net: &Netlink, name: &str) -> Result<u32, CommandError> {
    net.link(name).map(|link| link.index).map_err(failed)
}

fn protocol(text: &str) -> Result<RouteProtocol, CommandError> {
    match text {
        "kernel" => Ok(RouteProtocol::Kernel),
        "static" => Ok(RouteProtocol::Static),
        text => match text.parse::<u8>() {
            Ok(number) => Ok(RouteProtocol::from(number)),
            Err(_) => Err(CommandError::new(format!("invalid protocol \"{text}\""))),
        },
    }
}

fn route_of(net: &Netlink, inv: &Invocation) -> Result<Route, CommandError> {
    let mut route = Route::to(destination(inv)?.trunc());
    route.gateway = optional(inv.string("gateway"), address)?;
    route.device = optional(inv.string("dev"), |name| device(net, name))?;
    route.table = optional(inv.string("table"), table)?.unwrap_or(route.table);
    route.protocol = optional(inv.string("proto"), protocol)?.unwrap_or(RouteProtocol::Boot);
    route.mtu = u32::try_from(inv.int("mtu")).ok().filter(|mtu| *mtu > 0);
    Ok(route)
}

fn list(net: &Netlink, table: Option<u32>) -> Result<Vec<Route>, NetError> {
    let mut routes = net.routes(&RouteFilter::default())?;
    routes.retain(|route| table.is_none_or(|table| route.table == table));
    Ok(routes)
}

fn route_del(_: &Scriptnet, net: &Netlink, inv: &Invocation) -> Result<String, CommandError> {
    let dst = destination(inv)?.trunc();
    let text = &inv.args()[0];
    let gateway = optional(inv.string("gateway"), address)?;
    let dev = optional(inv.string("dev"), |name| device(net, name))?;
    let table = optional(inv.string("table"), table)?.unwrap_or(254);
    let mut found = list(net, Some(table)).map_err(failed)?;
    found.retain(|route| {
        route.destination == dst
            && gateway.is_none_or(|gateway| route.gateway == Some(gateway))
            && dev.is_none_or(|dev| route.device == Some(dev))
    });
    match found.as_slice() {
        [] => Err(CommandError::new(format!("no matching routes found for {text}"))),
        [route] => {
            net.delete_route(route).map_err(failed)?;
            Ok(format!("Deleted route {text}\n"))
        }
        _ => Err(CommandError::new(format!(
            "multiple matching routes found for {text}, please specify more filters"
        ))),
    }
}

fn route_list(_: &Scriptnet, net: &Netlink, inv: &Invocation) -> Result<String, CommandError> {
    let table = match inv.string("table") {
        "all" => None,
        text => Some(table(text)?),
    };
    let links: BTreeMap<u32, String> = net
        .links()
        .map_err(failed)?
        .into_iter()
        .map(|link| (link.index, link.name))
        .collect();
    let mut text = String::new();
    for route in list(net, table).map_err(failed)? {
        describe(&route, &links, &mut text);
    }
    Ok(text)
}

fn describe(route: &Route, links: &BTreeMap<u32, String>, text: &mut String) {
    let is_ipv4 = route.destination.addr().is_ipv4();
    let via = |gateway: Option<IpAddr>| match gateway {
        Some(gateway) if gateway.is_ipv4() == is_ipv4 => format!(" via {gateway}"),
        Some(gateway) if is_ipv4 => format!(" via inet6 {gateway}"),
        Some(gateway) => format!(" via inet {gateway}"),
        None => String::new(),
    };
    let dev = |device: Option<u32>| match device.filter(|device| *device != 0) {
        Some(device) => {
            let name = links.get(&device).cloned().unwrap_or_else(|| device.to_string());
            format!(" dev {name}")
        }
        None => String::new(),
    };
    text.push_str(&route.destination.to_string());
    if route.hops.is_empty() {
        text.push_str(&via(route.gateway));
        text.push_str(&dev(route.device));
    }
    let scope = u8::from(route.scope);
    let scope = scope_name(scope).map_or_else(|| scope.to_string(), str::to_owned);
    let _ = write!(text, " scope {scope}");
    if let Some(source) = route.source {
        let _ = write!(text, " src {source}");
    }
    if let Some(mtu) = route.mtu.filter(|mtu| *mtu != 0) {
        let _ = write!(text, " mtu {mtu}");
    }
    let table = table_name(route.table).map_or_else(|| route.table.to_string(), str::to_owned);
    let _ = write!(text, " table {table}");
    if let Some(priority) = route.metric.filter(|priority| *priority != 0) {
        let _ = write!(text, " priority {priority}");
    }
    text.push('\n');
    for hop in &route.hops {
        let _ = writeln!(text, "    nexthop{}{}", via(hop.gateway), dev(hop.device));
    }
}

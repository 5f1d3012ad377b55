// SPDX-License-Identifier: Apache-2.0

//! The programs at interfaces: loaded once, attached to all of them, replaced in place when an option changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::BorrowedFd,
    sync::Arc,
};

use hive::Trigger;
use parking_lot::Mutex;
use skep_base_net::NetError;
use skep_base_settings::Acceleration;
use skep_bpf_maps::{
    MapSizes,
    endpoint::{DEVICES, Device, VLANS, VlanKey},
};
use skep_bpf_programs::{LoadError, NodeOptions, Packets, XDP_PROGRAM};
use skep_bpf_sys::{
    Hold, Map, MapError, MapStore,
    capability::{self, CapabilityError},
    link::{self, InterfaceLinks, LinkError, XdpMode, has_interface_links, program_name},
    map::Plain,
};
use skep_datapath_hooks::{HOST_DEVICE as HOST, NET_DEVICE as NET};
use skep_datapath_maps::Maps;
use tokio::sync::watch;

use crate::{
    attach::{self, Attached, Attachment, Hook, Owner, attach_tc, tc_hook},
    desired::{Desired, DirectRouting, NativeDevice},
    options::PacketSettings,
    overlay::VXLAN,
    pair::Pair,
};

mod endpoints;

use endpoints::EndpointProgram;

/// Interfaces that a program of the node is attached to.
#[derive(Clone, Copy)]
enum Place {
    Devices,
    Tunnel,
    /// `cilium_host`.
    Host,
    /// `cilium_host` and `cilium_net`.
    Pair,
}

struct NodeProgram {
    name: &'static str,
    hook: Hook,
    place: Place,
    is_wanted: fn(&PacketSettings) -> bool,
}

const fn program(
    name: &'static str,
    hook: Hook,
    place: Place,
    is_wanted: fn(&PacketSettings) -> bool,
) -> NodeProgram {
    NodeProgram {
        name,
        hook,
        place,
        is_wanted,
    }
}

/// Programs of the node in the order of attachment. Those that translate egress come first, so that nothing is sent to a
/// backend without a way back.
const NODE_PROGRAMS: [NodeProgram; 7] = [
    program("cil_to_overlay", Hook::Egress, Place::Tunnel, |settings| {
        settings.tunnel.is_tunnelled()
    }),
    program("cil_from_overlay", Hook::Ingress, Place::Tunnel, |settings| {
        settings.tunnel.is_tunnelled()
    }),
    program(
        "cil_to_netdev",
        Hook::Egress,
        Place::Devices,
        PacketSettings::has_egress,
    ),
    program("cil_from_netdev", Hook::Ingress, Place::Devices, |_| true),
    program("cil_to_host", Hook::Ingress, Place::Pair, |_| true),
    program("cil_from_host", Hook::Egress, Place::Host, |_| true),
    program(XDP_PROGRAM, Hook::Xdp, Place::Devices, PacketSettings::has_xdp),
];

/// Why the programs are not what is configured.
#[derive(Debug, thiserror::Error)]
pub enum DatapathError {
    /// This process may not load or attach programs.
    #[error("programs at interfaces: not permitted")]
    Capability(#[from] CapabilityError),
    /// The pair of interfaces that joins node and pods is not there.
    #[error("cilium_host and cilium_net are not set up")]
    Pair(#[from] NetError),
    /// The interface of the tunnel is not as configured.
    #[error("the tunnel is not set up")]
    Tunnel(#[source] NetError),
    #[error("programs at interfaces: not loaded")]
    Load(#[from] LoadError),
    /// Programs were not attached or detached; all others are.
    #[error("programs at interfaces: {}", list(.0))]
    Links(Vec<LinkError>),
    /// What is attached cannot be found out.
    #[error("links of programs cannot be listed")]
    List(#[from] std::io::Error),
    /// Addresses of interfaces were not written, or a new map did not get its pin.
    #[error("maps of interfaces were not written")]
    Map(#[from] MapError),
    /// The thread that does the work ended.
    #[error("programs at interfaces: interrupted")]
    Interrupted(#[from] tokio::task::JoinError),
    /// Programs were detached by another program; they are attached again.
    #[error("programs were detached by another program: {}", .0.join(", "))]
    Detached(Vec<String>),
    /// Another process put other programs into the links. They are left there: taking them back starts a fight. Stop the
    /// other, and restart this one.
    #[error("programs were replaced by another process: {}", .0.join(", "))]
    Replaced(Vec<String>),
}

fn list(errors: &[LinkError]) -> String {
    let text = |error: &LinkError| {
        let text = hive::error_chain(error);
        match error {
            LinkError::Occupied { .. } => {
                format!("{text} (detach it, or change bpf-lb-acceleration or devices)")
            }
            _ => text,
        }
    };
    let texts: Vec<String> = errors.iter().map(text).collect();
    texts.join("; ")
}

/// What is attached, for status displays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PacketStatus {
    /// The programs are loaded and attached.
    pub is_attached: bool,
    pub attachment: Option<Attachment>,
    /// Devices that face the cluster and the outside.
    pub devices: Vec<String>,
    pub xdp_devices: Vec<String>,
    pub direct_routing: Option<DirectRouting>,
    /// Network that packets of pods reach with their own addresses, empty for none, of IPv4 and IPv6; `None` for a family
    /// that is not masqueraded.
    pub masquerading: [Option<String>; 2],
    /// Programs, `program at interface`.
    pub programs: Vec<String>,
}

/// Loaded programs, and the options that they have.
struct Loaded {
    options: NodeOptions,
    tc: Packets,
    overlay: Option<Packets>,
    xdp: Option<Packets>,
}

impl Loaded {
    fn program(&self, name: &'static str) -> Option<BorrowedFd<'_>> {
        let others = [self.overlay.as_ref(), self.xdp.as_ref()];
        let mut others = others.into_iter().flatten();
        self.tc
            .program(name)
            .or_else(|| others.find_map(|object| object.program(name)))
    }
}

#[derive(Default)]
struct State {
    loaded: Option<Loaded>,
    attached: Vec<Attached>,
    /// Programs of endpoints that have filters for now, and get links.
    unlinked: BTreeSet<(u16, EndpointProgram)>,
    /// Whether all our programs at devices are in `attached`: those that other processes had left were looked for, and no
    /// step failed.
    knows_all: bool,
}

impl State {
    /// A program that this process has attached to an endpoint.
    fn at_endpoint(&self, id: u16, (program, _): EndpointProgram) -> Option<&Attached> {
        let mut of_endpoint = self
            .attached
            .iter()
            .filter(|known| known.owner == Owner::Endpoint(id));
        of_endpoint.find(|known| known.program == program)
    }

    /// Forgets a program of an endpoint.
    fn forget(&mut self, id: u16, program: EndpointProgram) {
        self.attached
            .retain(|known| known.owner != Owner::Endpoint(id) || known.program != program.0);
        self.unlinked.remove(&(id, program));
    }
}

/// The programs at interfaces of this node.
pub struct PacketDatapath {
    store: Arc<MapStore>,
    sizes: MapSizes,
    devices: Map<u32, Device>,
    vlans: Map<VlanKey, u8>,
    settings: PacketSettings,
    hold: Mutex<Option<Hold>>,
    state: Mutex<State>,
    status: Mutex<PacketStatus>,
    loaded: watch::Sender<bool>,
    unlinked: Trigger,
}

impl std::fmt::Debug for PacketDatapath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketDatapath")
            .field("status", &*self.status.lock())
            .finish_non_exhaustive()
    }
}

impl PacketDatapath {
    /// The programs as configured; nothing is done yet, but maps that get replaced keep their pins until the programs are
    /// attached.
    pub fn new(store: Arc<MapStore>, maps: &Maps, settings: PacketSettings) -> Arc<Self> {
        Arc::new(Self {
            hold: Mutex::new(Some(store.hold())),
            store,
            sizes: maps.sizes(),
            devices: maps.handle(&DEVICES),
            vlans: maps.handle(&VLANS),
            settings,
            state: Mutex::default(),
            status: Mutex::default(),
            loaded: watch::Sender::new(false),
            unlinked: Trigger::new(),
        })
    }

    pub fn settings(&self) -> &PacketSettings {
        &self.settings
    }

    pub fn status(&self) -> PacketStatus {
        self.status.lock().clone()
    }

    /// Whether the programs are loaded, now and later.
    pub(crate) fn watch_loaded(&self) -> watch::Receiver<bool> {
        self.loaded.subscribe()
    }

    /// Whether the programs are loaded, and attached but for those that health names.
    pub(crate) fn is_loaded(&self) -> bool {
        *self.loaded.borrow()
    }

    /// Triggered when an endpoint is to get its link.
    pub(crate) fn unlinked(&self) -> &Trigger {
        &self.unlinked
    }

    /// Programs go on without this process; only the maps of the next start are held again.
    pub(crate) fn hold_again(&self) {
        let mut hold = self.hold.lock();
        if hold.is_none() {
            *hold = Some(self.store.hold());
        }
    }

    /// Maps were replaced, and the programs are still to be switched to them.
    pub(crate) fn waits_for_maps(&self) -> bool {
        self.hold.lock().is_some() && self.store.has_pending()
    }

    fn attachment(&self) -> Attachment {
        if self.settings.attach.tcx && has_interface_links() {
            Attachment::Link
        } else {
            Attachment::Filter {
                priority: self.settings.attach.priority(),
            }
        }
    }

    /// Loads the programs if an option has changed, attaches them to these devices and the pair, and detaches them from
    /// all others; then lets replaced maps take over their pins. Blocks for some hundred milliseconds.
    pub(crate) fn apply(
        &self,
        desired: &Desired,
        pair: Pair,
        options: &NodeOptions,
    ) -> Result<PacketStatus, DatapathError> {
        let done = self.attach_all(desired, pair, options);
        // Whatever was not attached: all others write and read the new maps.
        if let Some(hold) = self.hold.lock().take() {
            hold.release()?;
        }
        done
    }

    fn attach_all(
        &self,
        desired: &Desired,
        pair: Pair,
        options: &NodeOptions,
    ) -> Result<PacketStatus, DatapathError> {
        capability::require(&capability::REQUIRED)?;
        let how = self.attachment();
        let devices = &desired.devices;
        self.write_devices(devices, pair)?;
        let is_new = {
            let state = self.state.lock();
            let loaded = state.loaded.as_ref();
            loaded.is_none_or(|loaded| loaded.options != *options)
        };
        // Without the lock: new endpoints do not wait for it.
        let loaded = is_new.then(|| self.load(options)).transpose()?;
        if is_new {
            tracing::info!("Loaded programs of interfaces");
            // Loading took a while: flows that began meanwhile are known to the new programs, too.
            self.store.carry_pending()?;
        }
        let mut state = self.state.lock();
        if loaded.is_some() {
            state.loaded = loaded;
        }
        let mut errors = Vec::new();
        let wanted = self.wanted(devices);
        let mut attached = Vec::new();
        for (interface, program, hook) in &wanted {
            let owner = Owner::Device(interface.clone());
            match self.attach_one(&state, owner, interface, program, *hook, how) {
                Ok(done) => attached.extend(done),
                Err(LinkError::NoInterface { .. }) => {
                    // Its removal is on its way through the tables.
                    tracing::info!(interface, program, "Interface is gone, not attaching program");
                }
                Err(error) => errors.push(error),
            }
        }
        self.detach_others(&mut state, &wanted, &mut errors)?;
        state
            .attached
            .retain(|known| matches!(known.owner, Owner::Endpoint(_)));
        state.attached.extend(attached);
        if is_new {
            self.replace_in_endpoints(&mut state, how, &mut errors)?;
        }
        let status = Self::describe(&state, desired, options, how);
        *self.status.lock() = status.clone();
        drop(state);
        self.loaded.send_replace(true);
        if errors.is_empty() {
            Ok(status)
        } else {
            Err(DatapathError::Links(errors))
        }
    }

    fn load(&self, options: &NodeOptions) -> Result<Loaded, LoadError> {
        let xdp = self.settings.has_xdp();
        Ok(Loaded {
            options: options.clone(),
            tc: Packets::load(&self.store, self.sizes.clone(), options)?,
            overlay: (options.packets.tunnel.is_some())
                .then(|| Packets::load_overlay(&self.store, self.sizes.clone(), options))
                .transpose()?,
            xdp: xdp
                .then(|| Packets::load_xdp(&self.store, self.sizes.clone(), options))
                .transpose()?,
        })
    }

    /// Programs of the node's interfaces, in the order they are attached.
    fn wanted(&self, devices: &[NativeDevice]) -> Vec<(String, &'static str, Hook)> {
        let programs = NODE_PROGRAMS
            .iter()
            .filter(|program| (program.is_wanted)(&self.settings));
        programs
            .flat_map(|program| {
                let interfaces = match program.place {
                    Place::Devices => devices.iter().map(|device| device.name.as_str()).collect(),
                    Place::Tunnel => vec![VXLAN],
                    Place::Host => vec![HOST],
                    Place::Pair => vec![HOST, NET],
                };
                interfaces
                    .into_iter()
                    .map(|interface| (interface.to_owned(), program.name, program.hook))
            })
            .collect()
    }

    fn attach_one(
        &self,
        state: &State,
        owner: Owner,
        interface: &str,
        program: &'static str,
        hook: Hook,
        how: Attachment,
    ) -> Result<Option<Attached>, LinkError> {
        let Some(program_fd) = state.loaded.as_ref().and_then(|loaded| loaded.program(program)) else {
            return Ok(None);
        };
        let directory = owner.links(&self.store.root());
        match tc_hook(hook) {
            Some(hook) => attach_tc(&directory, interface, program, program_fd, hook, how)?,
            None => {
                let acceleration = self.settings.attach.acceleration;
                let mode = match acceleration {
                    Acceleration::TestingOnly => XdpMode::Generic,
                    _ => XdpMode::Native,
                };
                let links = InterfaceLinks::new(&directory, interface)?;
                match links.attach_xdp(program, program_fd, mode) {
                    Err(error) if acceleration == Acceleration::BestEffort && is_unsupported(&error) => {
                        tracing::info!(interface, "Driver does not support XDP");
                        return Ok(None);
                    }
                    done => drop(done?),
                }
            }
        }
        attached(owner, interface, program, hook, program_fd).map(Some)
    }

    /// Detaches our programs from interfaces where they are not wanted, also those of an earlier process.
    fn detach_others(
        &self,
        state: &mut State,
        wanted: &[(String, &'static str, Hook)],
        errors: &mut Vec<LinkError>,
    ) -> Result<(), DatapathError> {
        let root = self.store.root();
        let is_wanted = |interface: &str, program: &str| {
            wanted
                .iter()
                .any(|(name, known, _)| name.replace('.', "-") == interface && *known == program)
        };
        // Names of directories, in which dots are dashes: links go by those.
        let mut interfaces: BTreeSet<String> = attach::owners(&root.join("cilium/devices"))?
            .into_iter()
            .collect();
        // Filters, and programs without links of ours, are in no directory.
        let without_links: BTreeSet<(String, &str)> = if state.knows_all {
            let at_devices = |known: &&Attached| matches!(known.owner, Owner::Device(_));
            let known = state.attached.iter().filter(at_devices);
            known
                .map(|known| (known.interface.clone(), known.program))
                .collect()
        } else {
            attach::found(&NODE_PROGRAMS.map(|program| (program.name, program.hook)))?
        };
        interfaces.extend(without_links.iter().map(|(interface, _)| interface.clone()));
        for interface in interfaces {
            let directory = Owner::Device(interface.clone()).links(&root);
            for NodeProgram {
                name: program, hook, ..
            } in NODE_PROGRAMS
            {
                if is_wanted(&interface.replace('.', "-"), program) {
                    continue;
                }
                let detached = link::detach(&directory, program).and_then(|had_link| {
                    let is_found = without_links.contains(&(interface.clone(), program));
                    let removed =
                        is_found && attach::detach_without_link(&directory, &interface, program, hook)?;
                    Ok(had_link || removed)
                });
                match detached {
                    Ok(true) => tracing::info!(interface, program, "Detached program"),
                    Ok(false) => {}
                    Err(error) => errors.push(error),
                }
            }
            attach::remove_empty(&directory);
        }
        state.knows_all = errors.is_empty();
        Ok(())
    }

    /// Writes addresses of the devices and of the pair, and VLANs that devices carry for others; deletes the rest.
    fn write_devices(&self, devices: &[NativeDevice], pair: Pair) -> Result<(), MapError> {
        let mac = |mac| Device {
            mac,
            ..Device::default()
        };
        let mut wanted = BTreeMap::from([(pair.host, mac(pair.host_mac)), (pair.net, mac(pair.net_mac))]);
        for device in devices {
            wanted.insert(device.index, device.facts());
        }
        write_all(&self.devices, &wanted)?;
        let vlans = devices.iter().filter_map(NativeDevice::vlan_key);
        write_all(&self.vlans, &vlans.map(|key| (key, 0)).collect())
    }

    fn describe(state: &State, desired: &Desired, options: &NodeOptions, how: Attachment) -> PacketStatus {
        let of_node = || {
            state
                .attached
                .iter()
                .filter(|known| matches!(known.owner, Owner::Device(_)))
        };
        PacketStatus {
            is_attached: true,
            attachment: Some(how),
            devices: desired.names().into_iter().map(str::to_owned).collect(),
            xdp_devices: of_node()
                .filter(|known| known.hook == Hook::Xdp)
                .map(|known| known.interface.clone())
                .collect(),
            direct_routing: desired.direct_routing.clone(),
            masquerading: masquerading(options),
            programs: of_node()
                .map(|known| format!("{} at {}", known.program, known.interface))
                .collect(),
        }
    }

    /// Compares what runs with what was attached; attaches again what is missing, and nothing else.
    ///
    /// # Errors
    ///
    /// [`DatapathError::Detached`] if something was missing (and is attached again), or what kept it from being attached.
    /// [`DatapathError::Replaced`] if other programs run in the place of ours.
    pub fn check(&self) -> Result<(), DatapathError> {
        let state = self.state.lock();
        let root = self.store.root();
        let how = self.attachment();
        let (mut missing, mut replaced, mut errors) = (Vec::new(), Vec::new(), Vec::new());
        for known in state.attached.clone() {
            let directory = known.owner.links(&root);
            let place = format!("{} at {}", known.program, known.interface);
            match attach::running(&directory, &known.interface, known.program, known.hook) {
                Ok(Some(id)) if id == known.id => {}
                Ok(Some(id)) => {
                    let name = program_name(id).ok().flatten();
                    let name = name.as_deref().unwrap_or("without a name");
                    replaced.push(format!("{name} (id {id}) in the place of {place}"));
                }
                Ok(None) => {
                    let again = self.attach_one(
                        &state,
                        known.owner.clone(),
                        &known.interface,
                        known.program,
                        known.hook,
                        how,
                    );
                    match again {
                        // The interface is gone: whoever owns it hears of that.
                        Err(LinkError::NoInterface { .. }) => {}
                        Err(error) => errors.push(error),
                        Ok(_) => missing.push(place),
                    }
                }
                Err(error) => errors.push(error),
            }
        }
        if !errors.is_empty() {
            return Err(DatapathError::Links(errors));
        }
        if !missing.is_empty() {
            return Err(DatapathError::Detached(missing));
        }
        if replaced.is_empty() {
            Ok(())
        } else {
            Err(DatapathError::Replaced(replaced))
        }
    }
}

/// Writes these entries, and deletes all others.
fn write_all<K: Plain + Ord, V: Plain>(map: &Map<K, V>, wanted: &BTreeMap<K, V>) -> Result<(), MapError> {
    for (key, value) in wanted {
        map.update(key, value)?;
    }
    for key in map.keys()? {
        if !wanted.contains_key(&key) {
            map.delete(&key)?;
        }
    }
    Ok(())
}

fn attached(
    owner: Owner,
    interface: &str,
    program: &'static str,
    hook: Hook,
    program_fd: BorrowedFd<'_>,
) -> Result<Attached, LinkError> {
    let id = link::program_id(program_fd).map_err(|source| LinkError::List {
        interface: interface.to_owned(),
        source,
    })?;
    Ok(Attached {
        owner,
        interface: interface.to_owned(),
        program,
        hook,
        id,
    })
}

fn masquerading(options: &NodeOptions) -> [Option<String>; 2] {
    let packets = &options.packets;
    let native4 = packets.native4.map(|(network, bits)| format!("{network}/{bits}"));
    let native6 = packets.native6.map(|(network, bits)| format!("{network}/{bits}"));
    [
        packets.masquerade4.then(|| native4.unwrap_or_default()),
        packets.masquerade6.then(|| native6.unwrap_or_default()),
    ]
}

/// The driver of the interface runs no programs.
fn is_unsupported(error: &LinkError) -> bool {
    let LinkError::AttachInterface { source, .. } = error else {
        return false;
    };
    source.raw_os_error() == Some(libc::EOPNOTSUPP)
}

#[cfg(test)]
mod tests;

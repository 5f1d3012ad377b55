// SPDX-License-Identifier: Apache-2.0

//! Map families: each is described once, beside its keys and values, and registered. A family has one map, or one for each
//! of its *instances* ([`with_instances`](MapFamily::with_instances)), pinned with the number of the instance.
//!
//! ```
//! use skep_bpf_maps::{MapFamily, MapSizes, Size, layout, register};
//! use skep_bpf_sys::MapKind;
//!
//! // A crate adds a family: its description, and this line.
//! static COLOURS: MapFamily<u32, u64> =
//!     MapFamily::new("cilium_colours", MapKind::Hash, Size::Fixed(64), "painter").written_by_agent();
//! register!(COLOURS);
//!
//! let family = skep_bpf_maps::find("cilium_colours").unwrap();
//! assert_eq!(family.spec(&MapSizes::default()).max_entries, 64);
//! assert_eq!(family.key.text(&7_u32.to_ne_bytes()), "7");
//! ```

use std::{cmp::Ordering, io, marker::PhantomData, mem::size_of, ops::Deref};

use skep_bpf_sys::{
    MapFlags, MapKind, MapSpec, NestedSpec, RawMap, RawSpec,
    map::{InnerSpec, Plain, possible_cpus},
};

use crate::{
    dump::Dump,
    layout::{Layout, Struct},
    sizes::{MapSizes, SizeKey},
    text::{Text, list_text, text_of},
};

/// An address family whose maps exist only when it is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// How many entries a map holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    Fixed(u32),
    Key(SizeKey),
    /// One for each CPU that the kernel may ever use.
    PossibleCpus,
}

impl Size {
    fn resolve(self, sizes: &MapSizes) -> u32 {
        match self {
            Self::Fixed(entries) => entries,
            Self::Key(key) => sizes.get(key),
            Self::PossibleCpus => possible_cpus(),
        }
    }
}

/// Keys or values of a family.
#[derive(Debug, Clone, Copy)]
pub struct Side {
    /// Bytes; of one CPU's value in a per-CPU map, of one element in a map of maps.
    pub size: u32,
    /// The C structure, if it is one.
    pub layout: Option<Struct>,
    text: fn(&[u8]) -> String,
}

impl Side {
    const fn new<T: Plain + Text + Layout>() -> Self {
        Self {
            size: size_of::<T>() as u32,
            layout: T::STRUCT,
            text: text_of::<T>,
        }
    }

    pub fn text(&self, bytes: &[u8]) -> String {
        (self.text)(bytes)
    }
}

/// What the values of a map of maps are.
#[derive(Debug, Clone, Copy)]
enum Inner {
    /// Tables with so many elements, written as a whole.
    Table { name: &'static str, elements: Size },
    /// Maps of this family.
    Instances(&'static Family),
}

/// A map family, without Rust types.
#[derive(Debug)]
pub struct Family {
    /// Name of the map and of its pin; what names of instances begin with.
    pub name: &'static str,
    pub kind: MapKind,
    pub key: Side,
    pub value: Side,
    /// The cell that writes it, or has programs write it: its maps are opened when the owner is part of the program.
    pub owner: &'static str,
    /// The address family it belongs to; `None` for both.
    pub ip: Option<IpFamily>,
    /// Whether a metric says how full it is.
    pub has_pressure: bool,
    /// Whether it has a map for each instance.
    pub has_instances: bool,
    size: Size,
    inner: Option<Inner>,
    is_written_by_agent: bool,
    is_mmapable: bool,
    is_sparse: bool,
    order: fn(&[u8], &[u8]) -> Ordering,
}

impl Family {
    /// What its map must look like, with these sizes.
    pub fn spec(&self, sizes: &MapSizes) -> RawSpec {
        RawSpec {
            name: self.name,
            kind: self.kind,
            key_size: self.key.size,
            value_size: if self.inner.is_some() { 4 } else { self.value.size },
            max_entries: self.size.resolve(sizes),
            flags: self.flags(sizes),
            inner: self.inner.map(|inner| self.inner_spec(inner, sizes)),
        }
    }

    /// The setting of its size, if there is one.
    pub const fn size_setting(&self) -> Option<&'static str> {
        match self.size {
            Size::Key(key) => Some(key.name),
            Size::Fixed(_) | Size::PossibleCpus => None,
        }
    }

    fn inner_spec(&self, inner: Inner, sizes: &MapSizes) -> InnerSpec {
        match inner {
            Inner::Table { name, elements } => {
                InnerSpec::table(name, elements.resolve(sizes).saturating_mul(self.value.size))
            }
            Inner::Instances(family) => {
                let spec = family.spec(sizes);
                InnerSpec {
                    name: spec.name,
                    kind: spec.kind,
                    key_size: spec.key_size,
                    value_size: spec.value_size,
                    max_entries: spec.max_entries,
                    flags: spec.flags,
                }
            }
        }
    }

    /// Name of the map of an instance, and of its pin: the number has at least five digits.
    pub fn instance_name(&self, instance: u16) -> String {
        format!("{}_{instance:05}", self.name)
    }

    /// The instance whose map has this name.
    pub fn instance_of(&self, name: &str) -> Option<u16> {
        let number = name.strip_prefix(self.name)?.strip_prefix('_')?;
        number.parse().ok().filter(|_| self.has_instances)
    }

    pub fn order(&self, one: &[u8], other: &[u8]) -> Ordering {
        (self.order)(one, other)
    }

    /// Whether a map has keys and values of this family's sizes.
    pub fn fits(&self, map: &dyn RawMap) -> bool {
        let info = map.info();
        let value_size = if self.inner.is_some() { 4 } else { self.value.size };
        (info.key_size, info.value_size) == (self.key.size, value_size)
    }

    /// All entries of one of its maps, in the order of lists.
    ///
    /// # Errors
    ///
    /// What the kernel says; [`is_unreadable`](Dump::is_unreadable) is true for kinds that user space cannot read.
    pub fn dump(&'static self, map: &dyn RawMap) -> io::Result<Dump> {
        Dump::of(self, map)
    }

    fn flags(&self, sizes: &MapSizes) -> MapFlags {
        let memory = match self.kind {
            MapKind::LpmTrie => MapFlags::NO_PREALLOC,
            MapKind::Hash | MapKind::PerCpuHash | MapKind::HashOfMaps
                if self.is_sparse || !sizes.preallocate =>
            {
                MapFlags::NO_PREALLOC
            }
            MapKind::LruHash if sizes.distributed_lru => MapFlags::NO_COMMON_LRU,
            MapKind::LruPerCpuHash => MapFlags::NO_COMMON_LRU,
            _ => MapFlags::NONE,
        };
        if self.is_mmapable {
            memory.union(MapFlags::MMAPABLE)
        } else if self.is_written_by_agent {
            memory.union(MapFlags::RDONLY_PROG)
        } else {
            memory
        }
    }

    const fn new<K: Plain + Ord>(
        name: &'static str,
        kind: MapKind,
        sides: (Side, Side),
        size: Size,
        owner: &'static str,
    ) -> Self {
        Self {
            name,
            kind,
            key: sides.0,
            value: sides.1,
            owner,
            ip: None,
            has_pressure: false,
            has_instances: false,
            size,
            inner: None,
            is_written_by_agent: false,
            is_mmapable: false,
            is_sparse: false,
            order: order_of::<K>,
        }
    }
}

fn order_of<K: Plain + Ord>(one: &[u8], other: &[u8]) -> Ordering {
    match (K::read_from_bytes(one), K::read_from_bytes(other)) {
        (Ok(one), Ok(other)) => one.cmp(&other),
        _ => one.cmp(other),
    }
}

/// Builders that both typed descriptions have.
macro_rules! builders {
    ($family:ident) => {
        impl<K, V> $family<K, V> {
            /// Exists only if this address family is on.
            #[must_use]
            pub const fn of(mut self, ip: IpFamily) -> Self {
                self.family.ip = Some(ip);
                self
            }

            /// Programs only read it.
            #[must_use]
            pub const fn written_by_agent(mut self) -> Self {
                self.family.is_written_by_agent = true;
                self
            }

            /// User space can map its memory; an array.
            #[must_use]
            pub const fn mmapable(mut self) -> Self {
                self.family.is_mmapable = true;
                self
            }

            /// Its memory is taken when entries come, whatever is configured.
            #[must_use]
            pub const fn sparse(mut self) -> Self {
                self.family.is_sparse = true;
                self
            }

            /// A metric says how full it is.
            #[must_use]
            pub const fn with_pressure(mut self) -> Self {
                self.family.has_pressure = true;
                self
            }

            /// Shows keys in this form.
            #[must_use]
            pub const fn with_key_text(mut self, text: fn(&[u8]) -> String) -> Self {
                self.family.key.text = text;
                self
            }

            /// Shows values in this form: all bytes that belong to a key.
            #[must_use]
            pub const fn with_value_text(mut self, text: fn(&[u8]) -> String) -> Self {
                self.family.value.text = text;
                self
            }
        }

        impl<K, V> Deref for $family<K, V> {
            type Target = Family;

            fn deref(&self) -> &Family {
                &self.family
            }
        }
    };
}

/// The family of the maps of `K` to `V`.
#[derive(Debug)]
pub struct MapFamily<K, V> {
    #[doc(hidden)]
    pub family: Family,
    types: PhantomData<fn() -> (K, V)>,
}

builders!(MapFamily);

impl<K, V> MapFamily<K, V>
where
    K: Plain + Ord + Text + Layout,
    V: Plain + Text + Layout,
{
    /// Describes a family: pinned name, type, size, owner.
    pub const fn new(name: &'static str, kind: MapKind, size: Size, owner: &'static str) -> Self {
        Self {
            family: Family::new::<K>(name, kind, (Side::new::<K>(), Side::new::<V>()), size, owner),
            types: PhantomData,
        }
    }

    /// Has a map for each instance.
    #[must_use]
    pub const fn with_instances(mut self) -> Self {
        self.family.has_instances = true;
        self
    }

    /// What its map must look like, with these sizes.
    pub fn spec(&self, sizes: &MapSizes) -> MapSpec<K, V> {
        let raw = self.family.spec(sizes);
        MapSpec::new(raw.name, raw.kind, raw.max_entries, raw.flags)
    }
}

/// The family of the maps of `K` to tables of `E`.
#[derive(Debug)]
pub struct NestedFamily<K, E> {
    #[doc(hidden)]
    pub family: Family,
    types: PhantomData<fn() -> (K, E)>,
}

builders!(NestedFamily);

impl<K, E> NestedFamily<K, E>
where
    K: Plain + Ord + Text + Layout,
    E: Plain + Text + Layout,
{
    /// Describes a family: pinned name, name of the inner maps, how many of them, elements of each, owner.
    pub const fn new(
        name: &'static str,
        inner_name: &'static str,
        size: Size,
        elements: Size,
        owner: &'static str,
    ) -> Self {
        let mut value = Side::new::<E>();
        value.text = list_text::<E>;
        let mut family = Family::new::<K>(name, MapKind::HashOfMaps, (Side::new::<K>(), value), size, owner);
        family.inner = Some(Inner::Table {
            name: inner_name,
            elements,
        });
        Self {
            family,
            types: PhantomData,
        }
    }

    /// What its map must look like, with these sizes.
    pub fn spec(&self, sizes: &MapSizes) -> NestedSpec<K, E> {
        let raw = self.family.spec(sizes);
        let (inner, elements) = match self.family.inner {
            Some(Inner::Table { name, elements }) => (name, elements.resolve(sizes)),
            _ => ("", 0),
        };
        NestedSpec::new(raw.name, inner, raw.max_entries, raw.flags, elements)
    }
}

/// The family of a map of instances, `u32` in host order, to their maps of `K` to `V`.
#[derive(Debug)]
pub struct OuterFamily<K: 'static, V: 'static> {
    #[doc(hidden)]
    pub family: Family,
    /// Family of the inner maps.
    pub inner: &'static MapFamily<K, V>,
}

impl<K, V> Deref for OuterFamily<K, V> {
    type Target = Family;

    fn deref(&self) -> &Family {
        &self.family
    }
}

impl<K, V> OuterFamily<K, V> {
    /// Describes a family: pinned name, how many inner maps, their family, owner.
    pub const fn new(
        name: &'static str,
        size: Size,
        inner: &'static MapFamily<K, V>,
        owner: &'static str,
    ) -> Self {
        let mut value = Side::new::<u32>();
        value.text = id_text;
        let sides = (Side::new::<u32>(), value);
        let mut family = Family::new::<u32>(name, MapKind::HashOfMaps, sides, size, owner);
        family.inner = Some(Inner::Instances(&inner.family));
        family.is_written_by_agent = true;
        Self { family, inner }
    }

    /// What one of the inner maps must look like, under its own name.
    pub fn inner_spec(&self, name: &'static str, sizes: &MapSizes) -> Option<RawSpec> {
        let spec = self.inner.family.spec(sizes);
        Some(RawSpec { name, ..spec })
    }
}

/// The id of an inner map.
fn id_text(bytes: &[u8]) -> String {
    format!("map id {}", text_of::<u32>(bytes))
}

/// A family that is linked into this program; see [`register!`](crate::register).
#[doc(hidden)]
#[derive(Debug)]
pub struct Registered(pub &'static Family);

inventory::collect!(Registered);

/// Registers a family, a `static` [`MapFamily`] or [`NestedFamily`]: programs that link its crate open, list, count and
/// show its map.
#[macro_export]
macro_rules! register {
    ($($family:path),+ $(,)?) => {
        $($crate::inventory::submit! { $crate::Registered(&$family.family) })+
    };
}

/// All families that are linked into this program, by name.
pub fn families() -> Vec<&'static Family> {
    let mut all: Vec<&Family> = inventory::iter::<Registered>
        .into_iter()
        .map(|found| found.0)
        .collect();
    all.sort_by_key(|family| family.name);
    all
}

/// The family of the map of this name.
pub fn find(name: &str) -> Option<&'static Family> {
    let is_of = |family: &&Family| match family.has_instances {
        true => family.instance_of(name).is_some(),
        false => family.name == name,
    };
    families().into_iter().find(is_of)
}

/// Names of the maps that exist only when an address family is on.
pub fn names_of(ip: IpFamily) -> impl Iterator<Item = &'static str> {
    let all = families().into_iter();
    all.filter(move |family| family.ip == Some(ip))
        .map(|family| family.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lb::{self, LbMapSizes};

    #[test]
    fn names_are_unique() {
        let names: Vec<&str> = families().iter().map(|family| family.name).collect();
        let mut unique = names.clone();
        unique.dedup();
        assert_eq!(names, unique);
        assert_eq!(names.len(), 53);
    }

    #[test]
    fn maps_of_instances_are_named_by_them() {
        let family = find("cilium_policy_v2_00302").unwrap();

        assert_eq!(family.instance_of("cilium_policy_v2_00302"), Some(302));
        assert_eq!(family.instance_name(302), "cilium_policy_v2_00302");
        for name in [
            "cilium_policy_v2",
            "cilium_policy_v2_",
            "cilium_policy_v2_x",
            "cilium_policy_v2_70000",
        ] {
            assert!(find(name).is_none(), "{name}");
        }
        assert_eq!(lb::SERVICES4.instance_of("cilium_lb4_services_v2_00001"), None);
    }

    #[test]
    fn flags_follow_kind_and_settings() {
        let flags = |preallocate, distributed_lru| {
            let sizes = MapSizes::default().with_memory(preallocate, distributed_lru);
            [
                lb::SERVICES4.spec(&sizes).raw().flags,
                lb::BACKENDS4.spec(&sizes).raw().flags,
                lb::AFFINITY4.spec(&sizes).raw().flags,
                lb::SKIP4.spec(&sizes).raw().flags,
                lb::SOURCE_RANGE4.spec(&sizes).raw().flags,
                lb::MAGLEV4.spec(&sizes).raw().flags,
            ]
        };
        let (sparse, agent) = (MapFlags::NO_PREALLOC, MapFlags::RDONLY_PROG);
        let both = sparse.union(agent);
        assert_eq!(
            flags(false, false),
            [both, sparse, MapFlags::NONE, both, both, both]
        );
        assert_eq!(
            flags(true, true),
            [agent, MapFlags::NONE, MapFlags::NO_COMMON_LRU, both, both, agent]
        );
    }

    #[test]
    fn sizes_come_by_key() {
        let sizes = MapSizes::from(LbMapSizes::small(64)).with(lb::SERVICE_MAP_MAX, 7);

        assert_eq!(lb::SERVICES6.spec(&sizes).max_entries(), 7);
        assert_eq!(lb::BACKENDS6.spec(&sizes).max_entries(), 64);
        assert_eq!(lb::MAGLEV4.spec(&sizes).elements(), 251);
        let nested = find("cilium_lb4_maglev").unwrap().spec(&sizes);
        assert_eq!((nested.value_size, nested.value_len()), (4, 4 * 251));
        assert_eq!(lb::SERVICES6.spec(&MapSizes::default()).max_entries(), 65_536);
    }

    #[test]
    fn an_address_family_has_names() {
        assert_eq!(names_of(IpFamily::V4).count(), 17);
        assert!(names_of(IpFamily::V6).all(|name| name.contains('6')));
    }
}

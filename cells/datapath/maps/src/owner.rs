// SPDX-License-Identifier: Apache-2.0

//! What owners of map families say about their maps.

use std::time::Duration;

use skep_bpf_maps::{Family, IpFamily, MapSizes};

/// Time between two measurements of how full maps are, unless an owner wants another.
const PRESSURE_INTERVAL: Duration = Duration::from_secs(300);

/// The owner of map families is part of this program: its maps are opened. Provided as `Member<MapOwner>` by the cell
/// that writes them.
///
/// ```
/// use hive::{Cell, Member};
/// use skep_bpf_maps::{MapSizes, lb};
/// use skep_datapath_maps::MapOwner;
///
/// fn owner() -> Member<MapOwner> {
///     let sizes = MapSizes::default().with(lb::SERVICE_MAP_MAX, 1024);
///     Member(MapOwner::new(lb::OWNER).sizes(sizes).ip(true, false))
/// }
/// let cell = Cell::module("services", "Services into maps").provide(owner);
/// # let _ = cell;
/// ```
#[derive(Debug, Clone)]
pub struct MapOwner {
    name: &'static str,
    sizes: MapSizes,
    ipv4: bool,
    ipv6: bool,
    pressure_interval: Duration,
}

impl MapOwner {
    /// The owner that families name, with default sizes and both address families.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            sizes: MapSizes::default(),
            ipv4: true,
            ipv6: true,
            pressure_interval: PRESSURE_INTERVAL,
        }
    }

    /// Sizes that are set.
    #[must_use]
    pub fn sizes(self, sizes: impl Into<MapSizes>) -> Self {
        Self {
            sizes: sizes.into(),
            ..self
        }
    }

    /// Which address families are on. Maps of one that is off are not pinned; without any, none of the owner is.
    #[must_use]
    pub fn ip(self, ipv4: bool, ipv6: bool) -> Self {
        Self { ipv4, ipv6, ..self }
    }

    /// Time between two measurements of how full its maps are; zero for never. The shortest of all owners counts.
    #[must_use]
    pub fn pressure_every(self, interval: Duration) -> Self {
        Self {
            pressure_interval: interval,
            ..self
        }
    }
}

/// What all owners of a program say.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    all: Vec<MapOwner>,
    pub(crate) sizes: MapSizes,
}

impl Owners {
    pub(crate) fn new(all: Vec<MapOwner>) -> Self {
        let mut sizes = MapSizes::default();
        for owner in &all {
            sizes.merge(&owner.sizes);
        }
        Self { all, sizes }
    }

    fn find(&self, family: &Family) -> Option<&MapOwner> {
        self.all.iter().find(|owner| owner.name == family.owner)
    }

    /// Whether the maps of a family are part of this program.
    pub(crate) fn have(&self, family: &Family) -> bool {
        self.find(family).is_some()
    }

    /// Whether maps of a family are pinned: its address family is on.
    pub(crate) fn pin(&self, family: &Family) -> bool {
        self.find(family).is_none_or(|owner| match family.ip {
            None => owner.ipv4 || owner.ipv6,
            Some(IpFamily::V4) => owner.ipv4,
            Some(IpFamily::V6) => owner.ipv6,
        })
    }

    /// Whether it is measured how full maps of a family are.
    pub(crate) fn measure(&self, family: &Family) -> bool {
        family.has_pressure
            && self
                .find(family)
                .is_none_or(|owner| !owner.pressure_interval.is_zero())
    }

    pub(crate) fn pressure_interval(&self) -> Option<Duration> {
        let intervals = self.all.iter().map(|owner| owner.pressure_interval);
        intervals.filter(|interval| !interval.is_zero()).min()
    }
}

// SPDX-License-Identifier: Apache-2.0

//! What programs know of devices, in maps in memory.

use skep_bpf_maps::endpoint;
use skep_datapath_maps::MapOwner;
use skep_node_local::Vlan;

use super::*;
use crate::options::tests::settings;

fn device(index: u32, vlan: Option<(u32, u16)>) -> NativeDevice {
    NativeDevice {
        name: format!("eth{index}"),
        index,
        mac: Some([2, 0, 0, 0, 0, 1]),
        vlan: vlan.map(|(device, id)| Vlan { device, id }),
        ..NativeDevice::default()
    }
}

#[test]
fn maps_have_the_devices_and_the_vlans_that_they_carry_and_no_others() {
    let maps = Maps::in_memory([MapOwner::new(endpoint::OWNER)]).unwrap();
    let store = MapStore::new("/nowhere");
    let datapath = PacketDatapath::new(store, &maps, settings());
    let pair = Pair {
        host: 5,
        net: 4,
        ..Pair::default()
    };
    let known = || {
        let mut devices = datapath.devices.keys().unwrap();
        devices.sort_unstable();
        let vlans = datapath.vlans.keys().unwrap().into_iter();
        let mut vlans: Vec<_> = vlans.map(|key| (key.ifindex, key.id)).collect();
        vlans.sort_unstable();
        (devices, vlans)
    };

    let devices = [
        device(2, None),
        device(8, Some((2, 10))),
        device(9, Some((2, 4095))),
    ];
    datapath.write_devices(&devices, pair).unwrap();
    assert_eq!(known(), (vec![2, 4, 5, 8, 9], vec![(2, 10), (2, 4095)]));

    let devices = [device(2, None), device(8, Some((2, 11)))];
    datapath.write_devices(&devices, pair).unwrap();
    assert_eq!(known(), (vec![2, 4, 5, 8], vec![(2, 11)]));
}

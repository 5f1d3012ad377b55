// SPDX-License-Identifier: Apache-2.0

//! The registered families against the compiled object that has all of them: every field of keys and values, its offset,
//! every size and type.

use std::{collections::BTreeSet, mem::size_of};

use libbpf_rs::{
    AsRawLibbpf as _, HasSize as _,
    btf::{
        Btf,
        types::{MemberAttr, Struct},
    },
    libbpf_sys,
};
use skep_bpf_maps::{Family, MapSizes, Side, families, lb::*};

const OBJECT: &str = concat!(env!("OUT_DIR"), "/map_types.bpf.o");

fn check(btf: &Btf<'_>, family: &Family, side: &Side) {
    let Some(layout) = side.layout else { return };
    let name = layout.name;
    let found = btf
        .type_by_name::<Struct<'_>>(name)
        .unwrap_or_else(|| panic!("{}: no struct {name} in BTF", family.name));
    assert_eq!(found.size(), layout.size, "size of {name}");
    assert_eq!(side.size as usize, layout.size, "size of {name}");
    let members: Vec<_> = found
        .iter()
        .map(|member| {
            let MemberAttr::Normal { offset } = member.attr else {
                panic!("bit field in {name}")
            };
            (
                member.name.unwrap().to_string_lossy().into_owned(),
                offset as usize / 8,
            )
        })
        .collect();
    let fields: Vec<_> = layout
        .fields
        .iter()
        .map(|(field, offset)| ((*field).to_owned(), *offset))
        .collect();
    assert_eq!(members, fields, "fields of {name}");
}

#[test]
fn keys_and_values_have_the_layout_of_the_compiled_object() {
    let btf = Btf::from_path(OBJECT).unwrap();
    for family in families() {
        check(&btf, family, &family.key);
        check(&btf, family, &family.value);
    }
}

#[test]
fn maps_of_the_object_are_the_registered_families() {
    let object = libbpf_rs::ObjectBuilder::default().open_file(OBJECT).unwrap();
    let mut missing: BTreeSet<&str> = families().iter().map(|family| family.name).collect();
    for map in object.maps() {
        let name = map.name().to_string_lossy().into_owned();
        let mut families = families().into_iter();
        let family = families.find(|family| family.name == name);
        let family = family.unwrap_or_else(|| panic!("{name} is not registered"));
        let spec = family.spec(&MapSizes::default());
        let raw = map.as_libbpf_object().as_ptr();
        // SAFETY: `raw` is the map that `object` keeps.
        let sizes = unsafe {
            (
                libbpf_sys::bpf_map__key_size(raw),
                libbpf_sys::bpf_map__value_size(raw),
            )
        };
        assert_eq!((spec.key_size, spec.value_size), sizes, "{name}");
        assert_eq!(spec.kind as u32, map.map_type() as u32, "{name}");
        // User space creates the maps: sizes in C would be a second truth.
        assert_eq!(map.max_entries(), 0, "{name}");
        missing.remove(&*name);
    }
    assert_eq!(missing, BTreeSet::new(), "in no compiled object");
}

#[test]
fn keys_and_values_have_the_sizes_that_cilium_pins() {
    assert_eq!((size_of::<ReverseNatKey>(), size_of::<MaglevKey>()), (2, 2));
    assert_eq!(size_of::<BackendKey>(), 4);
    assert_eq!((size_of::<ReverseNat4>(), size_of::<ReverseNat6>()), (6, 18));
}

// SPDX-License-Identifier: Apache-2.0

//! The Rust twins against the BTF of the compiled object: every field, its offset, every size.

use std::mem::{offset_of, size_of};

use libbpf_rs::{
    AsRawLibbpf as _, HasSize as _,
    btf::{
        Btf,
        types::{MemberAttr, Struct},
    },
    libbpf_sys,
};
use skep_bpf_maps::{event::*, lb::*, node::*};

const OBJECT: &str = concat!(env!("OUT_DIR"), "/map_types.bpf.o");

fn check(btf: &Btf<'_>, name: &str, size: usize, fields: &[(&str, usize)]) {
    let found = btf
        .type_by_name::<Struct<'_>>(name)
        .unwrap_or_else(|| panic!("no struct {name} in BTF"));
    assert_eq!(found.size(), size, "size of {name}");
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
    let fields: Vec<_> = fields
        .iter()
        .map(|(field, offset)| ((*field).to_owned(), *offset))
        .collect();
    assert_eq!(members, fields, "fields of {name}");
}

macro_rules! twins {
    ($btf:ident: $($c:literal = $rust:ident { $($field:ident $(as $other:ident)?),+ })+) => {
        $(check(&$btf, $c, size_of::<$rust>(), &[$((twins!(@name $field $($other)?), offset_of!($rust, $field))),+]);)+
    };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $other:ident) => { stringify!($other) };
}

#[test]
fn rust_twins_have_the_layout_of_the_compiled_object() {
    let btf = Btf::from_path(OBJECT).unwrap();

    twins! { btf:
        "lb4_service_key" = Service4Key { address, port as dport, slot as backend_slot, proto, scope, pad }
        "lb6_service_key" = Service6Key { address, port as dport, slot as backend_slot, proto, scope, pad }
        "lb_service" = ServiceValue { target as backend_id, count, rev_nat as rev_nat_index, flags, flags2, qcount }
        "lb4_backend" = Backend4 { address, port, proto, state as flags, cluster_id, zone, pad }
        "lb6_backend" = Backend6 { address, port, proto, state as flags, cluster_id, zone, pad }
        "lb4_reverse_nat" = ReverseNat4 { address, port }
        "lb6_reverse_nat" = ReverseNat6 { address, port }
        "lb4_reverse_sk_key" = ReverseSk4Key { cookie, address, port, pad }
        "lb6_reverse_sk_key" = ReverseSk6Key { cookie, address, port, pad }
        "lb4_reverse_sk" = ReverseSk4 { address, port, rev_nat as rev_nat_index }
        "lb6_reverse_sk" = ReverseSk6 { address, port, rev_nat as rev_nat_index }
        "lb4_skip_key" = Skip4Key { netns_cookie, address, port, pad }
        "lb6_skip_key" = Skip6Key { netns_cookie, address, pad, port, pad2 }
        "lb4_affinity_key" = Affinity4Key { client, rev_nat as rev_nat_id, flags, pad, pad2 }
        "lb6_affinity_key" = Affinity6Key { client, rev_nat as rev_nat_id, flags, pad, pad2 }
        "lb_affinity" = Affinity { last_used, backend_id, pad }
        "lb_affinity_match_key" = AffinityMatchKey { backend_id, rev_nat as rev_nat_id, pad }
        "lb4_source_range_key" = SourceRange4Key { prefix_len as prefixlen, rev_nat as rev_nat_id, pad, address }
        "lb6_source_range_key" = SourceRange6Key { prefix_len as prefixlen, rev_nat as rev_nat_id, pad, address }
        "ipcache_key" = IpcacheKey { prefix_len as prefixlen, cluster_id, pad, family, address }
        "ipcache_value" = IpcacheValue { identity, tunnel_endpoint, pad, encrypt_key, flags }
        "metrics_key" = MetricsKey { reason, direction, line, file, reserved }
        "metrics_value" = MetricsValue { count, bytes }
        "ratelimit_key" = RateLimitKey { usage, ifindex }
        "ratelimit_value" = RateLimitValue { last_topup, tokens }
    }
}

#[test]
fn maps_of_the_object_are_the_specified_ones() {
    let object = libbpf_rs::ObjectBuilder::default().open_file(OBJECT).unwrap();
    let mut checked = 0;
    for map in object.maps() {
        let name = map.name().to_string_lossy().into_owned();
        let raw = map.as_libbpf_object().as_ptr();
        // SAFETY: `raw` is the map that `object` keeps.
        let sizes = unsafe {
            (
                libbpf_sys::bpf_map__key_size(raw),
                libbpf_sys::bpf_map__value_size(raw),
            )
        };
        assert_eq!(Some(sizes), specified(&name), "{name}");
        // User space creates the maps: sizes in C would be a second truth.
        assert_eq!(map.max_entries(), 0, "{name}");
        checked += 1;
    }
    assert_eq!(checked, 22);
}

/// Sizes of key and value of each map, as Cilium pins it.
fn specified(name: &str) -> Option<(u32, u32)> {
    Some(match name {
        "cilium_lb4_services_v2" => (12, 12),
        "cilium_lb6_services_v2" => (24, 12),
        "cilium_lb4_backends_v3" => (4, 12),
        "cilium_lb6_backends_v3" => (4, 24),
        "cilium_lb4_reverse_nat" => (2, 6),
        "cilium_lb6_reverse_nat" => (2, 18),
        "cilium_lb4_affinity" => (16, 16),
        "cilium_lb6_affinity" => (24, 16),
        "cilium_lb_affinity_match" => (8, 1),
        "cilium_lb4_source_range" => (12, 1),
        "cilium_lb6_source_range" => (24, 1),
        "cilium_lb4_maglev" | "cilium_lb6_maglev" => (2, 4),
        "cilium_lb4_reverse_sk" => (16, 8),
        "cilium_lb6_reverse_sk" => (32, 20),
        "cilium_skip_lb4" => (16, 1),
        "cilium_skip_lb6" => (32, 1),
        "cilium_ipcache_v2" => (24, 24),
        "cilium_metrics" => (8, 16),
        "cilium_ratelimit" => (8, 16),
        "cilium_ratelimit_metrics" => (4, 8),
        "cilium_events" => (4, 4),
        _ => return None,
    })
}

// SPDX-License-Identifier: Apache-2.0

//! Names of the fields of all maps, from the BTF of an object that has every map family and no program.

use std::{
    collections::HashMap,
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd, BorrowedFd},
};

use libbpf_rs::{
    AsRawLibbpf as _, MapType, libbpf_sys,
    skel::{OpenSkel as _, SkelBuilder as _},
};

use super::{error::LoadError, skeleton::map_types::MapTypesSkelBuilder};
use skep_bpf_sys::map::MapTypes;

const OBJECT: &str = "map_types";

/// Loads the types of all maps' keys and values into the kernel, for
/// [`MapStore::describe`](skep_bpf_sys::MapStore::describe). Maps made with them are dumped with names of fields.
///
/// # Errors
///
/// [`LoadError::Types`] on kernels without such types (`CONFIG_DEBUG_INFO_BTF`), or without `CAP_BPF`. Maps work
/// without them.
pub fn map_types() -> Result<MapTypes, LoadError> {
    let mut storage = MaybeUninit::uninit();
    let open = MapTypesSkelBuilder::default()
        .open(&mut storage)
        .map_err(|source| LoadError::Open {
            object: OBJECT,
            source,
        })?;
    let object = open.open_object();
    let failed = |source| LoadError::Types {
        object: OBJECT,
        source,
    };
    // SAFETY: the object is open; the types belong to it and live as long.
    let btf = unsafe { libbpf_sys::bpf_object__btf(object.as_libbpf_object().as_ptr()) };
    if btf.is_null() {
        return Err(failed(io::Error::from(io::ErrorKind::NotFound)));
    }
    // SAFETY: `btf` is the object's, not loaded before, and has no other reference.
    let loaded = unsafe { libbpf_sys::btf__load_into_kernel(btf) };
    if loaded < 0 {
        return Err(failed(io::Error::from_raw_os_error(-loaded)));
    }
    // SAFETY: `btf` is loaded, see above: its descriptor is open until the object is closed.
    let fd = unsafe { BorrowedFd::borrow_raw(libbpf_sys::btf__fd(btf)) };
    debug_assert!(fd.as_raw_fd() >= 0);
    let fd = fd.try_clone_to_owned().map_err(failed)?;

    let mut ids = HashMap::new();
    for map in object.maps() {
        // The kernel knows no types for other kinds.
        let is_described = matches!(
            map.map_type(),
            MapType::Hash
                | MapType::Array
                | MapType::PercpuHash
                | MapType::PercpuArray
                | MapType::LruHash
                | MapType::LpmTrie
        );
        let raw = map.as_libbpf_object().as_ptr();
        // SAFETY: `raw` is a map of the open object.
        let (key, value) = unsafe {
            (
                libbpf_sys::bpf_map__btf_key_type_id(raw),
                libbpf_sys::bpf_map__btf_value_type_id(raw),
            )
        };
        if is_described && key > 0 && value > 0 {
            ids.insert(map.name().to_string_lossy().into_owned(), (key, value));
        }
    }
    Ok(MapTypes::new(fd, ids))
}

// SPDX-License-Identifier: Apache-2.0

//! `skep_lb_ids`: how far ids were allocated, for the next start of the agent. Programs do not read it. C twin:
//! `bpf/include/lb/ids.h`.

use std::mem::size_of;

use skep_bpf_sys::MapKind;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::OWNER;
use crate::{MapFamily, Size, layout, register, text::Text};

/// Index of the mark of service ids.
pub const SERVICE_IDS: u32 = 0;
/// Index of the mark of backend ids.
pub const BACKEND_IDS: u32 = 1;

/// High-water mark of allocated ids; all zero: none was allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IdMark {
    /// The id that is tried next, host order. Higher ones were not allocated since the last wrap-around.
    pub next: u32,
    /// 1 if ids wrapped around: higher ones were allocated before.
    pub has_wrapped: u32,
}
const _: () = assert!(size_of::<IdMark>() == 8);
layout!(IdMark = "lb_id_mark" { next, has_wrapped });

/// `skep_lb_ids`.
pub static ID_MARKS: MapFamily<u32, IdMark> =
    MapFamily::new("skep_lb_ids", MapKind::Array, Size::Fixed(2), OWNER).written_by_agent();

register!(ID_MARKS);

impl Text for IdMark {
    fn text(&self) -> String {
        let wrapped = if self.has_wrapped == 0 { "" } else { " wrapped" };
        format!("next={}{wrapped}", self.next)
    }
}

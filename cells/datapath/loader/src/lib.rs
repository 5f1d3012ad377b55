// SPDX-License-Identifier: Apache-2.0

//! Loads the packet programs and attaches them to interfaces.
//!
//! - [`cell`] makes `cilium_host` and `cilium_net`, loads the programs of `skep-bpf-programs` with the pinned maps, and
//!   attaches them to the pair and to the selected devices of the node, which it follows. Programs are replaced in place
//!   when an option changes. They stay attached when the agent ends.
//! - [`EndpointHooks`](skep_datapath_hooks::EndpointHooks) is what the owner of endpoints calls for their interfaces.
//! - With a tunnel, `overlay.rs` makes `cilium_vxlan`.
//!
//! Links are pinned where Cilium has them, `cilium/devices/<device>/links` and `cilium/endpoints/<id>/links` below the root of
//! the BPF file system. What the programs do is written in `docs/datapath.md`.

mod attach;
mod cell;
mod datapath;
mod desired;
mod options;
mod overlay;
mod pair;
mod reconciler;
mod sysctl;

pub use attach::{Attachment, Hook};
pub use cell::cell;
pub use datapath::{DatapathError, PacketDatapath, PacketStatus};
pub use desired::DirectRouting;
pub use options::PacketSettings;
pub use sysctl::SysctlError;

hive::catalogue!(cell);

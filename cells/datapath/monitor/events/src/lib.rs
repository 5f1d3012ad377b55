// SPDX-License-Identifier: Apache-2.0

//! Events of the monitor, as Cilium has them.
//!
//! | module | what it holds |
//! |---|---|
//! | [`event`] | what programs and agents report, from bytes and to bytes |
//! | [`names`] | texts of drop reasons, source files, observation points and other numbers |
//! | [`debug`] | texts of debug messages |
//! | [`agent`], [`access_log`] | events that the agent makes |
//! | [`packet`] | layers of captured packets, and the connection they belong to |
//! | [`payload`] | the protocol of the monitor's socket |
//! | [`gob`] | the encoding of that protocol |
//!
//! No hive, no maps, no programs: a client of the monitor needs this crate and a socket. Bytes come from programs of
//! another version, or from another process: whatever they are, decoding returns an error that says what is wrong.
//!
//! ```
//! use skep_datapath_monitor_events::event::{DebugMsg, Event};
//!
//! let message = DebugMsg { subtype: 15, source: 812, hash: 0x5b1e, args: [0, 0, 0] };
//! let bytes = message.to_bytes();
//! let Event::Debug(same) = Event::decode(&bytes)? else { unreachable!() };
//! assert_eq!(same.text(&|_| None), "CT verdict: New, revnat=0");
//! # Ok::<(), skep_datapath_monitor_events::event::DecodeError>(())
//! ```

pub mod access_log;
pub mod agent;
pub mod debug;
pub mod event;
pub mod gob;
mod message_type;
pub mod names;
pub mod packet;
pub mod payload;

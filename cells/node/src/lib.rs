// SPDX-License-Identifier: Apache-2.0

//! The local node, its addresses and devices.

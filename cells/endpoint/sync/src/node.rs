// SPDX-License-Identifier: Apache-2.0

//! The own CiliumNode, annotations of the own Node, and the own node in the key-value store.

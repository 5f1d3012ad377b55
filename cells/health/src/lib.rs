// SPDX-License-Identifier: Apache-2.0

//! Module health as a table, with history and commands.

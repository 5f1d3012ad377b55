// SPDX-License-Identifier: Apache-2.0

//! The node agent: a list of cells.

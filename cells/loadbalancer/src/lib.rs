// SPDX-License-Identifier: Apache-2.0

//! Service load-balancing: tables, writer, reflectors, reconciler and maps.

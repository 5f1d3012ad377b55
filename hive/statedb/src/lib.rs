// SPDX-License-Identifier: Apache-2.0

//! In-memory tables with snapshots, indexes, change streams and a reconciler.

// SPDX-License-Identifier: Apache-2.0

//! Cells, dependency graph, configuration, lifecycle, jobs and health.

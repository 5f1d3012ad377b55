// SPDX-License-Identifier: Apache-2.0

//! Kubernetes client, compact object types, reflectors into tables.

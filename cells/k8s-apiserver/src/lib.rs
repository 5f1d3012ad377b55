// SPDX-License-Identifier: Apache-2.0

//! Embedded Kubernetes API server, in process and over HTTP.

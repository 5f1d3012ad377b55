// SPDX-License-Identifier: Apache-2.0

//! Metrics registry, sampling, commands and the Prometheus endpoint.

// SPDX-License-Identifier: Apache-2.0

//! Health-check node ports of services.

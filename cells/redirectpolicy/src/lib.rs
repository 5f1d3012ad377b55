// SPDX-License-Identifier: Apache-2.0

//! Local redirect policies.

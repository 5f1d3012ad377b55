// SPDX-License-Identifier: Apache-2.0

//! Fault tests: kill, partition, full maps, garbage input.

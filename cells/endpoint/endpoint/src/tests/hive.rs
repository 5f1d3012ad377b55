// SPDX-License-Identifier: Apache-2.0

//! The cell in a hive with fakes.

// SPDX-License-Identifier: Apache-2.0

//! Maglev consistent-hashing lookup tables.

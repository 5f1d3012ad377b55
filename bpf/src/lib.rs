// SPDX-License-Identifier: Apache-2.0

//! BPF programs, their map layouts, and how they are loaded.

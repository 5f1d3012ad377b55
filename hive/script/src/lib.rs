// SPDX-License-Identifier: Apache-2.0

//! Script engine: txtar tests and the interactive shell.

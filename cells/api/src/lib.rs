// SPDX-License-Identifier: Apache-2.0

//! Agent API and status over a unix socket and HTTP.

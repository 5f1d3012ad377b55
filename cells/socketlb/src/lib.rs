// SPDX-License-Identifier: Apache-2.0

//! Socket load-balancing programs: mounting, loading, attaching, socket termination.

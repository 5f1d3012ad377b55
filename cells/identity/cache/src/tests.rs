// SPDX-License-Identifier: Apache-2.0

mod answers;
mod own;

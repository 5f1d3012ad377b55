#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the newest clang-format that is installed.
set -euo pipefail
tool=$(ls /usr/bin/clang-format-[0-9]* 2>/dev/null | sort -V | tail -n 1)
exec "${tool:-clang-format}" "$@"

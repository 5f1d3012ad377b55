#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs a command as a named step and prints how many seconds it took: step.sh NAME COMMAND [ARGUMENT...]
# With STEP_TIMES set, appends the same line to that file.
set -uo pipefail
name=$1
shift
begin=$SECONDS
"$@"
status=$?
line=$(printf 'step %-12s %5d s' "$name" $((SECONDS - begin)))
[ "$status" -eq 0 ] || line="$line (failed: $status)"
echo "$line"
[ -z "${STEP_TIMES:-}" ] || echo "$line" >>"$STEP_TIMES"
exit "$status"

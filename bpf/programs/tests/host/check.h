/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Checks of host tests: a failed one names its line; the test's exit code is the number of
 * failures. */
#ifndef HOST_CHECK_H
#define HOST_CHECK_H

#include <stdio.h>

static int failures;

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			failures++;                                                                \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);            \
		}                                                                                  \
	} while (0)

#endif /* HOST_CHECK_H */

/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Departure times and token buckets. */
#include "check.h"
#include "node/throttle.h"

#define SECOND THROTTLE_SECOND

static void departures(void)
{
	struct throttle_value egress = {.rate = 1000, .limit = 2 * SECOND};
	__u64 now = 100 * SECOND;

	CHECK(throttle_departure(&egress, now, 0, 500) == 0);
	CHECK(egress.last == now);
	CHECK(throttle_departure(&egress, now, 0, 500) == now + SECOND / 2);
	CHECK(throttle_departure(&egress, now, 0, 1000) == now + SECOND / 2 * 3);
	/* Beyond the horizon, and not counted. */
	CHECK(throttle_departure(&egress, now, 0, 500) == THROTTLE_NEVER);
	CHECK(throttle_departure(&egress, now, 0, 499) == now + 1999 * (SECOND / 1000));
	/* After a pause at once; a later time of the sender is kept. */
	now += 10 * SECOND;
	CHECK(throttle_departure(&egress, now, now + SECOND, 10) == 0);
	CHECK(egress.last == now + SECOND);
	/* A time of another clock. */
	now += 10 * SECOND;
	CHECK(throttle_departure(&egress, now, 1000000 * SECOND, 10) == 0);
	CHECK(egress.last == now);
	egress.rate = 0;
	CHECK(throttle_departure(&egress, now, 0, 1000000) == 0);
}

static void buckets(void)
{
	struct throttle_value ingress = {.rate = 1000};
	__u64 now = 100 * SECOND;

	/* Full at first: a second. */
	CHECK(throttle_admit(&ingress, now, 600));
	CHECK(throttle_admit(&ingress, now, 400));
	CHECK(!throttle_admit(&ingress, now, 1));
	CHECK(!throttle_admit(&ingress, now + SECOND / 10, 101));
	CHECK(throttle_admit(&ingress, now + SECOND / 10, 100));
	CHECK(throttle_admit(&ingress, now + 50 * SECOND, 1000));
	CHECK(!throttle_admit(&ingress, now + 50 * SECOND, 1));
	/* The product of time and rate does not overflow. */
	ingress.rate = THROTTLE_MAX_RATE;
	ingress.limit = 0;
	ingress.last = now;
	CHECK(throttle_admit(&ingress, now + SECOND - 1, 1 << 30));
	CHECK(ingress.limit > THROTTLE_MAX_RATE / 2);
	ingress.rate = 0;
	CHECK(throttle_admit(&ingress, now, 1 << 30));
}

int main(void)
{
	departures();
	buckets();
	return failures;
}

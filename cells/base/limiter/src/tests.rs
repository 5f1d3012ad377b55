// SPDX-License-Identifier: Apache-2.0

//! Limiters on a paused clock.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use skep_base_metrics::{MetricSet, Registry, exposition};
use tokio::time::{Instant, sleep, timeout};

use crate::{Limiter, LimiterMetrics, Limits, NoRecorder, Parameters, Recorder};

fn limiter(parameters: &str) -> Limiter {
    recorded(parameters, Arc::new(NoRecorder))
}

fn recorded(parameters: &str, recorder: Arc<dyn Recorder>) -> Limiter {
    let parameters = Parameters::default().with(parameters).expect("they are valid");
    Limiter::new("endpoint-create", parameters, recorder)
}

/// Lets so many requests be processed one after the other, each for that time. Returns when they were admitted, in ms.
async fn times(limiter: &Limiter, count: usize, processing: Duration) -> Vec<u128> {
    let start = Instant::now();
    let mut times = Vec::new();
    for _ in 0..count {
        let request = limiter.acquire().await.expect("it is admitted");
        times.push((start.elapsed().as_millis() + 5) / 10 * 10);
        sleep(processing).await;
        request.end(true);
    }
    times
}

/// The limits that a limiter has had.
#[derive(Debug, Default)]
struct Recorded(Mutex<Vec<Limits>>);

impl Recorded {
    fn last(&self) -> Limits {
        *self.0.lock().last().expect("they are recorded")
    }
}

impl Recorder for Recorded {
    fn limits(&self, _: &str, limits: &Limits) {
        self.0.lock().push(*limits);
    }
}

#[tokio::test(start_paused = true)]
async fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
    let limiter = limiter("rate-limit:4/s,rate-burst:4");

    assert_eq!(times(&limiter, 6, Duration::ZERO).await, [0, 0, 0, 0, 250, 500]);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(times(&limiter, 5, Duration::ZERO).await, [0, 0, 0, 0, 250]);
}

#[tokio::test(start_paused = true)]
async fn a_rate_that_changes_counts_for_those_who_wait() {
    let limiter = limiter("rate-limit:1/m");
    drop(limiter.acquire().await.expect("the first is admitted"));
    let start = Instant::now();

    let waiting = async { limiter.acquire().await.map(|_| start.elapsed()) };
    let change = async {
        sleep(Duration::from_secs(30)).await;
        limiter.set_rate(1.0);
    };
    let (waited, ()) = tokio::join!(waiting, change);

    // Half a token, and the other half at the new rate.
    let waited = waited.expect("it is admitted");
    assert!((30_400..30_600).contains(&waited.as_millis()), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn so_many_requests_are_under_way_at_once() {
    let limiter = limiter("parallel-requests:2");
    let first = limiter.acquire().await;
    let _second = limiter.acquire().await;

    let third = timeout(Duration::from_secs(60), limiter.acquire()).await;
    assert!(third.is_err());
    let part = timeout(Duration::from_secs(60), limiter.place()).await;
    assert!(part.is_err());

    drop(first);
    drop(limiter.acquire().await.expect("there is a place"));
    limiter.place().await;
}

#[tokio::test(start_paused = true)]
async fn who_waits_too_long_is_refused_by_name() {
    for parameters in [
        "rate-limit:1/h,max-wait-duration:15s",
        "parallel-requests:1,max-wait-duration:15s",
    ] {
        let metrics = Arc::new(LimiterMetrics::default());
        let limiter = recorded(parameters, metrics.clone());
        let first = limiter.acquire().await;
        let start = Instant::now();

        let error = limiter.acquire().await.expect_err("it waits too long");

        assert_eq!(start.elapsed(), Duration::from_secs(15));
        assert_eq!(
            error.to_string(),
            "limiter `endpoint-create`: not admitted within 15s (max-wait-duration)"
        );
        let failed =
            "api_limiter_processed_requests_total{api_call=\"endpoint-create\",outcome=\"fail\"} 1\n";
        assert!(shown(&metrics).contains(failed), "{}", shown(&metrics));
        drop(first);
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_are_cancelled_free_their_place_and_take_no_token() {
    let limiter = limiter("rate-limit:1/s,parallel-requests:1");
    let first = limiter.acquire().await.expect("it is admitted");
    sleep(Duration::from_secs(10)).await;
    let start = Instant::now();

    // Waits for the place of the first one, and is cancelled.
    timeout(Duration::from_secs(5), limiter.acquire())
        .await
        .expect_err("the place is taken");
    drop(first);
    drop(limiter.acquire().await.expect("the token was kept"));
    assert_eq!(start.elapsed(), Duration::from_secs(5));
    // Waits for a token, and is cancelled.
    timeout(Duration::from_millis(600), limiter.acquire())
        .await
        .expect_err("there is no token");
    drop(limiter.acquire().await.expect("the next token is free"));

    let waited = start.elapsed().as_millis();
    assert!((6_000..6_010).contains(&waited), "{waited}");
}

#[tokio::test(start_paused = true)]
async fn requests_are_admitted_in_order_of_arrival() {
    let limiter = limiter("rate-limit:1/s");
    drop(limiter.acquire().await.expect("it is admitted"));
    let order = Mutex::new(Vec::new());
    let request = async |number: u32| {
        sleep(Duration::from_millis(number.into())).await;
        let _request = limiter.acquire().await.expect("it is admitted");
        order.lock().push(number);
    };

    tokio::join!(request(3), request(1), request(2), request(4));

    assert_eq!(*order.lock(), [1, 2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn every_request_waits_for_the_least_time() {
    let limiter = limiter("min-wait-duration:100ms");

    assert_eq!(times(&limiter, 3, Duration::ZERO).await, [100, 200, 300]);
}

#[tokio::test(start_paused = true)]
async fn the_first_requests_are_not_limited() {
    let limiter = limiter("rate-limit:1/s,parallel-requests:1,min-wait-duration:10ms,skip-initial:3");

    let first = [
        limiter.acquire().await,
        limiter.acquire().await,
        limiter.acquire().await,
    ];

    assert!(first.iter().all(Result::is_ok));
    let fourth = timeout(Duration::from_secs(5), limiter.acquire()).await;
    assert!(fourth.is_err(), "three are under way");
    drop(first);
    assert_eq!(times(&limiter, 2, Duration::ZERO).await, [10, 1010]);
}

/// As Cilium documents it: the factor is the estimated duration by the mean one, within its bounds.
#[tokio::test(start_paused = true)]
async fn limits_are_adjusted_to_how_long_requests_take() {
    let parameters = "rate-limit:10/s,rate-burst:8,parallel-requests:8,estimated-processing-duration:100ms,auto-adjust:true,\
                      mean-over:2,max-adjustment-factor:4,delayed-adjustment-factor:0.25";
    let recorded_limits = Arc::new(Recorded::default());
    let limiter = recorded(parameters, recorded_limits.clone());
    let limits = async |processing: u64| {
        times(&limiter, 1, Duration::from_millis(processing)).await;
        let Limits {
            rate,
            burst,
            in_flight,
            adjustment,
        } = recorded_limits.last();
        let factor = adjustment.expect("they are adjusted");
        (factor, rate, burst, in_flight.expect("there is a limit"))
    };
    assert_eq!(recorded_limits.last().adjustment, None);

    // Twice as long: half as many. The others go a quarter of the way from 8 to 4.
    assert_eq!(limits(200).await, (0.5, 5.0, 7.0, 7));
    assert_eq!(limits(200).await, (0.5, 5.0, 6.25, 6));
    // The mean is over two requests.
    assert_eq!(limits(0).await, (1.0, 10.0, 6.6875, 7));
    // No faster than the largest factor allows, and no slower.
    assert_eq!(limits(0).await, (4.0, 40.0, 13.015_625, 13));
    times(&limiter, 1, Duration::from_secs(60)).await;
    let slowest = recorded_limits.last();
    assert_eq!((slowest.adjustment, slowest.rate), (Some(0.25), 2.5));
    times(&limiter, 50, Duration::from_secs(60)).await;
    let slowest = recorded_limits.last();
    assert_eq!(slowest.in_flight, Some(2));
    assert!((slowest.burst - 2.0).abs() < 0.01, "{slowest:?}");
}

#[tokio::test(start_paused = true)]
async fn parallel_requests_stay_in_their_bounds() {
    let parameters = "parallel-requests:4,min-parallel-requests:3,max-parallel-requests:6,delayed-adjustment-factor:1,\
                      estimated-processing-duration:100ms,auto-adjust:true,mean-over:1";
    let recorded_limits = Arc::new(Recorded::default());
    let limiter = recorded(parameters, recorded_limits.clone());

    times(&limiter, 1, Duration::from_secs(10)).await;
    assert_eq!(recorded_limits.last().in_flight, Some(3));
    times(&limiter, 1, Duration::from_millis(1)).await;
    assert_eq!(recorded_limits.last().in_flight, Some(6));
    assert_eq!(recorded_limits.last().rate, 0.0, "there is no limit to adjust");

    let under_way = [
        limiter.acquire().await,
        limiter.acquire().await,
        limiter.acquire().await,
        limiter.acquire().await,
        limiter.acquire().await,
    ];
    assert!(under_way.iter().all(Result::is_ok));
}

/// A limit that shrinks below what is under way admits nothing until enough has ended.
#[tokio::test(start_paused = true)]
async fn fewer_places_count_from_the_next_request_on() {
    let parameters = "parallel-requests:2,delayed-adjustment-factor:1,estimated-processing-duration:100ms,\
                      auto-adjust:true,mean-over:1";
    let limiter = limiter(parameters);
    let first = limiter.acquire().await.expect("there are two places");
    let second = limiter.acquire().await.expect("there are two places");
    sleep(Duration::from_secs(10)).await;
    first.end(true);

    let third = timeout(Duration::from_secs(5), limiter.acquire()).await;
    assert!(third.is_err(), "there is one place now");

    second.end(true);
    drop(limiter.acquire().await.expect("it is free"));
}

fn shown(metrics: &LimiterMetrics) -> String {
    exposition(&Registry::new(metrics.metrics(), &[]).expect("the names differ"))
}

#[tokio::test(start_paused = true)]
async fn metrics_have_the_names_of_cilium() {
    let metrics = Arc::new(LimiterMetrics::default());
    let parameters = "rate-limit:0.5/s,rate-burst:4,parallel-requests:4,max-wait-duration:15s,min-wait-duration:10ms,\
                      estimated-processing-duration:2s,auto-adjust:true";
    let limiter = recorded(parameters, metrics.clone());
    times(&limiter, 1, Duration::from_secs(4)).await;
    let _second = limiter.acquire().await;

    let text = shown(&metrics);

    for line in [
        "processed_requests_total{api_call=\"endpoint-create\",outcome=\"success\"} 1",
        "processing_duration_seconds{api_call=\"endpoint-create\",value=\"estimated\"} 2",
        "processing_duration_seconds{api_call=\"endpoint-create\",value=\"mean\"} 4",
        "wait_duration_seconds{api_call=\"endpoint-create\",value=\"max\"} 15",
        "wait_duration_seconds{api_call=\"endpoint-create\",value=\"mean\"} 0.01",
        "wait_duration_seconds{api_call=\"endpoint-create\",value=\"min\"} 0.01",
        "rate_limit{api_call=\"endpoint-create\",value=\"limit\"} 0.25",
        "rate_limit{api_call=\"endpoint-create\",value=\"burst\"} 3",
        "requests_in_flight{api_call=\"endpoint-create\",value=\"in-flight\"} 1",
        "requests_in_flight{api_call=\"endpoint-create\",value=\"limit\"} 3",
        "adjustment_factor{api_call=\"endpoint-create\"} 0.5",
    ] {
        assert!(
            text.contains(&format!("\ncilium_api_limiter_{line}")),
            "{line}\n{text}"
        );
    }
}

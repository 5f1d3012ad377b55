// SPDX-License-Identifier: Apache-2.0

//! Parameters of a limiter, and their text form: that of Cilium's `api-rate-limit`.

use std::fmt;
use std::time::Duration;

use skep_duration::parse_duration;

/// How a limiter admits requests. Where a limit is 0, there is none.
///
/// ```
/// use skep_base_limiter::Parameters;
///
/// let limits = Parameters::default().with("rate-limit:5/m,rate-burst:10,max-wait-duration:15s").unwrap();
/// assert_eq!(limits.rate * 60.0, 5.0);
/// assert_eq!(limits.burst, 10);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// Requests a second (`rate-limit`); 0 for no limit.
    pub rate: f64,
    /// Requests that are admitted at once after a pause (`rate-burst`); one at least.
    pub burst: u32,
    /// Requests under way (`parallel-requests`); 0 for no limit.
    pub parallel: u32,
    /// What `parallel` is not adjusted below (`min-parallel-requests`).
    pub min_parallel: u32,
    /// What `parallel` is not adjusted above (`max-parallel-requests`); 0 for no limit.
    pub max_parallel: u32,
    /// How long every request waits (`min-wait-duration`).
    pub min_wait: Duration,
    /// How long a request may wait (`max-wait-duration`); 0 for no limit.
    pub max_wait: Duration,
    /// How long a request should take (`estimated-processing-duration`).
    pub estimated_processing: Duration,
    /// Whether the limits are adjusted to how long requests take (`auto-adjust`).
    pub auto_adjust: bool,
    /// Over how many requests means are taken (`mean-over`).
    pub mean_over: u32,
    /// How far `burst` and `parallel` move towards their new values at an adjustment (`delayed-adjustment-factor`).
    pub delayed_adjustment: f64,
    /// How far adjusted limits may be from those here, as a factor (`max-adjustment-factor`).
    pub max_adjustment: f64,
    /// How many requests are admitted without limits at the start (`skip-initial`).
    pub skip_initial: u32,
    /// Whether a line is logged for each request (`log`).
    pub log: bool,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            rate: 0.0,
            burst: 0,
            parallel: 0,
            min_parallel: 0,
            max_parallel: 0,
            min_wait: Duration::ZERO,
            max_wait: Duration::ZERO,
            estimated_processing: Duration::ZERO,
            auto_adjust: false,
            mean_over: 10,
            delayed_adjustment: 0.5,
            max_adjustment: 100.0,
            skip_initial: 0,
            log: false,
        }
    }
}

/// Why parameters are invalid: correct the setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    #[error("`{0}` is not of the form parameter:value")]
    Syntax(String),
    #[error("unknown parameter `{0}`; there are {names}", names = NAMES.join(", "))]
    Unknown(String),
    /// The value is malformed or out of range.
    #[error("{parameter}: `{value}` is not {expected}")]
    Value {
        parameter: String,
        value: String,
        expected: Expected,
    },
    /// Limits cannot be adjusted to nothing.
    #[error("auto-adjust requires estimated-processing-duration")]
    NoEstimate,
    /// No request would ever be admitted.
    #[error("min-wait-duration is longer than max-wait-duration")]
    Waits,
    /// The bounds of an adjustment exclude each other.
    #[error("min-parallel-requests is more than max-parallel-requests")]
    Parallel,
}

/// What the value of a parameter must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    Rate,
    Count,
    /// A whole number, one at least.
    Positive,
    Duration,
    Bool,
    Share,
    Factor,
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rate => "requests in a time, such as 5/m, 0.5/s or 10/30s",
            Self::Count => "a whole number",
            Self::Positive => "a whole number from 1",
            Self::Duration => "a duration such as 200ms, 15s or 1m",
            Self::Bool => "true or false",
            Self::Share => "a number above 0 and up to 1",
            Self::Factor => "a number from 1",
        })
    }
}

const NAMES: [&str; 14] = [
    "auto-adjust",
    "delayed-adjustment-factor",
    "estimated-processing-duration",
    "log",
    "max-adjustment-factor",
    "max-parallel-requests",
    "max-wait-duration",
    "mean-over",
    "min-parallel-requests",
    "min-wait-duration",
    "parallel-requests",
    "rate-burst",
    "rate-limit",
    "skip-initial",
];

impl Parameters {
    /// These parameters with those of a text, `parameter:value,parameter:value`, in their place.
    ///
    /// # Errors
    ///
    /// All that is wrong with the text, or with the parameters together.
    pub fn with(&self, text: &str) -> Result<Self, Vec<ParameterError>> {
        let mut merged = self.clone();
        let mut errors = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let set = match part.split_once(':') {
                Some((name, value)) => merged.set(name.trim(), value.trim()),
                None => Err(ParameterError::Syntax(part.to_owned())),
            };
            errors.extend(set.err());
        }
        if merged.auto_adjust && merged.estimated_processing.is_zero() {
            errors.push(ParameterError::NoEstimate);
        }
        if !merged.max_wait.is_zero() && merged.min_wait > merged.max_wait {
            errors.push(ParameterError::Waits);
        }
        if merged.max_parallel > 0 && merged.min_parallel > merged.max_parallel {
            errors.push(ParameterError::Parallel);
        }
        if errors.is_empty() {
            Ok(merged)
        } else {
            Err(errors)
        }
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), ParameterError> {
        let expected = match name {
            "rate-limit" => put(&mut self.rate, rate(value), Expected::Rate),
            "rate-burst" => put(&mut self.burst, value.parse().ok(), Expected::Count),
            "parallel-requests" => put(&mut self.parallel, value.parse().ok(), Expected::Count),
            "min-parallel-requests" => put(&mut self.min_parallel, value.parse().ok(), Expected::Count),
            "max-parallel-requests" => put(&mut self.max_parallel, value.parse().ok(), Expected::Count),
            "min-wait-duration" => put(&mut self.min_wait, duration(value), Expected::Duration),
            "max-wait-duration" => put(&mut self.max_wait, duration(value), Expected::Duration),
            "estimated-processing-duration" => put(
                &mut self.estimated_processing,
                duration(value),
                Expected::Duration,
            ),
            "auto-adjust" => put(&mut self.auto_adjust, value.parse().ok(), Expected::Bool),
            "mean-over" => {
                let count = value.parse().ok().filter(|count| *count > 0);
                put(&mut self.mean_over, count, Expected::Positive)
            }
            "delayed-adjustment-factor" => {
                let share = number(value).filter(|share| *share > 0.0 && *share <= 1.0);
                put(&mut self.delayed_adjustment, share, Expected::Share)
            }
            "max-adjustment-factor" => {
                let factor = number(value).filter(|factor| *factor >= 1.0);
                put(&mut self.max_adjustment, factor, Expected::Factor)
            }
            "skip-initial" => put(&mut self.skip_initial, value.parse().ok(), Expected::Count),
            "log" => put(&mut self.log, value.parse().ok(), Expected::Bool),
            _ => return Err(ParameterError::Unknown(name.to_owned())),
        };
        expected.map_err(|expected| ParameterError::Value {
            parameter: name.to_owned(),
            value: value.to_owned(),
            expected,
        })
    }
}

fn put<T>(place: &mut T, value: Option<T>, expected: Expected) -> Result<(), Expected> {
    *place = value.ok_or(expected)?;
    Ok(())
}

/// Requests in a time: `5/m`, `10/30s`; 0 for no limit.
fn rate(text: &str) -> Option<f64> {
    let (count, time) = text.split_once('/')?;
    let count = number(count.trim())?;
    let time = time.trim();
    let starts_with_digit = time.starts_with(|first: char| first.is_ascii_digit() || first == '.');
    let time = match starts_with_digit {
        true => duration(time)?,
        false => duration(&format!("1{time}"))?,
    };
    let rate = count / time.as_secs_f64();
    (count >= 0.0 && rate.is_finite()).then_some(rate)
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

fn duration(text: &str) -> Option<Duration> {
    parse_duration(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(text: &str) -> Vec<String> {
        let errors = Parameters::default().with(text).expect_err("it is invalid");
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_text_sets_some_parameters_and_leaves_the_others() {
        let base = Parameters {
            rate: 0.5,
            burst: 4,
            parallel: 4,
            max_wait: Duration::from_secs(60),
            ..Parameters::default()
        };
        let all = "rate-limit:5/s,rate-burst:10,parallel-requests:8,min-parallel-requests:2,max-parallel-requests:16,\
                   min-wait-duration:10ms,max-wait-duration:15s,estimated-processing-duration:100ms,auto-adjust:true,\
                   mean-over:20,delayed-adjustment-factor:0.25,max-adjustment-factor:10,skip-initial:3,log:true";

        assert_eq!(base.with(""), Ok(base.clone()));
        let some = base.with(" rate-burst:10 , log:true").unwrap();
        assert_eq!(
            some,
            Parameters {
                burst: 10,
                log: true,
                ..base.clone()
            }
        );
        let expected = Parameters {
            rate: 5.0,
            burst: 10,
            parallel: 8,
            min_parallel: 2,
            max_parallel: 16,
            min_wait: Duration::from_millis(10),
            max_wait: Duration::from_secs(15),
            estimated_processing: Duration::from_millis(100),
            auto_adjust: true,
            mean_over: 20,
            delayed_adjustment: 0.25,
            max_adjustment: 10.0,
            skip_initial: 3,
            log: true,
        };
        assert_eq!(base.with(all), Ok(expected));
        assert_eq!(all.split(',').count(), NAMES.len());
    }

    #[test]
    fn rates_have_a_count_and_a_time() {
        for (text, expected) in [
            ("5/s", Some(5.0)),
            ("30/m", Some(0.5)),
            ("0.5/s", Some(0.5)),
            ("10/500ms", Some(20.0)),
            ("7200/h", Some(2.0)),
            ("0/s", Some(0.0)),
            ("5", None),
            ("5/", None),
            ("/s", None),
            ("-1/s", None),
            ("1/0s", None),
            ("0/0s", None),
            ("1/-1s", None),
            ("nan/s", None),
            ("inf/s", None),
            ("1/day", None),
        ] {
            assert_eq!(rate(text), expected, "{text}");
        }
    }

    #[test]
    fn everything_that_is_wrong_is_an_error_by_name() {
        assert_eq!(
            errors("burst:10,rate-limit:5,log,mean-over:0,auto-adjust:yes"),
            [
                "unknown parameter `burst`; there are auto-adjust, delayed-adjustment-factor, \
                 estimated-processing-duration, log, max-adjustment-factor, max-parallel-requests, max-wait-duration, \
                 mean-over, min-parallel-requests, min-wait-duration, parallel-requests, rate-burst, rate-limit, \
                 skip-initial",
                "rate-limit: `5` is not requests in a time, such as 5/m, 0.5/s or 10/30s",
                "`log` is not of the form parameter:value",
                "mean-over: `0` is not a whole number from 1",
                "auto-adjust: `yes` is not true or false",
            ]
        );
        assert_eq!(
            errors("delayed-adjustment-factor:0,max-adjustment-factor:0.5,rate-burst:-1,max-wait-duration:5"),
            [
                "delayed-adjustment-factor: `0` is not a number above 0 and up to 1",
                "max-adjustment-factor: `0.5` is not a number from 1",
                "rate-burst: `-1` is not a whole number",
                "max-wait-duration: `5` is not a duration such as 200ms, 15s or 1m",
            ]
        );
        assert_eq!(
            errors(
                "auto-adjust:true,min-wait-duration:2s,max-wait-duration:1s,min-parallel-requests:3,max-parallel-requests:2"
            ),
            [
                "auto-adjust requires estimated-processing-duration",
                "min-wait-duration is longer than max-wait-duration",
                "min-parallel-requests is more than max-parallel-requests",
            ]
        );
    }
}

// SPDX-License-Identifier: Apache-2.0

//! The last writes of maps, for tools: as many as `bpf-map-event-buffers` says, no longer than it says.

use std::{collections::BTreeMap, collections::VecDeque, fmt, str::FromStr, time::Duration};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::{sync::broadcast, time::Instant};

/// Events that a slow follower may be behind.
const FOLLOWER: usize = 1024;

/// The map whose events are kept without a setting.
const LXC: &str = "cilium_lxc";
const DEFAULT: BufferSize = BufferSize {
    most: 128,
    ttl: Duration::ZERO,
};

/// A kind of write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// An entry was to be inserted or replaced.
    Update,
    /// An entry was to be deleted.
    Delete,
}

impl Action {
    /// Its name in metrics and events.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }

    /// What remains to be done if it failed.
    pub const fn desired(self) -> &'static str {
        match self {
            Self::Update => "to-be-inserted",
            Self::Delete => "to-be-deleted",
        }
    }
}

/// How many events of a map are kept, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BufferSize {
    most: usize,
    /// Zero for as long as there is room.
    ttl: Duration,
}

/// Maps whose events are kept: `cilium_ipcache_v2=enabled_1024_1h`, more of them after commas or blanks, or as a JSON
/// object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BufferSettings(BTreeMap<String, Option<BufferSize>>);

hive::config_value!(
    BufferSettings,
    "maps with their event buffers, as in `cilium_ipcache_v2=enabled_1024_1h`"
);

/// Why an event buffer is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum BufferError {
    /// Neither pairs nor a JSON object of texts.
    #[error("`{0}` is not `<map>=enabled_<entries>_<time>`")]
    Form(String),
    /// A buffer holds one event at least.
    #[error("map {map}: `{text}` is no number of events")]
    Entries {
        /// The map.
        map: String,
        /// What was given.
        text: String,
    },
    /// A time such as `1h` is expected.
    #[error("map {map}: `{text}` is not a duration such as 5m or 1h")]
    Ttl {
        /// The map.
        map: String,
        /// What was given.
        text: String,
        /// What is wrong with it.
        #[source]
        cause: skep_duration::DurationError,
    },
}

impl BufferSettings {
    /// The buffer of a map: without a setting that of endpoints alone, as in Cilium.
    pub(crate) fn of(&self, map: &str) -> Option<BufferSize> {
        match self.0.get(map) {
            Some(size) => *size,
            None => (map == LXC).then_some(DEFAULT),
        }
    }
}

impl FromStr for BufferSettings {
    type Err = BufferError;

    fn from_str(text: &str) -> Result<Self, BufferError> {
        let form = || BufferError::Form(text.to_owned());
        let pairs: BTreeMap<String, String> = if text.trim_start().starts_with('{') {
            serde_json::from_str(text).map_err(|_| form())?
        } else {
            text.split([',', ' '])
                .filter(|pair| !pair.is_empty())
                .map(|pair| {
                    let (map, size) = pair.split_once('=').ok_or_else(form)?;
                    Ok((map.to_owned(), size.to_owned()))
                })
                .collect::<Result<_, BufferError>>()?
        };
        let sizes = pairs.into_iter().map(|(map, size)| {
            let size = buffer_size(&map, &size)?;
            Ok((map, size))
        });
        sizes.collect::<Result<_, BufferError>>().map(Self)
    }
}

fn buffer_size(map: &str, text: &str) -> Result<Option<BufferSize>, BufferError> {
    let mut parts = text.splitn(3, '_');
    let (Some(switch), Some(entries), Some(ttl)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(BufferError::Form(format!("{map}={text}")));
    };
    let most = entries
        .parse()
        .ok()
        .filter(|most| *most > 0)
        .ok_or_else(|| BufferError::Entries {
            map: map.to_owned(),
            text: entries.to_owned(),
        })?;
    let ttl = skep_duration::parse_duration(ttl).map_err(|cause| BufferError::Ttl {
        map: map.to_owned(),
        text: ttl.to_owned(),
        cause,
    })?;
    match switch {
        "enabled" | "true" => Ok(Some(BufferSize { most, ttl })),
        "disabled" | "false" => Ok(None),
        _ => Err(BufferError::Form(format!("{map}={text}"))),
    }
}

impl fmt::Display for BufferSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (map, size)) in self.0.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            match size {
                Some(BufferSize { most, ttl }) => {
                    let ttl = skep_duration::format_duration(*ttl);
                    write!(f, "{comma}{map}=enabled_{most}_{ttl}")?;
                }
                None => write!(f, "{comma}{map}=disabled_1_0s")?,
            }
        }
        Ok(())
    }
}

/// A write of a map.
#[derive(Debug, Clone)]
pub struct MapEvent {
    /// When.
    pub time: Timestamp,
    /// What was done.
    pub action: Action,
    /// The entry's key.
    pub key: Vec<u8>,
    /// Its new value; empty for a deletion.
    pub value: Vec<u8>,
    /// What the kernel said, if it failed.
    pub error: Option<String>,
}

/// The last events of a map.
#[derive(Debug)]
pub struct EventBuffer {
    size: BufferSize,
    /// With when they came: the time of an event is that of the wall clock, which may jump.
    events: Mutex<VecDeque<(Instant, MapEvent)>>,
    followers: broadcast::Sender<MapEvent>,
}

impl EventBuffer {
    pub(crate) fn new(size: BufferSize) -> Self {
        Self {
            size,
            events: Mutex::default(),
            followers: broadcast::Sender::new(FOLLOWER),
        }
    }

    pub(crate) fn push(&self, action: Action, key: &[u8], value: &[u8], error: Option<String>) {
        let event = MapEvent {
            time: Timestamp::now(),
            action,
            key: key.to_owned(),
            value: value.to_owned(),
            error,
        };
        let mut events = self.events.lock();
        self.forget(&mut events);
        if events.len() >= self.size.most {
            events.pop_front();
        }
        if self.followers.receiver_count() > 0 {
            // A follower that has just gone is no failure.
            let _ = self.followers.send(event.clone());
        }
        events.push_back((Instant::now(), event));
    }

    /// The events that are kept, and those that come; none is missed between.
    pub fn follow(&self) -> (Vec<MapEvent>, broadcast::Receiver<MapEvent>) {
        let mut events = self.events.lock();
        self.forget(&mut events);
        let kept = events.iter().map(|(_, event)| event.clone()).collect();
        (kept, self.followers.subscribe())
    }

    fn forget(&self, events: &mut VecDeque<(Instant, MapEvent)>) {
        if self.size.ttl.is_zero() {
            return;
        }
        let is_old = |(since, _): &(Instant, MapEvent)| since.elapsed() > self.size.ttl;
        while events.front().is_some_and(is_old) {
            events.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_configured_in_ciliums_forms() {
        let expected = |map: &str, most, seconds| {
            let size = BufferSize {
                most,
                ttl: Duration::from_secs(seconds),
            };
            (map.to_owned(), Some(size))
        };
        for text in [
            "cilium_ipcache_v2=enabled_1024_1h,a=true_1_0s",
            "cilium_ipcache_v2=enabled_1024_1h a=enabled_1_0",
            r#"{"cilium_ipcache_v2": "enabled_1024_1h", "a": "enabled_1_0s"}"#,
        ] {
            let settings: BufferSettings = text.parse().unwrap();
            let all = [expected("a", 1, 0), expected("cilium_ipcache_v2", 1024, 3600)];
            assert_eq!(settings.0, BTreeMap::from(all), "{text}");
            assert_eq!(settings.to_string().parse::<BufferSettings>().unwrap(), settings);
        }
        assert_eq!("".parse::<BufferSettings>().unwrap(), BufferSettings::default());
        let off: BufferSettings = "a=disabled_8_1h".parse().unwrap();
        assert_eq!(off.of("a"), None);
        for (text, error) in [
            ("a", "`a` is not `<map>=enabled_<entries>_<time>`"),
            (
                "a=enabled_1",
                "`a=enabled_1` is not `<map>=enabled_<entries>_<time>`",
            ),
            (
                "a=maybe_1_1h",
                "`a=maybe_1_1h` is not `<map>=enabled_<entries>_<time>`",
            ),
            ("a=enabled_0_1h", "map a: `0` is no number of events"),
        ] {
            assert_eq!(text.parse::<BufferSettings>().unwrap_err().to_string(), error);
        }
        let error = "a=enabled_1_soon".parse::<BufferSettings>().unwrap_err();
        assert!(
            error.to_string().starts_with("map a: `soon` is not a duration"),
            "{error}"
        );
    }

    #[test]
    fn the_last_events_are_kept_and_followed() {
        let buffer = EventBuffer::new(BufferSize {
            most: 2,
            ttl: Duration::ZERO,
        });
        for key in 1..=3 {
            buffer.push(Action::Update, &[key], &[key], None);
        }

        let (events, mut follower) = buffer.follow();
        buffer.push(Action::Delete, &[4], &[], Some("full".to_owned()));

        let keys: Vec<u8> = events.iter().map(|event| event.key[0]).collect();
        assert_eq!(keys, [2, 3]);
        let next = follower.try_recv().unwrap();
        assert_eq!((next.key, next.error.as_deref()), (vec![4], Some("full")));
    }

    #[tokio::test(start_paused = true)]
    async fn old_events_are_forgotten_whatever_the_wall_clock_says() {
        let hour = Duration::from_secs(3600);
        let buffer = EventBuffer::new(BufferSize { most: 9, ttl: hour });
        for (key, time) in [(1, Timestamp::MIN), (2, Timestamp::MAX)] {
            buffer.push(Action::Update, &[key], &[], None);
            // The wall clock jumps behind an event.
            buffer.events.lock()[usize::from(key) - 1].1.time = time;
        }
        tokio::time::advance(hour).await;
        assert_eq!(buffer.follow().0.len(), 2);

        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(buffer.follow().0.is_empty());
    }
}

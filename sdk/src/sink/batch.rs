//! Decides when a batch is complete.
//!
//! The options, their defaults and their meaning are those of APISIX 3.18's batch processor
//! (`apisix/utils/batch-processor.lua`), which every logger includes in its own.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::queue::Room;

/// The default of `max_pending_entries`.
pub(super) const MAX_PENDING: usize = 8192;

/// Maximum bytes of a batch, regardless of its number of entries: a batch is assembled in memory. A
/// longer entry is a batch of its own.
const MAX_BYTES: usize = 4 << 20;

/// How entries are grouped into batches, and how often a batch is retried.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize)]
pub struct Batching {
    /// The processor's name in metrics and messages.
    pub name: String,
    /// Entries of a full batch, which is sent at once.
    pub batch_max_size: usize,
    /// Seconds without new entries after which a batch is sent.
    pub inactive_timeout: u64,
    /// Age of the first entry in seconds after which a batch is sent.
    pub buffer_duration: u64,
    /// Number of retries before a batch is dropped.
    pub max_retry_count: u64,
    /// Seconds before a retry.
    pub retry_delay: u64,
    /// Bytes of a full batch; see [`MAX_BYTES`].
    #[serde(skip, default = "max_bytes")]
    pub max_bytes: usize,
}

fn max_bytes() -> usize {
    MAX_BYTES
}

impl Batching {
    /// Adds the schema of these options to a logger's `properties`. `name` is the default of the
    /// option of that name.
    pub fn extend(mut properties: Value, name: &str) -> Value {
        let own = json!({
            "name": {"type": "string", "default": name},
            "max_retry_count": {"type": "integer", "minimum": 0, "default": 0},
            "retry_delay": {"type": "integer", "minimum": 0, "default": 1},
            "buffer_duration": {"type": "integer", "minimum": 1, "default": 60},
            "inactive_timeout": {"type": "integer", "minimum": 1, "default": 5},
            "batch_max_size": {"type": "integer", "minimum": 1, "default": 1000},
        });
        if let (Value::Object(all), Value::Object(own)) = (&mut properties, own) {
            all.extend(own);
        }
        properties
    }

    /// Adds the schema of a logger's metadata.
    pub fn extend_metadata(properties: &mut Map<String, Value>) {
        properties.insert(
            "max_pending_entries".to_owned(),
            json!({
                "type": "integer", "minimum": 1, "default": MAX_PENDING,
                "description": "maximum number of entries waiting to be processed; new entries are discarded \
                                while the backlog exceeds it",
            }),
        );
    }

    /// Options for targets without batches: entries are sent as soon as they arrive, singly or all
    /// that are waiting.
    pub fn at_once(name: &str) -> Batching {
        Batching {
            name: name.to_owned(),
            batch_max_size: 1,
            inactive_timeout: 5,
            buffer_duration: 60,
            max_retry_count: 0,
            retry_delay: 1,
            max_bytes: MAX_BYTES,
        }
    }

    /// The delay before a retry; never 0, which would be a busy loop.
    pub fn delay(&self) -> Duration {
        Duration::from_secs(self.retry_delay).max(Duration::from_millis(10))
    }
}

/// A batch in the making. Times are milliseconds of any monotonic clock.
#[derive(Debug, Default)]
pub struct Gathering {
    entries: usize,
    bytes: usize,
    first_at: u64,
    last_at: u64,
    looked_at: u64,
}

impl Gathering {
    /// Counts an added entry.
    pub fn add(&mut self, bytes: usize, now: u64) {
        if self.entries == 0 {
            (self.first_at, self.looked_at) = (now, now);
        }
        self.last_at = now;
        self.entries += 1;
        self.bytes += bytes;
    }

    /// Whether the batch is full and sent without waiting.
    pub fn is_full(&self, options: &Batching) -> bool {
        self.entries > 0 && (self.entries >= options.batch_max_size || self.bytes >= options.max_bytes)
    }

    /// How many entries or bytes to wait for: the first entry, which starts the timers, or as many
    /// as fill the batch.
    pub fn room(&self, options: &Batching) -> Room {
        match self.entries {
            0 => Room { entries: 1, bytes: 1 },
            entries => Room {
                entries: options.batch_max_size.saturating_sub(entries),
                bytes: options.max_bytes.saturating_sub(self.bytes),
            },
        }
    }

    /// When to check [`Gathering::is_due`]; `None` while the batch is empty.
    pub fn look_at(&self, options: &Batching) -> Option<u64> {
        let oldest = self.first_at.saturating_add(options.buffer_duration.saturating_mul(1000));
        let quiet = self.looked_at.saturating_add(options.inactive_timeout.saturating_mul(1000));
        (self.entries > 0).then(|| quiet.min(oldest))
    }

    /// Whether a timer has expired: nothing was added since the last check, or the first entry is
    /// too old. As in APISIX, checks are one `inactive_timeout` apart.
    pub fn is_due(&mut self, options: &Batching, now: u64) -> bool {
        let Some(look_at) = self.look_at(options).filter(|&at| now >= at) else { return false };
        let quiet = self.last_at <= self.looked_at;
        self.looked_at = now.max(look_at);
        quiet || now >= self.first_at.saturating_add(options.buffer_duration.saturating_mul(1000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Batching {
        Batching { batch_max_size: 3, max_bytes: 100, buffer_duration: 12, ..Batching::at_once("test") }
    }

    #[test]
    fn retries_are_never_immediate() {
        let delay = |retry_delay| Batching { retry_delay, ..Batching::at_once("a") }.delay();
        assert_eq!((delay(0), delay(3)), (Duration::from_millis(10), Duration::from_secs(3)));
    }

    #[test]
    fn metadata_limits_pending_entries() {
        let mut properties = Map::new();
        Batching::extend_metadata(&mut properties);
        let schema = json!({"type": "object", "properties": properties});
        let schema = model::Schema::new(&schema).unwrap();
        assert_eq!(schema.parse(json!({})).unwrap(), json!({"max_pending_entries": 8192}));
        assert!(schema.parse(json!({"max_pending_entries": 0})).is_err());
    }

    #[test]
    fn defaults_match_apisix() {
        let schema = json!({"type": "object", "properties": Batching::extend(json!({}), "http logger")});
        let parsed = model::Schema::new(&schema).unwrap().parse(json!({})).unwrap();
        let options: Batching = serde_json::from_value(parsed).unwrap();
        let Batching { name, batch_max_size, inactive_timeout, buffer_duration, .. } = &options;
        assert_eq!(
            (&name[..], *batch_max_size, *inactive_timeout, *buffer_duration),
            ("http logger", 1000, 5, 60)
        );
        assert_eq!((options.max_retry_count, options.retry_delay, options.max_bytes), (0, 1, MAX_BYTES));
        for wrong in [json!({"batch_max_size": 0}), json!({"retry_delay": -1}), json!({"name": 1})] {
            assert!(model::Schema::new(&schema).unwrap().parse(wrong).is_err());
        }
    }

    #[test]
    fn a_batch_is_full_by_count_or_by_size() {
        let options = options();
        let mut batch = Gathering::default();
        assert_eq!((batch.is_full(&options), batch.room(&options)), (false, Room { entries: 1, bytes: 1 }));
        batch.add(10, 0);
        assert_eq!((batch.is_full(&options), batch.room(&options)), (false, Room { entries: 2, bytes: 90 }));
        batch.add(10, 0);
        batch.add(10, 0);
        assert!(batch.is_full(&options));
        let mut batch = Gathering::default();
        batch.add(100, 0);
        assert!(batch.is_full(&options));
    }

    #[test]
    fn an_idle_batch_is_sent_after_inactive_timeout() {
        let options = options();
        let mut batch = Gathering::default();
        assert_eq!(batch.look_at(&options), None);
        batch.add(1, 1000);
        assert_eq!(batch.look_at(&options), Some(6000));
        assert!(!batch.is_due(&options, 5999));
        assert!(batch.is_due(&options, 6000));
    }

    #[test]
    fn a_growing_batch_is_sent_when_its_first_entry_is_old() {
        let options = Batching { batch_max_size: 1000, ..options() };
        let mut batch = Gathering::default();
        batch.add(1, 0);
        batch.add(1, 5000);
        assert!(!batch.is_due(&options, 5000));
        assert_eq!(batch.look_at(&options), Some(10_000));
        batch.add(1, 10_000);
        assert!(!batch.is_due(&options, 10_000));
        // The next regular check would be too late for the first entry.
        assert_eq!(batch.look_at(&options), Some(12_000));
        batch.add(1, 12_000);
        assert!(batch.is_due(&options, 12_000));
    }
}

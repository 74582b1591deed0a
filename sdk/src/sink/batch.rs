//! When a batch is full or has waited long enough.
//!
//! The options, their defaults and their meaning are those of APISIX 3.18's batch processor
//! (`apisix/utils/batch-processor.lua`), which every logger has among its own.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::queue::Room;

/// `max_pending_entries` where the plugin's metadata has none.
pub(super) const MAX_PENDING: usize = 8192;

/// Entries are at most so many bytes together when a batch goes out, whatever their number: a batch
/// is put together in memory. One longer entry is a batch of its own.
const MAX_BYTES: usize = 4 << 20;

/// How entries become batches, and how often a batch is tried.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize)]
pub struct Batching {
    /// The processor's name in metrics and messages.
    pub name: String,
    /// Entries of a full batch, which goes out at once.
    pub batch_max_size: usize,
    /// A batch goes out when no entry came for so many seconds,
    pub inactive_timeout: u64,
    /// or when its first entry is so many seconds old.
    pub buffer_duration: u64,
    /// How often a batch is tried again before it is dropped.
    pub max_retry_count: u64,
    /// Seconds before a batch is tried again.
    pub retry_delay: u64,
    /// Bytes of a full batch; see [`MAX_BYTES`].
    #[serde(skip, default = "max_bytes")]
    pub max_bytes: usize,
}

fn max_bytes() -> usize {
    MAX_BYTES
}

impl Batching {
    /// The options' part of a logger's schema: `properties` with these added. `name` is the default
    /// of the option of that name.
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

    /// The option of a logger's metadata.
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

    /// Entries that are a batch as soon as they come, each by itself or all that are there: for
    /// targets that gather nothing.
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

    /// Time before a failed batch is tried again; never nothing, which would be a busy loop.
    pub fn delay(&self) -> Duration {
        Duration::from_secs(self.retry_delay).max(Duration::from_millis(10))
    }
}

/// A batch while it gathers: what to wait for. Times are milliseconds of any clock that only goes
/// forward.
#[derive(Debug, Default)]
pub struct Gathering {
    entries: usize,
    bytes: usize,
    first_at: u64,
    last_at: u64,
    looked_at: u64,
}

impl Gathering {
    /// Counts an entry that was taken in.
    pub fn add(&mut self, bytes: usize, now: u64) {
        if self.entries == 0 {
            (self.first_at, self.looked_at) = (now, now);
        }
        self.last_at = now;
        self.entries += 1;
        self.bytes += bytes;
    }

    /// Whether it goes out without waiting any longer.
    pub fn is_full(&self, options: &Batching) -> bool {
        self.entries > 0 && (self.entries >= options.batch_max_size || self.bytes >= options.max_bytes)
    }

    /// What must come before it is worth a look: the first entry, which starts the time, or what
    /// fills it.
    pub fn room(&self, options: &Batching) -> Room {
        match self.entries {
            0 => Room { entries: 1, bytes: 1 },
            entries => Room {
                entries: options.batch_max_size.saturating_sub(entries),
                bytes: options.max_bytes.saturating_sub(self.bytes),
            },
        }
    }

    /// When to ask [`Gathering::is_due`]; never while it is empty.
    pub fn look_at(&self, options: &Batching) -> Option<u64> {
        let oldest = self.first_at.saturating_add(options.buffer_duration.saturating_mul(1000));
        let quiet = self.looked_at.saturating_add(options.inactive_timeout.saturating_mul(1000));
        (self.entries > 0).then(|| quiet.min(oldest))
    }

    /// Whether it has waited long enough: nothing was taken in since the last look, or its first
    /// entry is too old. As in APISIX, the looks are one `inactive_timeout` apart.
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
    fn a_failed_batch_is_never_tried_again_at_once() {
        let delay = |retry_delay| Batching { retry_delay, ..Batching::at_once("a") }.delay();
        assert_eq!((delay(0), delay(3)), (Duration::from_millis(10), Duration::from_secs(3)));
    }

    #[test]
    fn metadata_of_loggers_bound_what_waits() {
        let mut properties = Map::new();
        Batching::extend_metadata(&mut properties);
        let schema = json!({"type": "object", "properties": properties});
        let schema = model::Schema::new(&schema).unwrap();
        assert_eq!(schema.parse(json!({})).unwrap(), json!({"max_pending_entries": 8192}));
        assert!(schema.parse(json!({"max_pending_entries": 0})).is_err());
    }

    #[test]
    fn defaults_are_apisix_s() {
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
    fn a_quiet_batch_goes_out_after_the_inactive_timeout() {
        let options = options();
        let mut batch = Gathering::default();
        assert_eq!(batch.look_at(&options), None);
        batch.add(1, 1000);
        assert_eq!(batch.look_at(&options), Some(6000));
        assert!(!batch.is_due(&options, 5999));
        assert!(batch.is_due(&options, 6000));
    }

    #[test]
    fn a_busy_batch_goes_out_when_its_first_entry_is_old() {
        let options = Batching { batch_max_size: 1000, ..options() };
        let mut batch = Gathering::default();
        batch.add(1, 0);
        batch.add(1, 5000);
        assert!(!batch.is_due(&options, 5000));
        assert_eq!(batch.look_at(&options), Some(10_000));
        batch.add(1, 10_000);
        assert!(!batch.is_due(&options, 10_000));
        // The next look would be too late for the first entry.
        assert_eq!(batch.look_at(&options), Some(12_000));
        batch.add(1, 12_000);
        assert!(batch.is_due(&options, 12_000));
    }
}

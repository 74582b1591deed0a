//! The history of writes by gateways of this make, in etcd.
//!
//! The transaction that makes a write also puts its record, so both have the same revision of etcd, and neither is
//! there without the other. Records stand beside the prefix of the resources and not below it
//! (`/apisix-sluice/history/`), where no gateway of either make reads or watches. Writes by etcdctl or APISIX have no
//! records.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use control::store::{Record, Revision, StoreError};
use serde_json::Value;

use super::client::ANSWER;
use super::keys;
use super::proto::range_request::{SortOrder, SortTarget};
use super::proto::request_op::Request;
use super::proto::{DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};
use super::write::MOST_AT_ONCE;
use super::{Inner, unavailable};

/// A larger record is left out: etcd takes 1.5 MiB in one write, and that is for the resources.
pub(super) const LARGEST: usize = 512 << 10;
/// Records of one answer.
const PAGE: i64 = 16;
/// The most records beyond the bound before the oldest are deleted.
const SLACK: u64 = 16;

impl Inner {
    /// Returns the operation that puts a record; `None` if no history is kept, or the record is too large.
    pub fn record(&self, record: &Record) -> Option<Request> {
        let refused = self.history_refused.load(Ordering::Relaxed);
        if refused || self.settings.history.records == 0 {
            return None;
        }
        let value = record.to_json().to_string().into_bytes();
        if value.len() > LARGEST {
            tracing::warn!("a write of {} bytes is too large for the history in etcd", value.len());
            return None;
        }
        let (time, size, seen) = (record.time_ms, value.len(), record.from);
        let name = format!("{time:013}-{size}-{seen}-{}", std::process::id());
        Some(Request::RequestPut(PutRequest { key: self.layout.record(&name), value, lease: 0 }))
    }

    /// See [`Store::history`](control::store::Store::history).
    pub async fn history(
        &self,
        after: Revision,
        until: Revision,
        limit: usize,
    ) -> Result<Vec<Record>, StoreError> {
        let number = |revision: Revision| i64::try_from(revision).unwrap_or(i64::MAX);
        let (key, range_end) = self.layout.records();
        let mut records = Vec::new();
        let mut latest = until;
        while records.len() < limit && latest > after {
            let request = RangeRequest {
                key: key.clone(),
                range_end: range_end.clone(),
                limit: PAGE.min(i64::try_from(limit - records.len()).unwrap_or(PAGE)),
                sort_order: SortOrder::Descend.into(),
                sort_target: SortTarget::Create.into(),
                min_create_revision: number(after).saturating_add(1),
                max_create_revision: number(latest),
                ..RangeRequest::default()
            };
            let page = self.client.range(request, ANSWER).await.map_err(unavailable)?.kvs;
            let Some(last) = page.last() else { break };
            latest = keys::revision(last.create_revision).saturating_sub(1);
            for kv in page {
                let value: Option<Value> = serde_json::from_slice(&kv.value).ok();
                let revision = keys::revision(kv.create_revision);
                match value.and_then(|value| Record::of_json(revision, &value)) {
                    Some(record) => records.push(record),
                    // A record that cannot be read ends the history: older ones do not connect to newer ones.
                    None => return Ok(records),
                }
            }
        }
        Ok(records)
    }

    /// A record was put: now and then the oldest ones beyond the bounds are taken away.
    pub fn recorded(self: &Arc<Self>) {
        if self.recorded.fetch_add(1, Ordering::Relaxed).is_multiple_of(SLACK) {
            let inner = self.clone();
            control::tasks::spawn(async move {
                if let Err(error) = inner.trim().await {
                    tracing::warn!("the history in etcd keeps more than it should: {error}");
                }
            });
        }
    }

    async fn trim(&self) -> Result<(), StoreError> {
        let (key, range_end) = self.layout.records();
        let request = RangeRequest {
            key,
            range_end,
            keys_only: true,
            sort_order: SortOrder::Ascend.into(),
            sort_target: SortTarget::Create.into(),
            ..RangeRequest::default()
        };
        let kvs = self.client.range(request, ANSWER).await.map_err(unavailable)?.kvs;
        let sizes: Vec<u64> = kvs.iter().map(|kv| size_of(&kv.key)).collect();
        let surplus = surplus(&sizes, self.settings.history.records, self.settings.history.bytes);
        for some in kvs[..surplus].chunks(MOST_AT_ONCE) {
            let delete = |key: &[u8]| RequestOp {
                request: Some(Request::RequestDeleteRange(DeleteRangeRequest {
                    key: key.to_vec(),
                    range_end: Vec::new(),
                })),
            };
            let request =
                TxnRequest { compare: Vec::new(), success: some.iter().map(|kv| delete(&kv.key)).collect() };
            self.client.txn(request).await.map_err(unavailable)?;
        }
        Ok(())
    }
}

/// The bytes of a record, which its name contains.
fn size_of(key: &[u8]) -> u64 {
    let name = std::str::from_utf8(key).unwrap_or_default().rsplit('/').next().unwrap_or_default();
    name.split('-').nth(1).and_then(|size| size.parse().ok()).unwrap_or_default()
}

/// How many of the oldest are too many.
fn surplus(sizes: &[u64], records: u64, bytes: u64) -> usize {
    let (mut kept, mut sum) = (0u64, 0u64);
    let fits = |size: &&u64| {
        kept += 1;
        sum = sum.saturating_add(**size);
        kept <= records && sum <= bytes
    };
    sizes.len() - sizes.iter().rev().take_while(fits).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_first() {
        assert_eq!(surplus(&[1; 5], 9, 9), 0);
        assert_eq!(surplus(&[1; 5], 3, 9), 2);
        assert_eq!(surplus(&[9, 9, 1, 2], 9, 4), 2);
        assert_eq!(surplus(&[9], 9, 4), 1);
        assert_eq!(surplus(&[], 0, 0), 0);
        assert_eq!(size_of(b"/apisix-sluice/history/0000000000007-321-5-77"), 321);
        assert_eq!(size_of(b"odd"), 0);
    }
}

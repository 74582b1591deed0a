//! Information about an instance, in etcd for as long as it runs: APISIX's `server_info`.

use std::time::Duration;

use serde_json::Value;

use super::client::Trouble;
use super::proto::request_op::Request;
use super::proto::{PutRequest, RangeRequest, RequestOp, TxnRequest};
use super::{Etcd, Inner, within};
use control::store::StoreError;

/// Instances that are listed.
const MOST_INSTANCES: i64 = 200;

/// The time for which a list of them is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// The lease under which it stands there.
#[derive(Debug, Default)]
pub struct Presence {
    lease: Option<i64>,
}

impl Etcd {
    /// The version of the member that is asked.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn version(&self) -> Result<String, StoreError> {
        within(async { self.inner.client.version().await.map_err(super::unavailable) }).await
    }

    /// The information of up to 200 instances, in the order of their ids.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn instances(&self) -> Result<Vec<Value>, StoreError> {
        let (key, range_end) = self.inner.layout.server_infos();
        let request = RangeRequest { key, range_end, limit: MOST_INSTANCES, ..RangeRequest::default() };
        let found = self.inner.client.range(request, PATIENCE).await.map_err(super::unavailable)?;
        let all = found.kvs.iter().filter_map(|kv| serde_json::from_slice::<Value>(&kv.value).ok());
        Ok(all.filter(Value::is_object).collect())
    }

    /// Writes the information of the instance `id`, an object with its `boot_time`, for `ttl` seconds. If the same is
    /// there already, only its lease is renewed; information of a process that started later is kept.
    ///
    /// # Errors
    /// etcd does not answer, or refuses.
    pub async fn present(
        &self,
        id: &str,
        info: &Value,
        ttl: u64,
        presence: &mut Presence,
    ) -> Result<(), StoreError> {
        within(async { self.inner.present(id, info, ttl, presence).await.map_err(super::unavailable) }).await
    }
}

impl Inner {
    async fn present(
        &self,
        id: &str,
        info: &Value,
        ttl: u64,
        presence: &mut Presence,
    ) -> Result<(), Trouble> {
        let key = self.layout.server_info(id);
        let there = self.value(key.clone()).await?.and_then(|(value, _)| serde_json::from_slice(&value).ok());
        if there.as_ref().is_some_and(|there| is_newer(there, info)) {
            return Ok(());
        }
        // A lease that has ended takes its key along, perhaps after that was read.
        if there.as_ref() == Some(info)
            && let Some(lease) = presence.lease
            && self.client.keep_alive(lease).await?
        {
            return Ok(());
        }
        let lease = self.client.lease(ttl).await?;
        let put = PutRequest { key, value: info.to_string().into_bytes(), lease };
        let put = RequestOp { request: Some(Request::RequestPut(put)) };
        self.client.txn(TxnRequest { compare: Vec::new(), success: vec![put] }).await?;
        presence.lease = Some(lease);
        Ok(())
    }
}

/// Whether a process of this instance that started later has written this: while an upgrade's old process ends, both run.
fn is_newer(there: &Value, info: &Value) -> bool {
    let booted = |of: &Value| of.get("boot_time").and_then(Value::as_u64);
    booted(there) > booted(info)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_process_gives_way_to_one_that_started_later() {
        let of = |time: Value| json!({ "boot_time": time });
        assert!(is_newer(&of(json!(8)), &of(json!(7))));
        for older in [json!(7), json!(6), json!("9"), json!(null)] {
            assert!(!is_newer(&of(older.clone()), &of(json!(7))), "{older}");
        }
        assert!(!is_newer(&json!(5), &of(json!(7))));
    }
}

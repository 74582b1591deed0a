//! Reading many keys: in pages, all of one revision, within bounds.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use control::store::{Revision, Row};
use model::Key;

use super::client::{Client, Trouble};
use super::keys::{self, Layout};
use super::proto::RangeRequest;

/// Keys of a page, at first.
const PAGE: i64 = 1000;

/// Pages without values are small.
const PAGE_OF_KEYS: i64 = 10_000;

/// How often a reading begins again because its revision was compacted meanwhile, or a page was too large
/// or too slow.
const TRIES: u32 = 24;

/// Everything there is, at one revision.
#[derive(Debug, Default)]
pub struct Everything {
    pub cluster: u64,
    pub revision: Revision,
    pub rows: Vec<Row>,
    pub plugins: Option<Vec<String>>,
    pub notes: BTreeMap<String, String>,
}

/// The keys of resources with their revisions, at one revision.
#[derive(Debug, Default)]
pub struct Listing {
    pub revision: Revision,
    pub keys: HashMap<Key, Revision>,
    /// The latest revision of a note.
    pub notes: Revision,
}

/// Reads keys and values.
///
/// # Errors
/// No answer; more than `max_size` bytes.
pub async fn everything(
    client: &Client,
    layout: &Layout,
    patience: Duration,
    max_size: u64,
) -> Result<Everything, Trouble> {
    let mut page = PAGE;
    let mut last = Trouble::Compacted;
    for _ in 0..TRIES {
        let mut all = Everything::default();
        let mut size = 0u64;
        let reading = pages(client, layout, false, page, patience, |header, kv| {
            (all.cluster, all.revision) = header;
            size += (kv.key.len() + kv.value.len()) as u64;
            if size > max_size {
                return Err(Trouble::Refused(format!(
                    "there are more than {max_size} bytes under {} (deployment.etcd.max_size)",
                    layout.prefix()
                )));
            }
            if kv.key == layout.plugins() {
                all.plugins = keys::plugin_names(&kv.value);
            }
            if let Some(name) = layout.note_name(&kv.key) {
                all.notes.insert(name.to_owned(), keys::note_text(&kv.value));
            }
            all.rows.extend(layout.row(&kv));
            Ok(())
        });
        match reading.await {
            Ok(header) => {
                (all.cluster, all.revision) = header;
                return Ok(all);
            }
            Err(trouble @ Trouble::TooLarge) => (page, last) = ((page / 4).max(1), trouble),
            Err(trouble @ Trouble::Compacted) => last = trouble,
            Err(trouble) => return Err(trouble),
        }
    }
    Err(last)
}

/// Reads keys alone.
///
/// # Errors
/// No answer.
pub async fn listing(client: &Client, layout: &Layout, patience: Duration) -> Result<Listing, Trouble> {
    for _ in 0..TRIES {
        let mut all = Listing::default();
        let reading = pages(client, layout, true, PAGE_OF_KEYS, patience, |_, kv| {
            if layout.note_name(&kv.key).is_some() {
                all.notes = all.notes.max(keys::revision(kv.mod_revision));
            }
            all.keys.extend(layout.parse(&kv.key).map(|key| (key, keys::revision(kv.mod_revision))));
            Ok(())
        });
        match reading.await {
            Ok((_, revision)) => return Ok(Listing { revision, ..all }),
            Err(Trouble::Compacted) => {}
            Err(trouble) => return Err(trouble),
        }
    }
    Err(Trouble::Compacted)
}

/// Gives every key to `take`, with the cluster's number and the revision of the reading.
async fn pages(
    client: &Client,
    layout: &Layout,
    keys_only: bool,
    limit: i64,
    patience: Duration,
    mut take: impl FnMut((u64, Revision), super::proto::KeyValue) -> Result<(), Trouble>,
) -> Result<(u64, Revision), Trouble> {
    let (mut key, range_end) = layout.all();
    // The first page is of what a majority has agreed on; the others are of the same revision.
    let mut at = (0, 0);
    loop {
        let revision = i64::try_from(at.1).unwrap_or(i64::MAX);
        let request = RangeRequest {
            key,
            range_end: range_end.clone(),
            limit,
            revision,
            keys_only,
            ..RangeRequest::default()
        };
        let page = client.range(request, patience).await?;
        let header = page.header.unwrap_or_default();
        if at == (0, 0) {
            at = (header.cluster_id, keys::revision(header.revision));
        }
        let last = page.kvs.last().map(|kv| kv.key.clone());
        for kv in page.kvs {
            take(at, kv)?;
        }
        match last {
            Some(last) if page.more => {
                key = last;
                key.push(0);
            }
            _ => return Ok(at),
        }
    }
}

//! Tests that every writable store must pass, run over each of them.

use std::sync::Arc;
use std::time::Duration;

use model::{Key, Kind};
use serde_json::json;

use super::{Change, Embedded, Expect, Memory, Store, StoreError};

fn route(id: &str) -> Key {
    Key::new(Kind::Route, id)
}

async fn revisions_move_as_in_etcd(store: &dyn Store) {
    let one = store.put(route("1"), json!({"a": 1}), Expect::Any, None).await.unwrap();
    let two = store.put(route("2"), json!({"a": 2}), Expect::Absent, None).await.unwrap();
    assert_eq!((one.created, one.modified), (1, 1));
    assert_eq!((two.created, two.modified), (2, 2));
    let again = store.put(route("1"), json!({"a": 3}), Expect::Any, None).await.unwrap();
    assert_eq!((again.created, again.modified), (1, 3));
    let deleted = store.delete(route("1"), Expect::Any).await.unwrap();
    assert_eq!(deleted, Some(again));
    assert_eq!(store.delete(route("1"), Expect::Any).await.unwrap(), None);
    assert_eq!(store.list(Kind::Route, "").await.unwrap(), (vec![two], 4));
    let reborn = store.put(route("1"), json!({}), Expect::Any, None).await.unwrap();
    assert_eq!((reborn.created, reborn.modified), (5, 5));
    assert_eq!(store.put_plugins(vec!["cors".to_owned()]).await.unwrap(), 6);
}

async fn expectations_are_kept(store: &dyn Store) {
    let refused = |outcome: Result<_, StoreError>| assert!(matches!(outcome, Err(StoreError::Changed)));
    let one = store.put(route("1"), json!(1), Expect::Any, None).await.unwrap();
    refused(store.put(route("1"), json!(2), Expect::Absent, None).await.map(|_| ()));
    refused(store.put(route("1"), json!(2), Expect::Unchanged(one.modified + 1), None).await.map(|_| ()));
    refused(store.put(route("2"), json!(2), Expect::Unchanged(1), None).await.map(|_| ()));
    refused(store.delete(route("1"), Expect::Unchanged(one.modified + 1)).await.map(|_| ()));
    assert_eq!(store.get(&route("1")).await.unwrap(), Some(one.clone()));
    store.put(route("1"), json!(2), Expect::Unchanged(one.modified), None).await.unwrap();
}

async fn followers_see_each_change_in_order(store: &dyn Store) {
    store.put(route("1"), json!(1), Expect::Any, None).await.unwrap();
    let mut changes = store.watch();
    let Some(Change::Reset { items, revision: 1, .. }) = changes.next().await else { panic!() };
    assert_eq!(items.len(), 1);
    store.put(route("2"), json!(2), Expect::Any, Some(Duration::from_secs(60))).await.unwrap();
    store.delete(route("1"), Expect::Any).await.unwrap();
    store.put_plugins(vec![]).await.unwrap();
    let Some(Change::Put(row)) = changes.next().await else { panic!() };
    assert!(row.key == route("2") && row.expires.is_some());
    assert!(matches!(changes.next().await, Some(Change::Delete { revision: 3, .. })));
    let change = changes.next().await;
    assert!(matches!(change, Some(Change::Plugins { revision: 4, .. })), "{change:?}");
}

async fn of_writers_that_race_one_wins(store: Arc<dyn Store>) {
    store.put(route("1"), json!(0), Expect::Any, None).await.unwrap();
    let writers = (0..32).map(|n| {
        let store = store.clone();
        tokio::spawn(async move { store.put(route("1"), json!(n), Expect::Unchanged(1), None).await.is_ok() })
    });
    let mut won = 0;
    for writer in writers.collect::<Vec<_>>() {
        won += u32::from(writer.await.unwrap());
    }
    assert_eq!(won, 1);
    assert_eq!(store.get(&route("1")).await.unwrap().unwrap().modified, 2);
}

macro_rules! suite {
    ($name:ident, $open:expr) => {
        mod $name {
            use super::*;

            #[tokio::test]
            async fn revisions_move_as_in_etcd() {
                let (_kept, store) = $open;
                super::revisions_move_as_in_etcd(&store).await;
            }

            #[tokio::test]
            async fn expectations_are_kept() {
                let (_kept, store) = $open;
                super::expectations_are_kept(&store).await;
            }

            #[tokio::test]
            async fn followers_see_each_change_in_order() {
                let (_kept, store) = $open;
                super::followers_see_each_change_in_order(&store).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn of_writers_that_race_one_wins() {
                let (_kept, store) = $open;
                super::of_writers_that_race_one_wins(Arc::new(store)).await;
            }
        }
    };
}

suite!(memory, ((), Memory::default()));
suite!(embedded, {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(folder.path()).unwrap();
    (folder, store)
});

//! Versions of the file's layout.

use std::path::Path;

use super::{put, route};
use crate::store::{Embedded, Store, StoreError};

/// The table in which a store says how it is laid out.
const META: redb::TableDefinition<&str, &str> = redb::TableDefinition::new("meta");

fn set_meta(folder: &Path, entries: &[(&str, &str)]) {
    let database = redb::Database::open(folder.join("store.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    {
        let mut meta = transaction.open_table(META).unwrap();
        for (name, text) in entries {
            meta.insert(*name, *text).unwrap();
        }
    }
    transaction.commit().unwrap();
}

/// `format-1` was written by the first version. Every later one opens it and adds to it.
#[tokio::test]
async fn a_store_of_the_first_version_is_opened_and_written() {
    let folder = tempfile::tempdir().unwrap();
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/embedded/format-1");
    for name in ["store.redb", "store.key"] {
        std::fs::copy(kept.join(name), folder.path().join(name)).unwrap();
    }
    let store = Embedded::open(folder.path()).unwrap();
    assert_eq!(store.get(&route("1")).await.unwrap().unwrap().value["uri"], "/1");
    assert_eq!(store.note("a").await.unwrap().as_deref(), Some("kept"));
    assert_eq!(store.plugins().await.unwrap(), Some(vec!["key-auth".to_owned()]));
    let before = store.history(0, u64::MAX, 100).await.unwrap().len();
    assert!(before > 0, "the history is kept");
    put(&store, "2").await.unwrap();
    drop(store);
    let store = Embedded::open(folder.path()).unwrap();
    assert!(
        store.get(&route("1")).await.unwrap().is_some() && store.get(&route("2")).await.unwrap().is_some()
    );
    assert_eq!(store.history(0, u64::MAX, 100).await.unwrap().len(), before + 1);
}

#[tokio::test]
async fn a_store_of_a_later_format_is_refused_with_both_versions_and_keeps_its_content() {
    let folder = tempfile::tempdir().unwrap();
    put(&Embedded::open(folder.path()).unwrap(), "1").await.unwrap();
    for (format, written_by, parts) in [
        ("2", Some("9.8.7"), ["format 2", "written by sluice 9.8.7", "reads format 1", "sluice restore"]),
        ("300", None, ["format 300", "reads format 1", "a newer binary", "sluice restore"]),
    ] {
        let entries =
            [("format", format)].into_iter().chain(written_by.map(|version| ("written_by", version)));
        set_meta(folder.path(), &entries.collect::<Vec<_>>());
        let error = Embedded::open(folder.path()).unwrap_err();
        assert!(matches!(error, StoreError::UpgradeRequired { .. }), "{error:?}");
        for part in parts {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
    }
    set_meta(folder.path(), &[("format", "1")]);
    assert!(Embedded::open(folder.path()).unwrap().get(&route("1")).await.unwrap().is_some());
    // A format that is no number is damage.
    set_meta(folder.path(), &[("format", "x")]);
    let error = Embedded::open(folder.path()).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}");
}

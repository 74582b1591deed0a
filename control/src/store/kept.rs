//! A copy on disk of what a store elsewhere holds, to start from when that cannot be reached.
//!
//! It is a file like the embedded store's: values sealed, each commit durable and whole. It is only
//! ever a copy: one that cannot be read is made again. Nothing here decides what is served.

use std::collections::HashMap;
use std::path::Path;
use std::{fs, io};

use model::Key;

use super::embedded::{Disk, Loaded};
use super::{Change, Revision, Row, StoreError};

/// The note that says of what this is a copy.
const ORIGIN: &str = "origin";

/// The file, open.
pub struct Kept {
    disk: Disk,
    /// The revision of each row in the file.
    rows: HashMap<Key, Revision>,
    /// Of what it is a copy, as the file says.
    origin: Option<String>,
}

/// The content of the file when it was opened.
#[derive(Debug, Default)]
pub struct Copy {
    pub items: Vec<Row>,
    pub plugins: Option<Vec<String>>,
    pub revision: Revision,
    /// The origin passed to [`Kept::commit`]; `None` if nothing was ever kept.
    pub origin: Option<String>,
}

impl Kept {
    /// Opens the file in a folder of its own, making both on first use. A folder with a damaged one is
    /// put aside under another name, with a warning.
    ///
    /// Blocks while reading.
    ///
    /// # Errors
    /// A folder that cannot be used, or another process that has the file open.
    pub fn open(folder: &Path) -> Result<(Kept, Copy), StoreError> {
        let (disk, loaded) = match Disk::open(folder) {
            Err(error) if is_unreadable(folder, &error) => {
                let aside = folder.with_extension("damaged");
                tracing::warn!(
                    "{error}; it is only a copy and is made again, the old one is in {}",
                    aside.display()
                );
                let refused = |error: io::Error| StoreError::Folder {
                    path: folder.to_owned(),
                    reason: format!("the damaged copy cannot be put aside: {error}"),
                };
                match fs::remove_dir_all(&aside) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(refused(error)),
                    _ => fs::rename(folder, &aside).map_err(refused)?,
                }
                Disk::open(folder)?
            }
            opened => opened?,
        };
        let Loaded { items, plugins, revision, mut notes, .. } = loaded;
        let origin = notes.remove(ORIGIN);
        let rows = items.iter().map(|row| (row.key.clone(), row.modified)).collect();
        Ok((Kept { disk, rows, origin: origin.clone() }, Copy { items, plugins, revision, origin }))
    }

    /// Takes changes over. `origin` says of what this is a copy.
    ///
    /// Blocks until they are on disk.
    ///
    /// # Errors
    /// None of them was taken over.
    pub fn commit(&mut self, changes: Vec<Change>, origin: &str) -> Result<(), StoreError> {
        let Some(revision) = changes.last().map(Change::revision) else { return Ok(()) };
        let mut all = Vec::with_capacity(changes.len());
        let mut rows = self.rows.clone();
        for change in changes {
            match change {
                Change::Reset { items, plugins, revision, anew, .. } => {
                    let anew = anew || self.origin.as_deref() != Some(origin);
                    let now: HashMap<Key, Revision> =
                        items.iter().map(|row| (row.key.clone(), row.modified)).collect();
                    let gone = rows.keys().filter(|key| !now.contains_key(key)).cloned();
                    all.extend(gone.map(|key| Change::Delete { key, revision }));
                    let news =
                        items.into_iter().filter(|row| anew || rows.get(&row.key) != Some(&row.modified));
                    all.extend(news.map(Change::Put));
                    all.push(Change::Plugins { names: plugins, revision });
                    rows = now;
                }
                // Notes are read from the store itself.
                Change::Note { .. } => {}
                change => {
                    match &change {
                        Change::Put(row) => _ = rows.insert(row.key.clone(), row.modified),
                        Change::Delete { key, .. } => _ = rows.remove(key),
                        _ => {}
                    }
                    all.push(change);
                }
            }
        }
        if self.origin.as_deref() != Some(origin) {
            all.push(Change::Note { name: ORIGIN.into(), text: origin.to_owned(), revision });
        }
        self.disk.commit(&all, &[], revision)?;
        self.rows = rows;
        self.origin = Some(origin.to_owned());
        Ok(())
    }
}

/// Whether no later try can read it: it is damaged, of another release, or its key is gone.
fn is_unreadable(folder: &Path, error: &StoreError) -> bool {
    match error {
        StoreError::Damaged { .. } | StoreError::UpgradeRequired { .. } => true,
        StoreError::Folder { .. } => {
            folder.join("store.redb").is_file()
                && fs::metadata(folder.join("store.key"))
                    .is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        }
        _ => false,
    }
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kept").field("rows", &self.rows.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use model::Kind;

    use super::*;
    use crate::store::Parsed;

    fn row(id: &str, modified: Revision, json: &str) -> Row {
        let (key, json) = (Key::new(Kind::Route, id), json.into());
        Row { key, json, created: 1, modified, expires: None }
    }

    fn reset(items: Vec<Row>, revision: Revision, anew: bool) -> Change {
        Change::Reset {
            items,
            plugins: Some(vec!["cors".into()]),
            stream_plugins: None,
            revision,
            rejected: Vec::new(),
            parsed: Parsed::default(),
            anew,
        }
    }

    #[test]
    fn what_was_kept_is_there_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("etcd");
        let (mut kept, copy) = Kept::open(&path).unwrap();
        assert!(copy.items.is_empty() && copy.origin.is_none());
        let first = reset(vec![row("1", 5, "{}"), row("2", 6, "{}")], 9, false);
        kept.commit(vec![first], "a").unwrap();
        let delete = Change::Delete { key: Key::new(Kind::Route, "1"), revision: 11 };
        let note = Change::Note { name: ORIGIN.into(), text: "of the store".to_owned(), revision: 12 };
        kept.commit(vec![Change::Put(row("3", 10, "{}")), delete, note], "a").unwrap();
        drop(kept);
        let (mut kept, copy) = Kept::open(&path).unwrap();
        assert_eq!(copy.items, [row("2", 6, "{}"), row("3", 10, "{}")]);
        assert_eq!((copy.revision, copy.origin.as_deref()), (12, Some("a")));
        assert_eq!(copy.plugins, Some(vec!["cors".to_owned()]));
        // The same revision says nothing in another history, nor of another origin.
        for (anew, origin) in [(true, "a"), (false, "b")] {
            let json = format!(r#"{{"uri":"/{origin}"}}"#);
            kept.commit(vec![reset(vec![row("3", 10, &json)], 10, anew)], origin).unwrap();
            drop(kept);
            let copy;
            (kept, copy) = Kept::open(&path).unwrap();
            assert_eq!(copy.items, [row("3", 10, &json)]);
        }
    }

    #[test]
    fn a_damaged_copy_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("etcd");
        let (mut kept, _) = Kept::open(&path).unwrap();
        kept.commit(vec![reset(vec![row("1", 5, "{}")], 9, false)], "a").unwrap();
        assert!(matches!(Kept::open(&path), Err(StoreError::Locked { .. })));
        drop(kept);
        for _ in 0..2 {
            fs::write(path.join("store.redb"), b"no database").unwrap();
            let (_, copy) = Kept::open(&path).unwrap();
            assert!(copy.items.is_empty());
            assert!(folder.path().join("etcd.damaged/store.redb").exists());
        }
    }

    #[test]
    fn a_copy_whose_key_is_gone_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("etcd");
        let (mut kept, _) = Kept::open(&path).unwrap();
        kept.commit(vec![reset(vec![row("1", 5, "{}")], 9, false)], "a").unwrap();
        drop(kept);
        fs::remove_file(path.join("store.key")).unwrap();
        let (_, copy) = Kept::open(&path).unwrap();
        assert!(copy.items.is_empty());
    }
}

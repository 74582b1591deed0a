//! Stored scripts: plugins, and modules that these require.
//!
//! A plugin is loaded again when its text changes or a module does; the others stay the same.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use model::apisix_plugins::Subsystem;
use model::script::Role;
use model::{Invalid, Script};
use sdk::scripts::{Library, Scripts, Unloaded};

use super::{Catalog, Compiled};

/// How many there may be, and the length of them all in bytes.
const MOST: usize = 500;
const MOST_BYTES: usize = 16 << 20;

/// The scripts as they were loaded last.
#[derive(Default, Clone)]
pub(super) struct Stored {
    scripts: BTreeMap<String, Kept>,
    /// The valid modules: their digest, and their code.
    library: Option<(u64, Library)>,
}

#[derive(Clone)]
struct Kept {
    /// The text that was loaded last, and the digest of it and of the modules it may require.
    script: Arc<Script>,
    digest: u64,
    invalid: Option<Invalid>,
    /// The last valid version.
    valid: Option<Valid>,
}

#[derive(Clone)]
struct Valid {
    script: Arc<Script>,
    /// The plugin, unless it is a module.
    plugin: Option<(Subsystem, Arc<Compiled>)>,
}

impl Stored {
    pub fn plugins(&self) -> impl Iterator<Item = (Subsystem, &'static str, &Arc<Compiled>)> {
        let plugins = self.scripts.values().filter_map(|kept| kept.valid.as_ref()?.plugin.as_ref());
        plugins.map(|(subsystem, plugin)| (*subsystem, plugin.row.name(), plugin))
    }

    pub fn has(&self, subsystem: Subsystem, name: &str) -> bool {
        self.plugins().any(|(own, plugin, _)| (own, plugin) == (subsystem, name))
    }

    /// Whether the plugins of both are the same.
    pub fn has_plugins_of(&self, other: &Stored) -> bool {
        let all = |stored: &Stored| -> Vec<_> {
            stored.plugins().map(|(subsystem, _, plugin)| (subsystem, Arc::as_ptr(plugin))).collect()
        };
        all(self) == all(other)
    }

    fn unloaded(&self) -> impl Iterator<Item = Unloaded> {
        self.scripts.iter().filter_map(|(id, kept)| {
            let (invalid, keeps_last) = (kept.invalid.clone()?, kept.valid.is_some());
            Some(Unloaded { id: id.clone(), invalid, keeps_last })
        })
    }
}

/// Loads scripts for a catalog.
struct Loader<'c> {
    catalog: &'c Catalog,
    host: &'c dyn Scripts,
    before: &'c Stored,
}

/// Names and texts of modules.
type Texts<'t> = BTreeMap<&'t str, &'t str>;

impl Loader<'_> {
    /// Loads all of these in the place of those before.
    fn load(&self, scripts: &BTreeMap<&str, Arc<Script>>) -> Result<Stored, Invalid> {
        let mut stored = Stored::default();
        let mut fitting: BTreeMap<&str, &Arc<Script>> = BTreeMap::new();
        let mut bytes = 0;
        for (id, script) in scripts {
            bytes += script.content.len();
            match check_size(fitting.len(), bytes) {
                Ok(()) => _ = fitting.insert(id, script),
                Err(invalid) => {
                    _ = stored.scripts.insert((*id).to_owned(), self.kept(id, script, 0, Err(invalid)))
                }
            }
        }
        let (modules, plugins): (BTreeMap<&str, &Arc<Script>>, BTreeMap<_, _>) =
            fitting.into_iter().partition(|(_, script)| script.role == Role::Module);
        let texts: Texts<'_> = modules.iter().map(|(id, script)| (*id, &*script.content)).collect();
        let (with, library) = self.library(&texts)?;
        for (id, script) in &modules {
            stored.scripts.insert((*id).to_owned(), self.one(id, script, with, &library));
        }
        let valid: Texts<'_> = stored
            .scripts
            .iter()
            .filter_map(|(id, kept)| Some((&**id, &*kept.valid.as_ref()?.script.content)))
            .filter(|(id, _)| modules.contains_key(id))
            .collect();
        let (with, library) = if valid == texts { (with, library) } else { self.library(&valid)? };
        for (id, script) in plugins {
            stored.scripts.insert(id.to_owned(), self.one(id, script, with, &library));
        }
        stored.library = Some((with, library));
        Ok(stored)
    }

    /// The code of modules, with its digest.
    fn library(&self, texts: &Texts<'_>) -> Result<(u64, Library), Invalid> {
        let digest = digest(texts);
        match &self.before.library {
            Some((known, library)) if *known == digest => Ok((digest, library.clone())),
            _ => {
                let texts: Vec<(&str, &str)> = texts.iter().map(|(id, text)| (*id, *text)).collect();
                Ok((digest, self.host.library(&texts)?))
            }
        }
    }

    /// Loads one, unless that was done already.
    fn one(&self, id: &str, script: &Arc<Script>, with: u64, library: &Library) -> Kept {
        let digest = digest(&(with, script.role, &script.content));
        match self.before.scripts.get(id) {
            Some(kept) if kept.digest == digest => kept.clone(),
            _ => self.kept(id, script, digest, self.plugin(id, script, library)),
        }
    }

    fn kept(
        &self,
        id: &str,
        script: &Arc<Script>,
        digest: u64,
        loaded: Result<Option<(Subsystem, Arc<Compiled>)>, Invalid>,
    ) -> Kept {
        let script = script.clone();
        match loaded {
            Ok(plugin) => {
                let valid = Some(Valid { script: script.clone(), plugin });
                Kept { script, digest, invalid: None, valid }
            }
            Err(invalid) => {
                let valid = self.before.scripts.get(id).and_then(|before| before.valid.clone());
                Kept { script, digest, invalid: Some(invalid), valid }
            }
        }
    }

    fn plugin(
        &self,
        id: &str,
        script: &Script,
        library: &Library,
    ) -> Result<Option<(Subsystem, Arc<Compiled>)>, Invalid> {
        let subsystem = match script.role {
            Role::Plugin => Subsystem::Http,
            Role::StreamPlugin => Subsystem::Stream,
            Role::Module => return self.host.stored(id, script, library).map(|_| None),
        };
        self.catalog.check_free(subsystem, id)?;
        match self.host.stored(id, script, library)? {
            Some(plugin) => Ok(Some((subsystem, Compiled::hosted(plugin)?))),
            None => Ok(None),
        }
    }
}

fn digest(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

fn check_size(others: usize, bytes: usize) -> Result<(), Invalid> {
    if others >= MOST {
        return Err(Invalid::new("too many scripts").expected(format!("at most {MOST}")));
    }
    if bytes > MOST_BYTES {
        let all = Invalid::new("the scripts are too long together");
        return Err(all.at("/content").expected(format!("at most {MOST_BYTES} bytes of all scripts")));
    }
    Ok(())
}

impl Catalog {
    pub(super) fn loaded_scripts(&self, scripts: &[(&str, &Script)]) -> Result<Vec<Unloaded>, Invalid> {
        let before = self.hosted.stored();
        let loader = Loader { catalog: self, host: self.scripts("script")?, before: &before };
        let wanted = scripts.iter().map(|(id, script)| {
            let known = before.scripts.get(*id).map(|kept| kept.script.clone());
            (*id, known.filter(|known| **known == **script).unwrap_or_else(|| Arc::new((*script).clone())))
        });
        let stored = Arc::new(loader.load(&wanted.collect())?);
        self.hosted.set_stored(&stored);
        Ok(stored.unloaded().collect())
    }

    /// Whether a valid version of this script is in use.
    pub(super) fn keeps_script(&self, id: &str) -> bool {
        self.hosted.stored().scripts.get(id).is_some_and(|kept| kept.valid.is_some())
    }

    pub(super) fn checked_script(&self, id: &str, script: &Script) -> Result<(), Invalid> {
        let before = self.hosted.stored();
        let loader = Loader { catalog: self, host: self.scripts("script")?, before: &before };
        let others = before.scripts.iter().filter(|(other, _)| *other != id);
        let bytes: usize = others.clone().map(|(_, kept)| kept.script.content.len()).sum();
        check_size(others.clone().count(), bytes + script.content.len())?;
        let modules = others.filter_map(|(id, kept)| Some((&**id, kept.valid.as_ref()?)));
        let mut texts: Texts<'_> = modules
            .filter(|(_, valid)| valid.plugin.is_none())
            .map(|(id, valid)| (id, &*valid.script.content))
            .collect();
        if script.role == Role::Module {
            texts.insert(id, &script.content);
        }
        let (with, library) = loader.library(&texts)?;
        loader.one(id, &Arc::new(script.clone()), with, &library).invalid.map_or(Ok(()), Err)
    }

    /// A copy with these scripts besides the present ones.
    ///
    /// # Errors
    /// No code can be compiled.
    pub(super) fn copy_with(&self, scripts: &[(&str, &Script)]) -> Result<Catalog, Invalid> {
        let before = self.hosted.stored();
        let loader = Loader { catalog: self, host: self.scripts("script")?, before: &before };
        let mut all: BTreeMap<&str, Arc<Script>> =
            before.scripts.iter().map(|(id, kept)| (&**id, kept.script.clone())).collect();
        all.extend(scripts.iter().map(|(id, script)| (*id, Arc::new((*script).clone()))));
        let stored = Arc::new(loader.load(&all)?);
        let copy = self.copy();
        copy.hosted.set_stored(&stored);
        Ok(copy)
    }
}

//! Stored scripts, loaded into the catalog before anything that uses them is compiled.

use model::{Desired, Key, Kind, Resource, Script, Served};

use super::{Compiler, Touched};

impl Compiler {
    /// Loads the stored scripts if one of them was touched. The catalog then has another generation if its plugins
    /// changed.
    pub(super) fn load_scripts(&mut self, desired: &Desired, touched: &Touched) {
        if !touched.all && !touched.keys.iter().any(|key| key.kind == Kind::Script) {
            return;
        }
        let scripts: Vec<(&str, &Script)> = desired
            .of(Kind::Script)
            .filter_map(|entry| match entry.resource() {
                Resource::Script(script) => Some((&*entry.key.id, &**script)),
                _ => None,
            })
            .collect();
        let unloaded = self.catalog.load_scripts(&scripts);
        let rejected: Vec<Key> = self.rejections.of_kind(Kind::Script).map(|(key, _)| key.clone()).collect();
        rejected.iter().for_each(|key| self.rejections.accept(key));
        for one in unloaded {
            let key = Key::new(Kind::Script, one.id);
            self.rejections.reject(&key, one.invalid, Served::last_good(one.keeps_last));
        }
    }
}

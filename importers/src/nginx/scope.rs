//! The blocks around a place, and nginx's rules for what inner blocks inherit.

use super::directive::{Block, Directive};
use super::values;

/// The blocks around a place, the outermost first: `http`, `server`, `location`, `if`.
#[derive(Clone)]
pub(super) struct Scope<'a> {
    levels: Vec<&'a Block>,
}

impl<'a> Scope<'a> {
    pub(super) fn new(outer: &'a Block) -> Scope<'a> {
        Scope { levels: vec![outer] }
    }

    /// The scope of a block within this one.
    pub(super) fn within(&self, block: &'a Block) -> Scope<'a> {
        let mut inner = self.clone();
        inner.levels.push(block);
        inner
    }

    /// The ids of all blocks but the outermost one.
    pub(super) fn blocks(&self) -> impl Iterator<Item = usize> + '_ {
        self.levels.iter().skip(1).map(|block| block.id)
    }

    pub(super) fn levels(&self) -> &[&'a Block] {
        &self.levels
    }

    /// The directives of this name in the innermost block that has any. All others of this name have
    /// no effect here, as in nginx.
    pub(super) fn all(&self, name: &str) -> Vec<&'a Directive> {
        let mut nearest = Vec::new();
        for level in &self.levels {
            let here: Vec<&Directive> = level.named(name).collect();
            here.iter().for_each(|directive| {
                directive.mark_used();
            });
            if !here.is_empty() {
                nearest = here;
            }
        }
        nearest
    }

    /// The directive of this name that counts here.
    pub(super) fn get(&self, name: &str) -> Option<&'a Directive> {
        self.all(name).into_iter().last()
    }

    /// The directives of this name in the innermost block alone.
    pub(super) fn own(&self, name: &str) -> Option<&'a Directive> {
        let level = self.levels.last()?;
        level.named(name).next().map(Directive::mark_used)
    }

    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        self.get(name)?.flag()
    }

    /// Seconds.
    pub(super) fn time(&self, name: &str) -> Option<f64> {
        values::seconds(self.get(name)?.arg(0))
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.arg(0).parse().ok()
    }
}

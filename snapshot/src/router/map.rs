//! hot path
//!
//! A hash map whose copies share their contents.
//!
//! Keys and values are stored in pages, at slots given by their hash, so finding one of 100,000
//! costs a single cache miss: the path to the page fits into a core's own cache. So does a filter,
//! which excludes nearly all missing keys without a cache miss. The map grows page by page (linear
//! hashing), never all at once. Cloning it is cloning one `Arc`; changing a key copies only the
//! nodes on the path to it, and only those that another copy still holds. The caller supplies the
//! hash, which must be keyed, so that clients cannot choose keys that collide in one page.

use std::sync::Arc;

use smallvec::SmallVec;

use super::filter::Filter;
use crate::table::Table;

#[derive(Debug, Clone)]
pub(crate) struct Map<V> {
    root: Root<V>,
    len: u32,
    /// An upper bound on key lengths; longer keys may have been removed.
    longest: u32,
}

#[derive(Debug, Clone)]
enum Root<V> {
    Empty,
    /// Compared one by one.
    Few(Arc<[Leaf<V>]>),
    Many(Arc<Pages<V>>),
}

/// Pages by number.
#[derive(Debug, Clone)]
struct Pages<V> {
    pages: Table<Page<V>>,
    count: u32,
    filter: Filter,
}

#[derive(Debug, Clone)]
struct Page<V> {
    /// A leaf is in the first free slot from the one given by its hash.
    slots: [Option<Leaf<V>>; SLOTS],
    /// Leaves that found no free slot.
    more: Vec<Leaf<V>>,
}

/// Key and value side by side, in two cache lines if the value is not large.
#[derive(Debug, Clone)]
#[repr(align(64))]
struct Leaf<V> {
    hash: u64,
    key: SmallVec<[u8; 40]>,
    value: V,
}

/// With more leaves than this, pages are used.
const FEW: usize = 8;
const SLOTS: usize = 16;
/// Average leaves per page: enough to save memory, few enough that most are in the slot given by
/// their hash.
const LOAD: usize = 9;

impl<V: Clone> Map<V> {
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether a key may have this length; if not, it need not be hashed.
    #[inline]
    pub(crate) fn may_have(&self, len: usize) -> bool {
        self.len != 0 && len <= self.longest as usize
    }

    /// Whether a key may have this hash; `false` is certain.
    #[inline]
    pub(crate) fn may_have_hash(&self, hash: u64) -> bool {
        match &self.root {
            Root::Empty => false,
            Root::Few(_) => true,
            Root::Many(pages) => pages.filter.may_have(hash),
        }
    }

    #[inline]
    pub(crate) fn get(&self, hash: u64, key: &[u8]) -> Option<&V> {
        let leaf = match &self.root {
            Root::Empty => None,
            Root::Few(list) => list.iter().find(|leaf| leaf.is(hash, key)),
            Root::Many(pages) if !pages.filter.may_have(hash) => None,
            Root::Many(pages) => pages.of(hash)?.get(hash, key),
        };
        leaf.map(|leaf| &leaf.value)
    }

    /// A value to change; other copies of the map keep theirs.
    pub(crate) fn get_mut(&mut self, hash: u64, key: &[u8]) -> Option<&mut V> {
        self.get(hash, key)?;
        let leaf = match &mut self.root {
            Root::Empty => None,
            Root::Few(list) => Arc::make_mut(list).iter_mut().find(|leaf| leaf.is(hash, key)),
            Root::Many(pages) => Arc::make_mut(pages).of_mut(hash).get_mut(hash, key),
        };
        leaf.map(|leaf| &mut leaf.value)
    }

    /// Adds a key that is not stored yet.
    pub(crate) fn insert(&mut self, hash: u64, key: &[u8], value: V) {
        self.len += 1;
        self.longest = self.longest.max(u32::try_from(key.len()).unwrap_or(u32::MAX));
        let leaf = Leaf { hash, key: key.into(), value };
        match &mut self.root {
            Root::Empty => self.root = Root::Few([leaf].into()),
            Root::Few(list) => {
                let longer: Vec<_> = list.iter().cloned().chain(std::iter::once(leaf)).collect();
                self.root = Root::of(longer);
            }
            Root::Many(pages) => {
                let pages = Arc::make_mut(pages);
                pages.insert(leaf);
                if self.len as usize > pages.count as usize * LOAD {
                    pages.grow();
                }
            }
        }
    }

    pub(crate) fn remove(&mut self, hash: u64, key: &[u8]) {
        if self.get(hash, key).is_none() {
            return;
        }
        self.len -= 1;
        match &mut self.root {
            _ if self.len == 0 => *self = Map::default(),
            Root::Empty => {}
            Root::Few(list) => *list = list.iter().filter(|leaf| !leaf.is(hash, key)).cloned().collect(),
            Root::Many(pages) => {
                let pages = Arc::make_mut(pages);
                pages.of_mut(hash).remove(hash, key);
                if self.len < pages.count {
                    let mut left = Vec::with_capacity(self.len as usize);
                    pages.each(|leaf| left.push(leaf.clone()));
                    self.root = Root::of(left);
                }
            }
        }
    }
}

impl<V: Clone> Root<V> {
    fn of(leaves: Vec<Leaf<V>>) -> Root<V> {
        if leaves.len() <= FEW {
            return Root::Few(leaves.into());
        }
        let mut pages = Pages { pages: Table::default(), count: 1, filter: Filter::new(leaves.len()) };
        let enough = leaves.len().div_ceil(LOAD);
        leaves.into_iter().for_each(|leaf| pages.insert(leaf));
        (1..enough).for_each(|_| pages.grow());
        Root::Many(Arc::new(pages))
    }
}

impl<V: Clone> Pages<V> {
    #[inline]
    fn of(&self, hash: u64) -> Option<&Page<V>> {
        self.pages.get(page_number(hash, self.count)).map(|page| &**page)
    }

    fn of_mut(&mut self, hash: u64) -> &mut Page<V> {
        self.pages.entry(page_number(hash, self.count))
    }

    fn each<'p>(&'p self, mut look: impl FnMut(&'p Leaf<V>)) {
        self.pages.each(|page| page.slots.iter().flatten().chain(&page.more).for_each(&mut look));
    }

    fn insert(&mut self, leaf: Leaf<V>) {
        if self.filter.is_full() {
            // Until now the filter also held the hashes of removed leaves.
            let mut hashes = Vec::new();
            self.each(|leaf| hashes.push(leaf.hash));
            self.filter = Filter::new(hashes.len());
            hashes.into_iter().for_each(|hash| self.filter.note(hash));
        }
        self.filter.note(leaf.hash);
        self.of_mut(leaf.hash).insert(leaf);
    }

    /// Adds a page, and moves to it the leaves of another page that now belong there.
    fn grow(&mut self) {
        let count = self.count + 1;
        // The page with the same number but for its highest bit.
        let from = self.count - (count.next_power_of_two() / 2);
        let all: Vec<_> = self.pages.entry(from).take_all().collect();
        self.count = count;
        all.into_iter().for_each(|leaf| self.of_mut(leaf.hash).insert(leaf));
    }
}

/// The page number of a hash among `count` pages: its low bits, one bit less if that page does not
/// exist yet.
#[inline]
pub(super) fn page_number(hash: u64, count: u32) -> u32 {
    let bits = count.next_power_of_two();
    let number = hash as u32 & (bits - 1);
    if number < count { number } else { number - bits / 2 }
}

impl<V> Page<V> {
    #[inline]
    fn get(&self, hash: u64, key: &[u8]) -> Option<&Leaf<V>> {
        for step in 0..SLOTS {
            match &self.slots[slot(hash, step)] {
                Some(leaf) if leaf.is(hash, key) => return Some(leaf),
                Some(_) => {}
                None => return None,
            }
        }
        self.more.iter().find(|leaf| leaf.is(hash, key))
    }

    fn insert(&mut self, leaf: Leaf<V>) {
        match (0..SLOTS).map(|step| slot(leaf.hash, step)).find(|at| self.slots[*at].is_none()) {
            Some(at) => self.slots[at] = Some(leaf),
            None => self.more.push(leaf),
        }
    }

    /// Inserts the others again, so that no gap hides one.
    fn remove(&mut self, hash: u64, key: &[u8]) {
        let left: Vec<_> = self.take_all().filter(|leaf| !leaf.is(hash, key)).collect();
        left.into_iter().for_each(|leaf| self.insert(leaf));
    }

    fn get_mut(&mut self, hash: u64, key: &[u8]) -> Option<&mut Leaf<V>> {
        let is = |leaf: &Leaf<V>| leaf.is(hash, key);
        let at = (0..SLOTS).map(|step| slot(hash, step)).find(|at| self.slots[*at].as_ref().is_some_and(is));
        match at {
            Some(at) => self.slots[at].as_mut(),
            None => self.more.iter_mut().find(|leaf| is(leaf)),
        }
    }

    fn take_all(&mut self) -> impl Iterator<Item = Leaf<V>> + use<V> {
        let Page { slots, more } = std::mem::take(self);
        slots.into_iter().flatten().chain(more)
    }
}

impl<V> Leaf<V> {
    #[inline]
    fn is(&self, hash: u64, key: &[u8]) -> bool {
        self.hash == hash && *self.key == *key
    }
}

impl<V> Default for Map<V> {
    fn default() -> Map<V> {
        Map { root: Root::Empty, len: 0, longest: 0 }
    }
}

impl<V> Default for Page<V> {
    fn default() -> Page<V> {
        Page { slots: std::array::from_fn(|_| None), more: Vec::new() }
    }
}

/// The slot to probe after `step` others: by the hash's high bits, as the low ones are the same
/// within a page.
#[inline]
fn slot(hash: u64, step: usize) -> usize {
    ((hash >> 48) as usize + step) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn matches_a_model_and_copies_are_independent() {
        // Few different hashes, so that full pages and full collisions come up, too.
        for spread in [u64::MAX, 0x3f, 0] {
            let mut rng = fastrand::Rng::with_seed(7);
            let (mut map, mut model) = (Map::default(), HashMap::new());
            let mut old = (map.clone(), model.clone());
            let hash = |key: &[u8; 2]| {
                (u64::from(key[0]) << 40 ^ u64::from(key[1])).wrapping_mul(0x9e37_79b9_7f4a_7c15) & spread
            };
            for step in 0..20_000u32 {
                let key = rng.u16(..4000).to_be_bytes();
                let hash = hash(&key);
                // It grows, then it shrinks.
                let value = (rng.u32(..40_000) > step).then_some(step);
                match (map.get_mut(hash, &key), value) {
                    (Some(old), Some(value)) => *old = value,
                    (None, Some(value)) => map.insert(hash, &key, value),
                    (_, None) => map.remove(hash, &key),
                }
                match value {
                    Some(value) => model.insert((hash, key), value),
                    None => model.remove(&(hash, key)),
                };
                assert_eq!(map.len(), model.len());
                if step == 10_000 {
                    old = (map.clone(), model.clone());
                }
            }
            for (map, model) in [old, (map, model)] {
                for key in (0..4000u16).map(u16::to_be_bytes) {
                    assert_eq!(map.get(hash(&key), &key), model.get(&(hash(&key), key)));
                }
            }
        }
    }

    #[test]
    fn grows_page_by_page_and_an_emptied_map_holds_no_memory() {
        let mut map = Map::default();
        let key = |n: u32| (u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15).swap_bytes(), n.to_be_bytes());
        for (hash, key) in (0..5000).map(key) {
            map.insert(hash, &key, ());
        }
        assert!(map.may_have(4) && !map.may_have(5));
        assert!(matches!(&map.root, Root::Many(pages) if pages.count == 556));
        for (hash, key) in (0..5000).map(key) {
            map.remove(hash, &key);
        }
        assert!(matches!(map.root, Root::Empty) && !map.may_have(4));
    }
}

//! Schemas that contain themselves without a step into the value: no walk of one would end.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::compile::{Dependency, Shared, Subschema};

/// Whether one of these schemas is such a circle.
pub fn leads_round<'a>(all: impl Iterator<Item = &'a Arc<Shared>>) -> bool {
    // By address: `true` once all beside it are known.
    let mut known: HashMap<*const Shared, bool> = HashMap::new();
    for start in all {
        let mut path = Vec::new();
        if known.insert(Arc::as_ptr(start), false) != Some(true) {
            path.push((start.clone(), neighbours(start)));
        } else {
            known.insert(Arc::as_ptr(start), true);
        }
        while let Some((shared, left)) = path.last_mut() {
            let Some(next) = left.pop() else {
                known.insert(Arc::as_ptr(shared), true);
                path.pop();
                continue;
            };
            match known.get(&Arc::as_ptr(&next)) {
                Some(true) => {}
                Some(false) => return true,
                None => {
                    known.insert(Arc::as_ptr(&next), false);
                    let left = neighbours(&next);
                    path.push((next, left));
                }
            }
        }
    }
    false
}

/// The schemas for the same value that this one contains.
fn neighbours(shared: &Shared) -> Vec<Arc<Shared>> {
    let mut found = Vec::new();
    shared.get().into_iter().for_each(|node| beside(node, &mut found));
    found.iter().filter_map(Weak::upgrade).collect()
}

/// The schemas for the same value that contain this one.
fn beside(node: &Subschema, found: &mut Vec<Weak<Shared>>) {
    found.extend(node.shared.clone());
    let branch = node.branch.as_deref().into_iter();
    let branch =
        branch.flat_map(|branch| [Some(&branch.condition), branch.then.as_ref(), branch.otherwise.as_ref()]);
    let rules = node.object.as_deref().into_iter();
    let dependencies = rules.flat_map(|rules| {
        let of_properties = rules.properties.iter().filter_map(|property| property.dependency.as_ref());
        rules.dependencies.iter().map(|(_, dependency)| dependency).chain(of_properties)
    });
    let dependencies = dependencies.filter_map(|dependency| match dependency {
        Dependency::Schema(node) => Some(&**node),
        Dependency::Names(_) => None,
    });
    let all = node.all_of.iter().chain(&node.one_of);
    let all = all.chain(node.any_of.iter().flat_map(|any| &any.alternatives)).chain(node.not.as_deref());
    all.chain(branch.flatten()).chain(dependencies).for_each(|node| beside(node, found));
}

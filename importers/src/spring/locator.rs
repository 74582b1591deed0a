//! `discovery.locator`: a route for each service of the registry.
//!
//! Routes here are fixed, so that only services that the file names get one.

use model::{Key, Kind};

use super::definition::Definition;
use super::ids::Ids;
use super::regexes;
use super::report::Report;
use super::routes::{Draft, Parts, Shared};
use super::settings::Item;
use crate::finding::Severity;

/// The routes of the services that other routes name.
pub fn routes<'s>(
    locator: Option<&Item<'s>>,
    drafts: &[Draft],
    shared: &Shared<'s>,
    ids: &mut Ids,
    report: &mut Report,
) -> Vec<Draft> {
    let Some(locator) = locator.filter(|item| item.get("enabled").and_then(|item| item.bool()) == Some(true))
    else {
        return Vec::new();
    };
    let lower = locator.get("lower-case-service-id").and_then(|item| item.bool()) == Some(true);
    let mut services: Vec<String> = Vec::new();
    for draft in drafts {
        let name = draft.upstream.get("service_name").and_then(|name| name.as_str());
        services.extend(name.filter(|name| !services.iter().any(|known| known == name)).map(str::to_owned));
    }
    // Those that the file lists with their servers.
    let listed = shared.settings.get("spring.cloud.discovery.client.simple.instances");
    for (name, _) in listed.map(|item| item.members()).unwrap_or_default() {
        if !services.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            services.push(name.to_owned());
        }
    }
    let hint = "add a route for each other service";
    let effect = match services.as_slice() {
        [] => "no service is named in the file, so none gets a route".to_owned(),
        names => format!("only services that the file names get a route: {}", names.join(", ")),
    };
    report.item(Severity::Behaviour, locator, effect, Some(hint));
    let custom = ["predicates", "filters", "include-expression", "url-expression"];
    let custom: Vec<Item<'s>> = custom.iter().filter_map(|name| locator.get(name)).collect();
    if let Some(first) = custom.first() {
        custom.iter().for_each(Item::whole);
        let effect =
            "the expressions of the locator are not evaluated, so services get no routes of their own";
        report.item(Severity::Behaviour, first, effect, None);
        return Vec::new();
    }
    let mut found = Vec::new();
    for service in services {
        let name = match shared.registry.has_capitals() && !lower {
            true => service.clone(),
            false if lower => service.to_ascii_lowercase(),
            false => service.clone(),
        };
        let key = Key::new(Kind::Route, ids.take(&format!("service-{name}")));
        let (place, path) = (locator.place(), locator.path());
        let predicate = Definition::listed("Path", &[&format!("/{name}/**")], place.clone(), path);
        let regex = format!("/{}/?(?<remaining>.*)", regexes::escape(&name));
        let filter = Definition::listed("RewritePath", &[&regex, "/${remaining}"], place.clone(), path);
        report.route = Some(key.clone());
        let parts = Parts {
            key,
            place,
            order: 0,
            uri: Some(format!("lb://{service}")),
            predicates: vec![predicate],
            filters: shared.default_filters().to_vec(),
            metadata: None,
        };
        found.extend(parts.draft_with(vec![filter], shared, report));
        report.route = None;
    }
    found
}

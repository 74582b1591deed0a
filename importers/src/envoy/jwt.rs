//! `jwt_authn`: tokens of providers.

use std::collections::BTreeMap;

use model::Kind;
use serde_json::{Map, Value, json};

use super::cluster::Clusters;
use super::context::{Context, Report};
use super::draft::Draft;
use super::matching::{Path, header_condition, joined, negated, parameter_condition, path_of};
use super::value::{boolean, items, number, text, texts};
use super::{jwks, jwt_keys};
use crate::finding::Severity::{Behaviour, Cosmetic};
use crate::node::Node;

/// The rules of a filter.
pub(super) struct Rules<'a> {
    rules: Vec<Rule<'a>>,
    named: BTreeMap<String, Requirement>,
    providers: BTreeMap<String, Provider>,
    bypasses_preflights: bool,
}

struct Rule<'a> {
    node: Node<'a>,
    path: Path,
    ignore_case: bool,
    /// Conditions besides the path.
    vars: Vec<Value>,
    requirement: Requirement,
}

#[derive(Clone, Debug, PartialEq)]
enum Requirement {
    None,
    /// A token of one of them; `true` if a request without one is accepted, too.
    Providers(Vec<String>, bool),
    Unsupported(String),
}

/// A provider: a consumer, if its tokens can be verified.
struct Provider {
    problem: Option<String>,
    consumer: String,
    /// Settings of jwt-auth that routes have.
    settings: Map<String, Value>,
    /// The variable that a token comes in.
    variable: String,
    /// Settings of jwks-auth, for a provider that is no consumer.
    by_keys: Option<Map<String, Value>>,
    /// Tokens may be in several headers, arguments or cookies, of which the first is read.
    has_more_places: bool,
}

/// How a rule's requests and a route's relate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Relation {
    Covers,
    Partial,
    Disjoint,
}

/// A condition that may be known.
enum Truth {
    Known(bool),
    If(Value),
}

/// Members of a rule's condition that are compared.
const CONDITIONS: [&str; 9] = [
    "prefix",
    "path",
    "path_separated_prefix",
    "safe_regex",
    "regex",
    "path_match_policy",
    "headers",
    "query_parameters",
    "case_sensitive",
];

/// The address of the request.
const REALM: &str = "${scheme}://${http_host}${real_request_uri}";

/// Reads the filter.
pub(super) fn read<'a>(
    context: &mut Context<'_>,
    clusters: &Clusters,
    config: &Node<'a>,
    report: &mut Report,
) -> Option<Rules<'a>> {
    report.fields(
        config,
        &[
            (
                "filter_state_rules",
                crate::Severity::Guard,
                "requirements by the state of filters are not carried over",
            ),
            ("strip_failure_response", Cosmetic, "refusals have the gateway's own body"),
            ("stat_prefix", Cosmetic, "statistics have other names"),
        ],
    );
    let mut providers = BTreeMap::new();
    let mut issuers = Vec::new();
    for (name, node) in config.some("providers").map(|providers| providers.members()).unwrap_or_default() {
        let provider = provider(context, clusters, name, &node, &mut issuers, report);
        providers.insert(name.to_owned(), provider);
    }
    let mut named = BTreeMap::new();
    for (name, node) in config.some("requirement_map").map(|map| map.members()).unwrap_or_default() {
        named.insert(name.to_owned(), requirement(&node));
    }
    let mut rules = Vec::new();
    for node in items(config, "rules") {
        let Some(matching) = node.some("match") else { continue };
        let (path, unreadable) = path_of(&matching, &mut Report::default());
        let mut vars = Vec::new();
        let mut is_exact = !unreadable && matching.names().all(|name| CONDITIONS.contains(&name));
        let headers = items(&matching, "headers");
        let parameters = items(&matching, "query_parameters");
        let conditions =
            headers.iter().map(header_condition).chain(parameters.iter().map(parameter_condition));
        for condition in conditions {
            is_exact &= condition.is_ok();
            vars.extend(condition);
        }
        let mut requirement = match (node.some("requires"), text(&node, "requirement_name")) {
            (Some(requires), _) => requirement(&requires),
            (None, Some(name)) => named
                .get(name)
                .cloned()
                .unwrap_or(Requirement::Unsupported(format!("the requirement `{name}` is unknown"))),
            (None, None) => Requirement::None,
        };
        let ignore_case = boolean(&matching, "case_sensitive") == Some(false);
        if !is_exact {
            matching.whole();
            // It would hold for more requests than it should.
            if requirement == Requirement::None {
                report.behaviour(
                    &matching,
                    "jwt_authn.rules[].match",
                    "the condition is not carried over, so the rule is left out and those after it apply",
                );
                continue;
            }
            requirement =
                Requirement::Unsupported("the condition of the rule is not carried over".to_owned());
            vars.clear();
        }
        rules.push(Rule { node, path, ignore_case, vars, requirement });
    }
    let bypasses_preflights = boolean(config, "bypass_cors_preflight") == Some(true);
    Some(Rules { rules, named, providers, bypasses_preflights })
}

fn requirement(node: &Node<'_>) -> Requirement {
    if let Some(name) = text(node, "provider_name") {
        return Requirement::Providers(vec![name.to_owned()], false);
    }
    if let Some(both) = node.some("provider_and_audiences") {
        both.whole();
        return Requirement::Unsupported("audiences of tokens are not checked".to_owned());
    }
    if let Some(any) = node.some("requires_any") {
        let (mut names, mut optional) = (Vec::new(), false);
        for item in items(&any, "requirements") {
            match requirement(&item) {
                Requirement::Providers(more, missing) => {
                    names.extend(more);
                    optional |= missing;
                }
                Requirement::None => return Requirement::None,
                unsupported => return unsupported,
            }
        }
        return Requirement::Providers(names, optional);
    }
    if let Some(all) = node.some("requires_all") {
        let list = items(&all, "requirements");
        return match &list[..] {
            [one] => requirement(one),
            _ => {
                all.whole();
                Requirement::Unsupported("several tokens at a time are not verified".to_owned())
            }
        };
    }
    if node.get("allow_missing").is_some() {
        return Requirement::Providers(Vec::new(), true);
    }
    for name in ["allow_missing_or_failed", "extract_only_without_validation"] {
        if node.get(name).is_some() {
            return Requirement::None;
        }
    }
    Requirement::None
}

fn provider(
    context: &mut Context<'_>,
    clusters: &Clusters,
    name: &str,
    node: &Node<'_>,
    issuers: &mut Vec<String>,
    report: &mut Report,
) -> Provider {
    // Consumers verify tokens of one key by their issuer, and pass nothing on.
    let mut problem = None;
    let mut wrong = |what: &str| _ = problem.get_or_insert_with(|| what.to_owned());
    report.fields(
        node,
        &[
            ("payload_in_metadata", Cosmetic, "metadata is not set"),
            ("header_in_metadata", Cosmetic, "metadata is not set"),
            ("failed_status_in_metadata", Cosmetic, "metadata is not set"),
            ("normalize_payload_in_metadata", Cosmetic, "metadata is not set"),
            ("jwt_cache_config", Cosmetic, "tokens are verified each time"),
            ("clear_route_cache", Behaviour, "the route is not chosen again"),
        ],
    );
    for (field, what) in [
        ("audiences", "audiences of tokens are not checked"),
        ("subjects", "subjects of tokens are not checked"),
        ("max_lifetime", "the lifetime of tokens is not checked"),
    ] {
        if let Some(part) = node.some(field) {
            part.whole();
            wrong(what);
        }
    }
    for field in ["forward_payload_header", "claim_to_headers"] {
        if node.some(field).is_some() {
            wrong("claims are not passed on to servers");
        }
    }
    let issuer = text(node, "issuer").unwrap_or_default().to_owned();
    if issuer.is_empty() {
        wrong("the provider has no `issuer`, by which tokens are assigned to it here");
    } else if issuers.contains(&issuer) {
        wrong("another provider has the same `issuer`");
    }
    let mut settings = Map::new();
    let mut key = None;
    if let Some(local) = node.some("local_jwks") {
        match context.data(&local).and_then(|text| jwks::read(&text)) {
            Ok(found) => key = Some(found),
            Err(what) => wrong(&what),
        }
    } else if let Some(remote) = node.some("remote_jwks") {
        remote.whole();
        wrong("keys of a server (`remote_jwks`) are not fetched");
    } else {
        wrong("the provider has no keys");
    }
    settings.insert("key_claim_name".to_owned(), json!("iss"));
    if boolean(node, "forward") != Some(true) {
        settings.insert("hide_credentials".to_owned(), json!(true));
    }
    if boolean(node, "require_expiration") == Some(true) {
        settings.insert("claims_to_verify".to_owned(), json!(["exp"]));
    }
    let variable = locations(node, &mut settings, report);
    let consumer = context.key(Kind::Consumer, &[name]);
    if let Some(key) = key.filter(|_| problem.is_none()) {
        issuers.push(issuer.clone());
        let grace = number(node, "clock_skew_seconds").unwrap_or(60);
        let mut auth = key.settings;
        auth.insert("key".to_owned(), json!(issuer));
        auth.insert("lifetime_grace_period".to_owned(), json!(grace));
        let value = Map::from_iter([
            ("username".to_owned(), json!(consumer.id)),
            ("plugins".to_owned(), json!({"jwt-auth": auth})),
        ]);
        context.add(consumer.clone(), value, node.place());
        report.behaviour(
            node,
            format!("jwt_authn.providers.{name}"),
            "servers also get `X-Consumer-Username`, the name of the provider",
        );
    } else {
        let _ = node.get("clock_skew_seconds");
    }
    let by_keys = problem.is_some().then(|| jwt_keys::read(context, clusters, node, report)).flatten();
    if by_keys.is_none() {
        for field in ["forward_payload_header", "claim_to_headers", "pad_forward_payload_header"] {
            node.get(field).map(|field| field.whole());
        }
    }
    let has_more_places = items(node, "from_headers").len() > 1
        || ["from_params", "from_cookies"].iter().any(|name| texts(node, name).len() > 1);
    Provider { problem, consumer: consumer.id, settings, variable, by_keys, has_more_places }
}

/// Where a token is looked for.
fn locations(node: &Node<'_>, settings: &mut Map<String, Value>, report: &mut Report) -> String {
    let mut variable = "http_authorization".to_owned();
    let headers = items(node, "from_headers");
    for (at, header) in headers.iter().enumerate() {
        let name = text(header, "name").unwrap_or_default();
        let prefix = text(header, "value_prefix").unwrap_or_default().trim().to_owned();
        if at > 0 {
            header.whole();
            report.behaviour(header, "from_headers", "a token is looked for in the first header alone");
            continue;
        }
        settings.insert("header".to_owned(), json!(name.to_ascii_lowercase()));
        variable = format!("http_{}", name.to_ascii_lowercase().replace('-', "_"));
        if !prefix.is_empty() && !prefix.eq_ignore_ascii_case("bearer") {
            report.behaviour(
                header,
                "from_headers",
                format!("a token behind `{prefix}` is not found: it stands alone or behind `Bearer`"),
            );
        }
    }
    let (parameters, cookies) = (texts(node, "from_params"), texts(node, "from_cookies"));
    if let Some(parameter) = parameters.first() {
        settings.insert("query".to_owned(), json!(parameter));
        if headers.is_empty() {
            variable = format!("arg_{parameter}");
        }
    } else if headers.is_empty() && cookies.is_empty() {
        settings.insert("query".to_owned(), json!("access_token"));
    }
    if let Some(cookie) = cookies.first() {
        settings.insert("cookie".to_owned(), json!(cookie));
        if headers.is_empty() && parameters.is_empty() {
            variable = format!("cookie_{cookie}");
        }
    }
    variable
}

impl Rules<'_> {
    /// Adds the verification that a route's requests need.
    pub(super) fn apply(&self, draft: &mut Draft, own: Option<&Node<'_>>) {
        let chosen = own.and_then(|own| text(own, "requirement_name")).map(str::to_owned);
        let mut steps: Vec<(Option<Value>, &Requirement, Option<&Node<'_>>)> = Vec::new();
        if let Some(name) = &chosen {
            match self.named.get(name) {
                Some(requirement) => steps.push((None, requirement, own)),
                None => {
                    if let Some(own) = own {
                        draft.report.guard(
                            own,
                            "jwt_authn.requirement_name",
                            format!("the requirement `{name}` is unknown"),
                        );
                    }
                }
            }
        } else {
            for rule in &self.rules {
                match relation(rule, draft) {
                    Relation::Disjoint => {}
                    Relation::Covers => {
                        steps.push((None, &rule.requirement, Some(&rule.node)));
                        break;
                    }
                    Relation::Partial => {
                        let mut all = vec![rule.path.condition(rule.ignore_case)];
                        all.extend(rule.vars.iter().cloned());
                        steps.push((Some(joined("AND", all)), &rule.requirement, Some(&rule.node)));
                    }
                }
            }
        }
        for (_, requirement, node) in &steps {
            if self.by_keys(requirement).is_some() {
                if let (true, Some(node)) = (self.misses_tokens(requirement), node) {
                    let effect = "requests without a token are accepted, so a token in another place than the first \
                                  passes unverified";
                    draft.report.guard(node, "jwt_authn", effect);
                }
                continue;
            }
            if let (Some(problem), Some(node)) = (self.problem(requirement), node) {
                draft.report.guard(node, "jwt_authn", format!("tokens are not verified: {problem}"));
                return;
            }
        }
        let mut needed: Vec<&Requirement> = steps
            .iter()
            .map(|(_, requirement, _)| *requirement)
            .filter(|one| **one != Requirement::None)
            .collect();
        needed.dedup();
        let [Requirement::Providers(names, optional)] = needed[..] else {
            if let (Some(_), Some((_, _, Some(node)))) = (needed.first(), steps.first()) {
                draft.report.guard(
                    node,
                    "jwt_authn",
                    "requests of this route need tokens of different providers, which are not distinguished",
                );
            }
            return;
        };
        let truth = steps.into_iter().rev().fold(Truth::Known(false), |rest, (condition, requirement, _)| {
            let required = *requirement != Requirement::None;
            match (condition, required, rest) {
                (None, required, _) => Truth::Known(required),
                (Some(_), true, Truth::Known(true)) => Truth::Known(true),
                (Some(condition), true, Truth::Known(false)) => Truth::If(condition),
                (Some(condition), true, Truth::If(rest)) => Truth::If(joined("OR", vec![condition, rest])),
                (Some(_), false, Truth::Known(false)) => Truth::Known(false),
                (Some(condition), false, Truth::Known(true)) => Truth::If(negated(condition)),
                (Some(condition), false, Truth::If(rest)) => {
                    Truth::If(joined("AND", vec![negated(condition), rest]))
                }
            }
        });
        let mut filter = match truth {
            Truth::Known(false) => return,
            Truth::Known(true) => Vec::new(),
            Truth::If(condition) => vec![condition],
        };
        if let Some(settings) = self.by_keys(needed[0]) {
            let mut settings = settings.clone();
            if *optional {
                settings.insert("allow_missing".to_owned(), json!(true));
            }
            self.spare_preflights(&mut filter);
            if !filter.is_empty() {
                settings.insert("_meta".to_owned(), json!({"filter": filter}));
            }
            settings.insert("realm".to_owned(), json!(REALM));
            draft.plugins.set("jwks-auth", Value::Object(settings));
            return;
        }
        let providers: Vec<&Provider> = names.iter().filter_map(|name| self.providers.get(name)).collect();
        let Some(first) = providers.first() else { return };
        if *optional {
            filter.push(json!([first.variable, "~~", "^"]));
        }
        self.spare_preflights(&mut filter);
        let mut settings = first.settings.clone();
        settings.insert("realm".to_owned(), json!(REALM));
        if !filter.is_empty() {
            settings.insert("_meta".to_owned(), json!({"filter": filter}));
        }
        let whitelist: Vec<&str> = providers.iter().map(|provider| provider.consumer.as_str()).collect();
        let mut restriction = json!({"whitelist": whitelist, "rejected_code": 401});
        if !filter.is_empty() {
            restriction["_meta"] = json!({"filter": filter});
        }
        draft.plugins.set("jwt-auth", Value::Object(settings));
        // A token of another provider is valid as well, without it.
        if self.providers.values().filter(|provider| provider.problem.is_none()).count() > providers.len() {
            draft.plugins.set("consumer-restriction", restriction);
        }
    }

    fn spare_preflights(&self, filter: &mut Vec<Value>) {
        if self.bypasses_preflights {
            filter.push(negated(json!([
                "AND",
                ["request_method", "==", "OPTIONS"],
                ["http_access_control_request_method", "~~", "^"]
            ])));
        }
    }

    /// The settings of jwks-auth for a requirement of one provider that is no consumer.
    fn by_keys(&self, requirement: &Requirement) -> Option<&Map<String, Value>> {
        let Requirement::Providers(names, _) = requirement else { return None };
        let [name] = names.as_slice() else { return None };
        self.providers.get(name)?.by_keys.as_ref()
    }

    /// Whether a token that is not read counts as missing, and missing ones are accepted.
    fn misses_tokens(&self, requirement: &Requirement) -> bool {
        let Requirement::Providers(names, true) = requirement else { return false };
        names.iter().filter_map(|name| self.providers.get(name)).any(|provider| provider.has_more_places)
    }

    fn problem(&self, requirement: &Requirement) -> Option<String> {
        match requirement {
            Requirement::None => None,
            Requirement::Unsupported(problem) => Some(problem.clone()),
            Requirement::Providers(names, _) if names.is_empty() => {
                Some("tokens of any provider are not verified where they are not required".to_owned())
            }
            Requirement::Providers(names, _) => {
                let mut settings: Option<&Map<String, Value>> = None;
                for name in names {
                    let Some(provider) = self.providers.get(name) else {
                        return Some(format!("the provider `{name}` is unknown"));
                    };
                    if let Some(problem) = &provider.problem {
                        return Some(problem.clone());
                    }
                    if settings.is_some_and(|settings| *settings != provider.settings) {
                        return Some("the providers look for tokens in different places".to_owned());
                    }
                    settings = Some(&provider.settings);
                }
                None
            }
        }
    }
}

/// How the requests of a rule and those of a route relate.
fn relation(rule: &Rule<'_>, draft: &Draft) -> Relation {
    let paths = match (&rule.path, &draft.matcher.path) {
        (Path::Prefix(prefix), _) if prefix == "/" => Relation::Covers,
        _ if rule.ignore_case || draft.matcher.ignore_case => Relation::Partial,
        (Path::Prefix(rule), Path::Exact(path)) => exact(path.starts_with(rule.as_str())),
        (Path::Prefix(rule), Path::Prefix(route) | Path::Separated(route)) => nested(rule, route),
        (Path::Exact(rule), Path::Exact(path)) => exact(rule == path),
        (Path::Exact(rule), Path::Prefix(route)) => partial(rule.starts_with(route.as_str())),
        (Path::Exact(rule), Path::Separated(route)) => partial(is_below(rule, route)),
        (Path::Separated(rule), Path::Exact(path)) => exact(is_below(path, rule)),
        (Path::Separated(rule), Path::Separated(route)) if is_below(route, rule) => Relation::Covers,
        (Path::Separated(rule), Path::Separated(route)) => partial(is_below(rule, route)),
        (Path::Separated(rule), Path::Prefix(route)) if route.starts_with(&format!("{rule}/")) => {
            Relation::Covers
        }
        (Path::Separated(rule), Path::Prefix(route)) => {
            partial(rule.starts_with(route.as_str()) || route.starts_with(rule.as_str()))
        }
        (Path::Regex(_), _) | (_, Path::Regex(_)) => Relation::Partial,
    };
    match paths {
        Relation::Covers if !rule.vars.is_empty() => Relation::Partial,
        paths => paths,
    }
}

fn exact(matches: bool) -> Relation {
    if matches { Relation::Covers } else { Relation::Disjoint }
}

fn partial(overlaps: bool) -> Relation {
    if overlaps { Relation::Partial } else { Relation::Disjoint }
}

fn nested(rule: &str, route: &str) -> Relation {
    if route.starts_with(rule) { Relation::Covers } else { partial(rule.starts_with(route)) }
}

fn is_below(path: &str, parent: &str) -> bool {
    path.strip_prefix(parent).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

//! Variables without a value where they are used, and paths that mean something else than they seem
//! to.

use model::invalid::push_pointer;
use model::{Invalid, Key, Resource};
use sdk::template::Template;
use sdk::vars::Var;
use serde_json::{Map, Value};

use super::{Analysis, Code, Input};
use crate::router::Mode;

/// Prefix of path parameters; a second underscore marks variables of the route itself.
const PARAMETER: &str = "uri_param_";
const LIMITS: [&str; 3] = ["limit-conn", "limit-count", "limit-req"];

pub(super) fn check(of: Input<'_>, found: &mut Analysis) {
    for entry in of.desired.iter() {
        let mut check = VariableCheck { key: &entry.key, found };
        if let Resource::Route(route) = entry.resource() {
            let pointer = if route.uris.len() > 1 { "/uris" } else { "/uri" };
            if of.mode != Mode::UriWithParameter
                && let Some(uri) = route.uris.iter().find(|uri| uri.contains("/:"))
            {
                check.literal_parameter(uri, pointer);
            }
            if let Some(vars) = &route.vars {
                check.conditions(vars, "/vars");
            }
        }
        for (name, config) in entry.resource().plugins().into_iter().flatten() {
            let Value::Object(settings) = config else { continue };
            let mut pointer = String::from("/plugins");
            push_pointer(&mut pointer, name);
            match name.as_str() {
                name if LIMITS.contains(&name) => check.limit_key(name, settings, &pointer),
                "proxy-rewrite" => check.rewritten_path(settings, &pointer),
                _ => {}
            }
        }
    }
}

struct VariableCheck<'a> {
    key: &'a Key,
    found: &'a mut Analysis,
}

impl VariableCheck<'_> {
    fn literal_parameter(&mut self, uri: &str, pointer: &str) {
        let invalid =
            Invalid::new(format!("`{uri}` matches paths with a colon only: this router has no parameters"))
                .at(pointer)
                .hint("set `apisix.router.http: radixtree_uri_with_parameter`, or write `*`");
        self.found.add(Code::LiteralParameter, self.key, invalid);
    }

    /// Reports path parameters in the conditions of a route.
    fn conditions(&mut self, condition: &Value, pointer: &str) {
        let Value::Array(items) = condition else { return };
        if let Some(name) = items.first().and_then(Value::as_str)
            && let Some(parameter) = name.strip_prefix(PARAMETER)
            && !parameter.starts_with('_')
        {
            let reason = format!(
                "`{name}` has no value in a route's `vars`: path parameters are set once a route is chosen"
            );
            let hint = "use it in a plugin's settings or `_meta.filter`, or put the value in `uri`";
            self.found.add(Code::UnknownVariable, self.key, Invalid::new(reason).at(pointer).hint(hint));
        }
        for (at, item) in items.iter().enumerate() {
            self.conditions(item, &format!("{pointer}/{at}"));
        }
    }

    /// Reports a limit key that names an unknown variable.
    fn limit_key(&mut self, plugin: &str, settings: &Map<String, Value>, pointer: &str) {
        let text = |field: &str| settings.get(field).and_then(Value::as_str);
        let Some(key) = text("key") else { return };
        let (unknown, is_name) = match text("key_type") {
            Some("constant") => return,
            Some("var_combination") => {
                let template = Template::parse(key);
                let unknown = template.vars().find(|var| !var.is_known());
                (unknown.map(|var| var.name().to_owned()), false)
            }
            _ => (Some(key).filter(|key| !Var::parse(key).is_known()).map(str::to_owned), true),
        };
        let Some(unknown) = unknown else { return };
        let hint = match (unknown.strip_prefix('$'), sdk::vars::nearest(&unknown)) {
            (Some(name), _) if is_name => format!("write `{name}`, or `key_type: var_combination`"),
            (_, Some(near)) => format!("did you mean `{near}`?"),
            _ if is_name => "write `key_type: constant` to count all requests together".to_owned(),
            _ => "remove it".to_owned(),
        };
        let effect =
            if is_name { "each client address counts by itself" } else { "it is replaced by an empty text" };
        let reason = format!("the key of {plugin} names the unknown variable `{unknown}`; {effect}");
        let invalid = Invalid::new(reason).at(format!("{pointer}/key")).hint(hint);
        self.found.add(Code::UnknownVariable, self.key, invalid);
    }

    /// Reports a rewritten path built from the raw path, which gets percent-encoded twice.
    fn rewritten_path(&mut self, settings: &Map<String, Value>, pointer: &str) {
        let Some(uri) = settings.get("uri").and_then(Value::as_str) else { return };
        if Template::parse(uri).vars().any(|var| var.name() == "request_uri") {
            let reason =
                "`$request_uri` in a rewritten path is encoded twice, and its query becomes part of the path";
            let invalid = Invalid::new(reason)
                .at(format!("{pointer}/uri"))
                .hint("use `$uri`; the query of the request is kept by itself");
            self.found.add(Code::DoubleEncoding, self.key, invalid);
        }
    }
}

//! Headers that routes, virtual hosts and route tables add and remove.

use serde_json::{Map, Value, json};

use super::context::Report;
use super::format;
use super::value::{boolean, enumerated, items, text, texts};
use crate::Variables;
use crate::node::Node;

/// Changes of the headers of one side, in the order of their application.
#[derive(Default)]
pub(super) struct Edits {
    edits: Vec<Edit>,
    /// To Envoy the client is who `X-Forwarded-For` names, so values with its address differ.
    behind_proxies: bool,
}

struct Edit {
    name: String,
    /// The client's or server's own value goes.
    replaces: bool,
    values: Vec<String>,
}

impl Edits {
    /// Changes of a route whose clients may stand behind proxies.
    pub(super) fn new(behind_proxies: bool) -> Edits {
        Edits { edits: Vec::new(), behind_proxies }
    }

    /// Reads the changes of a level: `request_headers_to_add` and `request_headers_to_remove`, or those of responses.
    pub(super) fn read(
        &mut self,
        node: &Node<'_>,
        side: &str,
        variables: Variables<'_>,
        report: &mut Report,
    ) {
        for name in texts(node, &format!("{side}_headers_to_remove")) {
            self.remove(&name);
        }
        for add in items(node, &format!("{side}_headers_to_add")) {
            self.add(&add, side, variables, report);
        }
    }

    pub(super) fn remove(&mut self, name: &str) {
        let edit = self.edit(name);
        edit.replaces = true;
        edit.values.clear();
    }

    pub(super) fn set(&mut self, name: &str, value: &str) {
        let edit = self.edit(name);
        edit.replaces = true;
        edit.values = vec![value.to_owned()];
    }

    /// A `HeaderValueOption`.
    pub(super) fn add(&mut self, add: &Node<'_>, side: &str, variables: Variables<'_>, report: &mut Report) {
        let header = add.some("header").unwrap_or_else(|| add.clone());
        let _ = add.get("keep_empty_value");
        let Some(name) = text(&header, "key") else { return };
        let value = header.any(&["value", "raw_value"]).and_then(|value| value.text()).unwrap_or_default();
        if self.behind_proxies && format::names_client(&value) {
            let construct = format!("{side}_headers_to_add: {name}");
            let effect = "the address is that of the connection; Envoy takes one from `X-Forwarded-For`";
            report.behaviour(&header, construct, effect);
            report.hint("name the proxies in `nginx_config.http.real_ip_from` of config.yaml");
        }
        let value = match format::template(&value, variables) {
            Ok(value) => value,
            Err(problem) => {
                let construct = format!("{side}_headers_to_add: {name}");
                return report.behaviour(&header, construct, format!("the header is not added: {problem}"));
            }
        };
        let action = enumerated(add, "append_action");
        let appends = boolean(add, "append").unwrap_or(true);
        match action.as_deref() {
            None | Some("APPEND_IF_EXISTS_OR_ADD") if appends => self.edit(name).values.push(value),
            None | Some("APPEND_IF_EXISTS_OR_ADD" | "OVERWRITE_IF_EXISTS_OR_ADD") => self.set(name, &value),
            Some("ADD_IF_ABSENT") if side == "request" && !value.contains(['$', '}']) => {
                match format::header_variable(name, "http_") {
                    Some(own) => self.set(name, &format!("${{{own} ?? {value}}}")),
                    None => self.set(name, &value),
                }
            }
            Some(other) => {
                report.behaviour(
                    add,
                    format!("append_action: {other}"),
                    format!("the header `{name}` is always set"),
                );
                self.set(name, &value);
            }
        }
    }

    fn edit(&mut self, name: &str) -> &mut Edit {
        // The spelling of the file is kept.
        let at = self.edits.iter().position(|edit| edit.name.eq_ignore_ascii_case(name));
        let at = at.unwrap_or_else(|| {
            self.edits.push(Edit { name: name.to_owned(), replaces: false, values: Vec::new() });
            self.edits.len() - 1
        });
        &mut self.edits[at]
    }

    /// `headers` of proxy-rewrite, and the value for `Host` if it is set.
    pub(super) fn of_requests(self) -> (Map<String, Value>, Option<String>) {
        let (mut add, mut set, mut remove) = (Map::new(), Map::new(), Vec::new());
        let mut host = None;
        for edit in self.edits {
            if matches!(edit.name.as_str(), ":authority" | "Host" | "host") {
                host = edit.values.into_iter().next_back().or(host);
                continue;
            }
            if edit.name.contains(':') {
                continue;
            }
            match (edit.replaces, edit.values.len()) {
                (true, 0) => remove.push(Value::from(edit.name)),
                (true, _) => _ = set.insert(edit.name, one_or_many(edit.values)),
                (false, _) => _ = add.insert(edit.name, one_or_many(edit.values)),
            }
        }
        let mut headers = Map::new();
        for (name, edits) in [("add", add), ("set", set)] {
            if !edits.is_empty() {
                headers.insert(name.to_owned(), Value::Object(edits));
            }
        }
        if !remove.is_empty() {
            headers.insert("remove".to_owned(), Value::Array(remove));
        }
        (headers, host)
    }

    /// `headers` of response-rewrite.
    pub(super) fn of_responses(self) -> Map<String, Value> {
        let (mut add, mut set, mut remove) = (Vec::new(), Map::new(), Vec::new());
        for edit in self.edits.into_iter().filter(|edit| !edit.name.contains(':')) {
            if edit.replaces && edit.values.is_empty() {
                remove.push(Value::from(edit.name));
                continue;
            }
            let mut values = edit.values.into_iter();
            // An item of `add` may hold no second colon, and not end with a slash.
            let first = values.next().unwrap_or_default();
            let fits = |value: &str| !value.contains(':') && !value.is_empty() && !value.ends_with('/');
            if edit.replaces || !fits(&first) {
                set.insert(edit.name.clone(), json!(first));
            } else {
                add.push(json!(format!("{}: {first}", edit.name)));
            }
            add.extend(
                values.filter(|value| fits(value)).map(|value| json!(format!("{}: {value}", edit.name))),
            );
        }
        let mut headers = Map::new();
        for (name, list) in [("add", add), ("remove", remove)] {
            if !list.is_empty() {
                headers.insert(name.to_owned(), Value::Array(list));
            }
        }
        if !set.is_empty() {
            headers.insert("set".to_owned(), Value::Object(set));
        }
        headers
    }
}

fn one_or_many(mut values: Vec<String>) -> Value {
    match values.len() {
        1 => json!(values.remove(0)),
        _ => json!(values),
    }
}

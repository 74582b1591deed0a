//! acl: accepts or refuses requests by labels of the consumer, or by claims of a user from elsewhere.
//!
//! Settings, messages and statuses as in APISIX 3.18. A user from elsewhere is one that openid-connect has verified, or
//! that a script has set: its claims take the place of those that APISIX has of its plugins for SAML, DingTalk and Feishu.

use indexmap::IndexMap;
use model::Invalid;
use sdk::chain::Phases;
use sdk::consumers::ExternalUser;
use sdk::pattern::Pattern;
use sdk::{Build, Exchange, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::json_path::Path;

/// The configured plugin.
pub struct Acl {
    config: Config,
    field: Path,
    /// Of segmented text: that of the settings, and the comma.
    separator: Option<Pattern>,
    comma: Pattern,
}

type Labels = IndexMap<String, Vec<String>>;

#[derive(Debug, Deserialize)]
pub struct Config {
    external_user_label_field: String,
    external_user_label_field_key: Option<String>,
    external_user_label_field_parser: Option<Parser>,
    external_user_label_field_separator: Option<String>,
    allow_labels: Option<Labels>,
    deny_labels: Option<Labels>,
    #[serde(deserialize_with = "crate::any_status")]
    rejected_code: u16,
    rejected_msg: Option<String>,
}

/// How the values of a label are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Parser {
    SegmentedText,
    Json,
    Table,
}

impl Plugin for Acl {
    const NAME: &'static str = "acl";
    const PRIORITY: i32 = 2410;
    const PHASES: Phases = Phases::ACCESS;

    type Config = Config;

    fn schema() -> Value {
        crate::apisix_schema(Self::NAME)
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<Acl, Invalid> {
        if config.rejected_code > 599 {
            let invalid = Invalid::new("rejected_code is not an HTTP status").at("/rejected_code");
            return Err(invalid.expected("200 to 599").got(config.rejected_code.to_string()));
        }
        let field = Path::parse(&config.external_user_label_field).map_err(|why| {
            let text = format!("invalid external_user_label_field: {why}");
            Invalid::new(text).at("/external_user_label_field").got(config.external_user_label_field.as_str())
        })?;
        let between = |text: &str| Pattern::new(&format!("\\s*(?:{text})\\s*"), false);
        let separator = config.external_user_label_field_separator.as_deref().map(between).transpose();
        let separator = separator.map_err(|invalid| invalid.under("/external_user_label_field_separator"))?;
        Ok(Acl { field, separator, comma: between(",")?, config })
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        let config = &self.config;
        let verdict = if let Some(consumer) = x.consumer() {
            let values = |label: &str| {
                let found = consumer.labels.iter().find(|(own, _)| own == label);
                found.map(|(_, value)| self.read_text(x, value, None)).unwrap_or_default()
            };
            self.judge(values)
        } else if let Some(user) = x.note::<ExternalUser>() {
            let key = config.external_user_label_field_key.as_ref();
            let key = key.unwrap_or(&config.external_user_label_field);
            self.judge(|label| if label == key { self.of_user(x, &user.0) } else { Vec::new() })
        } else {
            let body = json!({"message": "Missing authentication."});
            return Step::Reply(Reply::json(401, &body).because("there is no consumer or user"));
        };
        if verdict {
            return Step::Next;
        }
        let message = config.rejected_msg.as_deref().unwrap_or("The consumer is forbidden.");
        let reply = Reply::json(config.rejected_code, &json!({ "message": message }));
        Step::Reply(reply.because("the labels are not allowed"))
    }
}

impl Acl {
    /// Whether the labels are accepted: first those that are denied, then those that are allowed.
    fn judge(&self, values: impl Fn(&str) -> Vec<String>) -> bool {
        let has = |wanted: &Labels| {
            wanted.iter().any(|(label, wanted)| {
                let own = values(label);
                wanted.iter().any(|one| own.contains(one))
            })
        };
        !self.config.deny_labels.as_ref().is_some_and(has)
            && self.config.allow_labels.as_ref().is_none_or(has)
    }

    fn of_user(&self, x: &Exchange<'_>, user: &Value) -> Vec<String> {
        let parser = self.config.external_user_label_field_parser;
        match self.field.find(user).as_slice() {
            [] => Vec::new(),
            [one] => self.read(x, one, parser),
            several => {
                let one = |value: &&Value| self.read(x, value, parser.filter(|_| value.is_string()));
                several.iter().flat_map(one).collect()
            }
        }
    }

    /// The values in a label.
    fn read(&self, x: &Exchange<'_>, label: &Value, parser: Option<Parser>) -> Vec<String> {
        match (label, parser) {
            (Value::Array(list), None | Some(Parser::Table)) => texts(list),
            (Value::String(text), parser) => self.read_text(x, text, parser),
            _ => Vec::new(),
        }
    }

    /// The values in a text. Without a parser, its form decides.
    fn read_text(&self, x: &Exchange<'_>, text: &str, parser: Option<Parser>) -> Vec<String> {
        let json = || match serde_json::from_str(text) {
            Ok(Value::Array(list)) => texts(&list),
            _ => Vec::new(),
        };
        match parser {
            Some(Parser::SegmentedText) => {
                self.separator.as_ref().map(|separator| split(x, text, separator)).unwrap_or_default()
            }
            Some(Parser::Json) => json(),
            Some(Parser::Table) => Vec::new(),
            None if text.starts_with('[') => json(),
            None if text.contains(',') => split(x, text, &self.comma),
            None => vec![text.to_owned()],
        }
    }
}

fn texts(list: &[Value]) -> Vec<String> {
    list.iter().filter_map(|one| one.as_str().map(str::to_owned)).collect()
}

/// The parts of a text between the matches of a pattern; none if they cannot be found.
fn split(x: &Exchange<'_>, text: &str, separator: &Pattern) -> Vec<String> {
    let (mut parts, mut rest) = (Vec::new(), text.as_bytes());
    loop {
        let found = match separator.captures(rest, x.searches()) {
            Ok(found) => found.map(|found| found.whole()).filter(|(start, end)| start < end),
            Err(_) => return Vec::new(),
        };
        let (start, end) = found.unwrap_or((rest.len(), rest.len()));
        parts.push(String::from_utf8_lossy(&rest[..start]).into_owned());
        if found.is_none() {
            return parts;
        }
        rest = &rest[end..];
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sdk::Consumer;
    use sdk::consumers::Identity;
    use sdk::testing::Probe;

    use super::*;

    fn status(config: &Value, prepare: impl FnOnce(&mut Exchange<'_>)) -> (u16, String) {
        let mut probe = Probe::default();
        let plugin: Acl = probe.stage(config.clone()).unwrap();
        let mut x = probe.exchange();
        prepare(&mut x);
        match plugin.access(&mut x) {
            Step::Next => (200, String::new()),
            Step::Reply(reply) => (reply.status, String::from_utf8_lossy(&reply.body).into_owned()),
            step => panic!("{step:?}"),
        }
    }

    fn of_consumer(config: &Value, value: &str) -> u16 {
        let labels = vec![("team".to_owned(), value.to_owned())];
        let consumer =
            Consumer { name: "jack".into(), group_id: None, custom_id: None, labels, chain: None, slot: 1 };
        status(config, |x| x.authenticate(Identity::anonymous(&Arc::new(consumer)))).0
    }

    #[test]
    fn labels_of_the_consumer_decide() {
        let allow = json!({"allow_labels": {"other": ["x"], "team": ["a", "b"]}});
        for (label, expected) in [
            ("a", 200),
            ("x, b,c", 200),
            ("[\"c\", \"a\"]", 200),
            ("c", 403),
            ("ab", 403),
            ("", 403),
            ("[\"a\"", 403),
            ("[1, 2]", 403),
            ("{\"a\": 1}", 403),
        ] {
            assert_eq!(of_consumer(&allow, label), expected, "{label}");
        }
        let deny = json!({"deny_labels": {"team": ["b"]}, "rejected_code": 451});
        assert_eq!([of_consumer(&deny, "a"), of_consumer(&deny, "a,b")], [200, 451]);
        let both = json!({"allow_labels": {"team": ["a"]}, "deny_labels": {"team": ["b"]}});
        assert_eq!(
            [of_consumer(&both, "a"), of_consumer(&both, "a,b"), of_consumer(&both, "c")],
            [200, 403, 403]
        );
        let (code, body) = status(&allow, |_| {});
        assert_eq!((code, &*body), (401, "{\"message\":\"Missing authentication.\"}\n"));
        let own = json!({"allow_labels": {"team": ["a"]}, "rejected_msg": "no"});
        let empty = Consumer {
            name: "jack".into(),
            group_id: None,
            custom_id: None,
            labels: Vec::new(),
            chain: None,
            slot: 1,
        };
        let (code, body) = status(&own, |x| x.authenticate(Identity::anonymous(&Arc::new(empty))));
        assert_eq!((code, &*body), (403, "{\"message\":\"no\"}\n"));
    }

    #[test]
    fn claims_of_a_user_decide() {
        let user = json!({"groups": ["a", "b"], "org": {"teams": "c | d", "list": "[\"e\"]", "deep": [{"name": "f|g"}, {"name": "h"}]}});
        let code = |field: &str, parser: Option<&str>, wanted: &str| {
            let mut config = json!({"external_user_label_field": field, "external_user_label_field_key": "team", "allow_labels": {"team": [wanted]}});
            if let Some(parser) = parser {
                config["external_user_label_field_parser"] = json!(parser);
                config["external_user_label_field_separator"] = json!("\\|");
            }
            status(&config, |x| x.set_note(ExternalUser(user.clone()))).0
        };
        for (field, parser, wanted, expected) in [
            ("groups", None, "b", 200),
            ("$.groups", Some("table"), "b", 200),
            ("groups", Some("json"), "b", 403),
            ("groups", None, "c", 403),
            ("$.org.teams", Some("segmented_text"), "d", 200),
            ("$.org.teams", None, "d", 403),
            ("$.org.list", Some("json"), "e", 200),
            ("$.org.teams", Some("json"), "c", 403),
            ("$.org.teams", Some("table"), "c", 403),
            ("$.org.deep[*].name", Some("segmented_text"), "g", 200),
            ("$..name", Some("segmented_text"), "h", 200),
            ("$.org.deep[1]['name']", None, "h", 200),
            ("$.missing", None, "a", 403),
        ] {
            assert_eq!(code(field, parser, wanted), expected, "{field} {parser:?} {wanted}");
        }
        let config = json!({"allow_labels": {"groups": ["a"]}});
        assert_eq!(
            status(&config, |x| x.set_note(ExternalUser(user.clone()))).0,
            200,
            "the field is the key"
        );
        assert_eq!(status(&config, |x| x.set_note(ExternalUser(Value::Null))).0, 403);
    }

    #[test]
    fn invalid_settings_are_refused() {
        for (rest, words) in [
            (json!({"external_user_label_field": "$.a["}), "invalid external_user_label_field"),
            (
                json!({"external_user_label_field_parser": "segmented_text", "external_user_label_field_separator": "("}),
                "",
            ),
            (json!({"external_user_label_field_parser": "segmented_text"}), "then clause did not match"),
            (json!({"rejected_code": 700}), "rejected_code"),
        ] {
            let mut config = json!({"allow_labels": {"a": ["b"]}});
            for (name, value) in rest.as_object().unwrap() {
                config[name] = value.clone();
            }
            let error = Probe::default().stage::<Acl>(config).map(drop).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
